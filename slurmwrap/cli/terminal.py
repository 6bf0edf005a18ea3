"""Small helpers of the commands that show: colour on a terminal only, --since, the reader's time zone."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import TextIO

from slurmwrap.console import STYLES, is_colour_wanted
from slurmwrap.errors import UsageError
from slurmwrap.report.job_report.job_report_text import Paint, plain

_UNITS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PERIOD = re.compile(r"([0-9]{1,6})(m|min|h|d|w)")


def painter(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Paint:
    """Colours for `stream` (stdout), where they are wanted (console.is_colour_wanted)."""
    stream = sys.stdout if stream is None else stream
    return paint if is_colour_wanted(stream, environ) else plain


def paint(text: str, style: str) -> str:
    """`text` in one of the styles of a terminal; every line by itself, so that a pager may cut between them."""
    return "\n".join(f"\033[{STYLES[style]}m{line}\033[0m" for line in text.split("\n"))


# Columns: longer lines are hard to read.
WIDEST = 110


def columns(stream: TextIO | None = None, *, least: int = 60, most: int = WIDEST) -> int:
    """What a page may be wide: the terminal's width within limits, and 80 where `stream` (stdout) is none."""
    stream = sys.stdout if stream is None else stream
    try:
        wide = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        wide = 0
    # A serial console says 0.
    return max(least, min(most, wide)) if wide else 80


def since(text: str, now: float, zone: tzinfo | None = None, *, option: str = "--since") -> float:
    """`24h`, `7d`, `2w`, `30min`, or a date (`2026-11-20`, `2026-11-20T06:00`) -> Unix seconds. UsageError."""
    period = _PERIOD.fullmatch(text)
    if period:
        return now - int(period[1]) * _UNITS[period[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, OverflowError):
        hint = "write it as 24h, 7d or 2026-11-20"
        raise UsageError(f"{option} '{text}' is neither a period nor a date", hint=hint) from None


def local_zone() -> tzinfo | None:
    """The zone of the reader's clock."""
    return datetime.now().astimezone().tzinfo
