"""Reads the time that a row of a log carries, to order what ranks wrote into different files. Pure.

Loggers leave out the year (glog, syslog, PyTorch's C++ log) or the zone, so a time is only compared with one of the
same kind; over New Year the order is wrong.
"""

from __future__ import annotations

import re

from slurmwrap.diagnosis.log_rows import rank_of
from slurmwrap.fast_dataclasses import dataclass

LOOK_BACK = 60  # rows before one without a time that are searched for the last time printed
_HEAD = 90  # a time is at the start of a row, after a rank's prefix
_TIME = r"(?P<h{0}>\d\d):(?P<m{0}>\d\d):(?P<s{0}>\d\d)(?:[.,](?P<f{0}>\d{{1,9}}))?"
_STAMP = re.compile(
    r"(?P<y>20\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]"
    + _TIME.format("i")
    + r"(?P<zone>Z|[+-]\d\d:?\d\d)?|(?:^|[\s\[:>|(])[IWEFD](?P<gm>\d\d)(?P<gd>\d\d) "
    + _TIME.format("g")
    + r"|(?:^|[\s\[:>|])(?P<sm>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<sd>\d{1,2}) "
    + _TIME.format("s")
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Seconds within a year of 31-day months, good for comparing and for nothing else. `utc`: the row says so."""

    seconds: float
    utc: bool


def parse_stamp(row: str) -> Stamp | None:
    """The time that `row` carries near its start: ISO 8601, glog and PyTorch (`[E1120 12:00:00.123`), syslog."""
    found = _STAMP.search(row[:_HEAD])
    if found is None:
        return None
    if found["gm"]:
        month, day, kind = int(found["gm"]), int(found["gd"]), "g"
    elif found["sm"]:
        month, day, kind = _MONTHS.index(found["sm"]) + 1, int(found["sd"]), "s"
    else:
        month, day, kind = int(found["mo"]), int(found["d"]), "i"
    hours, minutes, seconds = (int(found[name + kind]) for name in "hms")
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds <= 60):
        return None
    fraction = float(f"0.{found['f' + kind] or 0}")
    days = (month - 1) * 31 + day - 1
    return Stamp(
        seconds=days * 86400 + hours * 3600 + minutes * 60 + seconds + fraction,
        utc=found["zone"] is not None and found["zone"] in ("Z", "+00:00", "+0000"),
    )


def find_last_stamp(rows: tuple[str, ...], row: int) -> Stamp | None:
    """The time of `row`, else the last one that the same rank printed before it: it did not happen earlier."""
    rank = rank_of(rows[row])
    for index in range(row, max(-1, row - LOOK_BACK), -1):
        if (stamp := parse_stamp(rows[index])) and rank_of(rows[index]) == rank:
            return stamp
    return None


def is_comparable(stamps: list[Stamp | None]) -> bool:
    """Whether all are known and speak of the same zone."""
    return all(stamp is not None for stamp in stamps) and len({stamp.utc for stamp in stamps if stamp}) <= 1
