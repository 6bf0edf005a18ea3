"""Small words of `slurmwrap watch`: spans, clocks, rates, bars, and rows that fit the terminal. Pure."""

from __future__ import annotations

from datetime import datetime, tzinfo
from textwrap import wrap

from slurmwrap.escape import harmless

# Columns of a row's name.
_LABEL = 9
_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=+*#@"


def sparkline(rates: tuple[float, ...], unicode: bool = True, width: int = 20, most: float | None = None) -> str:
    """The last rates as bars from 0 to `most`, or to the greatest of them."""
    shown, bars = rates[-width:], _BARS if unicode else _ASCII
    most = max(shown, default=0.0) if most is None else most
    if len(shown) < 2 or most <= 0:
        return ""
    return "".join(bars[min(len(bars) - 1, int(rate / most * (len(bars) - 1) + 0.5))] for rate in shown)


def bar(share: float, unicode: bool = True, width: int = 10) -> str:
    """How much of a whole: "███░░░░░░░", or "[###-------]" where the terminal knows ASCII alone."""
    full = max(0, min(width, int(width * share)))
    return f"{'█' * full}{'░' * (width - full)}" if unicode else f"[{'#' * full}{'-' * (width - full)}]"


_STATES = {
    "COMPLETING": "ending",
    "CONFIGURING": "starting",
    "TIMEOUT": "time limit reached",
    "DEADLINE": "deadline reached",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "boot failed",
}


def state_word(state: str) -> str:
    """Slurm's state, in small letters and plain."""
    return _STATES.get(state, state.lower().replace("_", " "))


def rate_word(per_s: float) -> str:
    """Steps per second, or per minute where they are slow."""
    return f"{per_s:.3g}/s" if per_s >= 0.1 else f"{per_s * 60:.3g}/min"


def span(seconds: float) -> str:
    """How long, in the unit that says it best."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    return (
        f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} d {minutes % 1440 // 60} h"
    )


def hms(seconds: float) -> str:
    """As Slurm writes times: d-h:mm:ss."""
    whole = max(0, int(seconds))
    days = f"{whole // 86400}-" if whole >= 86400 else ""
    return f"{days}{whole // 3600 % 24}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def clock(at: float, now: float, zone: tzinfo | None, *, seconds: bool = False) -> str:
    """The reader's clock; with the date where it is not today's."""
    moment, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    form = "%H:%M:%S" if seconds else "%H:%M"
    return moment.strftime(form if moment.date() == today.date() else f"%m-%d {form}")


def flat(text: str) -> str:
    """User text on one line, harmless to a terminal."""
    return harmless(" ".join(text.split()))


def row(label: str, text: str, columns: int) -> list[str]:
    """A row in lines. What does not fit goes on below itself, on a narrow terminal further to the left."""
    wide = columns >= 60
    first = f"{label:{_LABEL}}" if wide or not label else f"{label} "
    indent = " " * _LABEL if wide else "  "
    return wrap(
        text, max(20, columns), initial_indent=first if label else indent, subsequent_indent=indent,
        break_on_hyphens=False,
    )  # fmt: skip
