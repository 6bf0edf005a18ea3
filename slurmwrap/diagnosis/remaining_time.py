"""Finds how much longer a program would have run, by what its output shows at its end. Pure.

A progress bar says it itself ("308/5000 [01:03<16:18"), and so do lines with an ETA. Where only the step or the epoch
and their number are shown, the rest is assumed to take as long as the part that is done.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurmwrap.diagnosis.log_rows import LogRows
from slurmwrap.fast_dataclasses import dataclass

_ROWS = 200  # rows at the end that are read
_CAP = 400
_LONGEST_S = 366 * 86400.0
_CLOCK = r"(?:(?:(\d{1,3}) days?, ?|(\d{1,3})-)?(?:(\d{1,4}):)?(\d{1,3}):(\d\d))"
_REMAINING_BAR = re.compile(
    rf"^(.{{0,200}}?)\d{{1,3}}%\|[^|]{{0,120}}\| {{0,9}}(\d{{1,12}})/(\d{{1,12}}) ?\[([\d:]{{4,12}})<{_CLOCK}"
)
_ETA = re.compile(rf"\b(?:eta|time[ _]left|remaining)\b['\"]?\s?[:=]?\s?['\"]?{_CLOCK}", re.IGNORECASE)
_REMAINING_STEP = re.compile(
    r"(?:^|[^\w-])(?:global[_ ]?step|step|iteration|iter|update)s?['\"]?\s{0,3}[:=#\[(]{0,2}\s{0,12}(\d{1,12})"
    r"\s{0,12}(?:/|of)\s{0,12}(\d{1,12})\b",
    re.IGNORECASE,
)
_REMAINING_EPOCH = re.compile(
    r"(?:^|[^\w-])epochs?['\"]?\s{0,3}[:=#\[(]{0,2}\s{0,4}(\d{1,7})\s{0,4}(?:/|of)\s{0,4}(\d{1,7})\b", re.IGNORECASE
)
_REMAINING_BESIDE = re.compile(
    r"\b(?:val(?:id\w{0,6})?|eval\w{0,6}|test\w{0,3}|predict\w{0,4}|warm-?up|download\w{0,4}|load\w{0,4}|tokeniz\w{0,4}|map"
    r"|filter|generat\w{0,4}|fetch\w{0,4}|sanity|sav\w{0,4})\b|B/s\]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A progress bar as it was drawn last. Seconds."""

    name: str  # what stands before it
    elapsed_s: float
    left_s: float


def find_remaining(logs: Sequence[LogRows], run_s: float | None, *, resumed: bool = False) -> float | None:
    """Seconds that were left when the output ended; None where it does not say. `run_s`: how long the run lasted."""
    found = [
        left for log in logs if (left := _estimate_from_rows(log.rows[-_ROWS:], run_s, resumed=resumed)) is not None
    ]
    left = max(found, default=None)
    return left if left is not None and 0 <= left <= _LONGEST_S else None


def _estimate_from_rows(rows: Iterable[str], run_s: float | None, *, resumed: bool) -> float | None:
    bars: dict[str, _Bar] = {}
    eta = step = epoch = None
    for row in (row[:_CAP] for row in rows):
        if _REMAINING_BESIDE.search(row):
            continue
        epoch = _parse_pair(_REMAINING_EPOCH.search(row)) or epoch
        step = _parse_pair(_REMAINING_STEP.search(row)) or step
        if bar := _parse_bar(row):
            bars[re.sub(r"\d+", "0", bar.name)] = bar
        elif at := _ETA.search(row):
            eta = _parse_seconds(at.groups())
    if bars:
        longest = max(bars.values(), key=lambda bar: bar.left_s)
        return longest.left_s + _estimate_further_epochs(longest, epoch, run_s)
    if eta is not None:
        return eta
    if run_s is None or resumed:
        return None
    return _estimate_in_proportion(step, run_s) if step else _estimate_in_proportion(_count_done_epochs(epoch), run_s)


def _parse_bar(row: str) -> _Bar | None:
    found = _REMAINING_BAR.match(row)
    if found is None:
        return None
    elapsed = _parse_seconds((None, None, *_split_clock(found[4])))
    return _Bar(name=found[1].strip(), elapsed_s=elapsed, left_s=_parse_seconds(found.groups()[4:]))


def _split_clock(text: str) -> tuple[str | None, str, str]:
    parts = text.split(":")
    return (parts[-3] if len(parts) > 2 else None, parts[-2] if len(parts) > 1 else "0", parts[-1] or "0")


def _estimate_further_epochs(bar: _Bar, epoch: tuple[int, int] | None, run_s: float | None) -> float:
    """Seconds of the epochs after this one, where the bar is that of one epoch: it is as old as a part of the run."""
    if epoch is None or epoch[0] >= epoch[1]:
        return 0.0
    whole_run = run_s is not None and epoch[0] > 1 and bar.elapsed_s > 0.8 * run_s
    return 0.0 if whole_run else (epoch[1] - epoch[0]) * (bar.elapsed_s + bar.left_s)


def _count_done_epochs(epoch: tuple[int, int] | None) -> tuple[int, int] | None:
    """The epoch that is shown may have just begun."""
    return (epoch[0] - 1, epoch[1]) if epoch is not None and epoch[0] > 1 else None


def _estimate_in_proportion(part: tuple[int, int] | None, run_s: float) -> float | None:
    if part is None or not 0 < part[0] <= part[1]:
        return None
    return run_s * (part[1] - part[0]) / part[0]


def _parse_pair(found: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(found[1]), int(found[2])) if found is not None and int(found[1]) <= int(found[2]) else None


def _parse_seconds(clock: Sequence[str | None]) -> float:
    """Of (days, days, hours, minutes, seconds); any but the last two may be missing."""
    days, slurm_days, hours, minutes, seconds = (int(part) if part else 0 for part in clock)
    return float((days + slurm_days) * 86400 + hours * 3600 + minutes * 60 + seconds)
