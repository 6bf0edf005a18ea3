"""Parse sbatch's --begin into a time, and choose the later one of two begin times. Pure.

The forms are those of sbatch(1) "--begin", Slurm 22.05. The clock and its time zone are those of the submitting host,
as in sbatch.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_NAMED = {"midnight": (0, 0), "noon": (12, 0), "fika": (15, 0), "teatime": (16, 0)}
_NOW = re.compile(r"now(?:\s*([+-])\s*(\d+)\s*([a-z]*?)s?)?", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_FORMATS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y-%H:%M", "%m/%d/%y", "%m%d%y")


def parse_begin_time(text: str, now: float) -> float | None:
    """Return the Unix time that --begin=`text` means at `now`; None for a form that only sbatch itself may know."""
    text = text.strip()
    moment = datetime.fromtimestamp(now)
    if found := _NOW.fullmatch(text):
        return _parse_relative_time(found, now)
    if text.lower() in ("today", "tomorrow"):
        return (moment + timedelta(days=text.lower() == "tomorrow")).timestamp()
    if text.lower() in _NAMED:
        return _find_next_time(moment, *_NAMED[text.lower()], 0)
    if found := _CLOCK.fullmatch(text):
        return _parse_clock_time(found, moment)
    for form in _FORMATS:
        try:
            return datetime.strptime(text, form).timestamp()
        except ValueError:
            continue
    return None


def select_later_begin(user_begin: str | None, grace_s: int, now: float) -> tuple[str, str]:
    """Return (--begin of the waiting job, StartTime that releases it): the later of `now + grace_s` and `user_begin`.

    If the form of `user_begin` is not understood, it is used for both, so that the job never starts before it.
    """
    grace_begin = f"now+{grace_s}"
    if user_begin is None:
        return grace_begin, "now"
    wanted = parse_begin_time(user_begin, now)
    if wanted is None:
        return user_begin, user_begin
    absolute = datetime.fromtimestamp(wanted).strftime("%Y-%m-%dT%H:%M:%S")
    start = "now" if wanted <= now else absolute
    return (absolute if wanted > now + grace_s else grace_begin), start


def _parse_relative_time(found: re.Match[str], now: float) -> float | None:
    sign, count, unit = found.groups()
    if sign is None:
        return now
    scale = _UNITS.get((unit or "").lower())
    if scale is None:
        return None
    return now + int(count) * scale * (-1 if sign == "-" else 1)


def _parse_clock_time(found: re.Match[str], moment: datetime) -> float | None:
    hour, minute, second = int(found[1]), int(found[2]), int(found[3] or 0)
    half = (found[4] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return _find_next_time(moment, hour, minute, second) if hour < 24 and minute < 60 and second < 60 else None


def _find_next_time(moment: datetime, hour: int, minute: int, second: int) -> float:
    """Return the next time at which the clock shows this: today, or tomorrow if it has passed (sbatch(1))."""
    wanted = moment.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return (wanted if wanted > moment else wanted + timedelta(days=1)).timestamp()
