"""Times and durations as sacct prints them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

UNSET = frozenset(("", "unknown", "none", "n/a", "invalid"))
_NO_LIMIT = frozenset((*UNSET, "unlimited", "partition_limit", "infinite", "not_set"))
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})(?:\.\d+)?", re.ASCII)


def parse_stamp(text: str) -> float | None:
    """Seconds since 1970; None where Slurm says that it did not happen. ValueError for anything else.

    Unix seconds (`SLURM_TIME_FORMAT=%s`) and times with a zone are exact. Slurm's usual "2026-11-01T03:04:05" is the
    clock on the wall where sacct ran, without a zone: it is taken as if it were UTC, so that nothing depends on where
    the dump is read. Where that clock jumps in spring and autumn, times on both sides of the jump are an hour apart.
    """
    if text.isdecimal():
        return float(text) or None
    if text.lower() in UNSET:
        return None
    if text[4:5] != "-":  # fromisoformat takes "20261101" too
        raise ValueError(text)
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def parse_elapsed(text: str) -> float | None:
    """Seconds of "[days-][hours:]minutes:seconds" or of plain seconds; None: not said. ValueError for anything else."""
    if text.isdecimal():
        return float(text)
    if text.lower() in UNSET:
        return None
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_limit(text: str) -> float | None:
    """Seconds of a time limit: plain minutes (TimelimitRaw) or a duration; None: no limit, or the partition's."""
    if text.lower() in _NO_LIMIT:
        return None
    return float(text) * 60 if text.isdecimal() else parse_elapsed(text)
