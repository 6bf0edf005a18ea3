"""Parse gsub's --stop-at and sbatch's --signal: when a running job is to be stopped, and with which signal. Pure."""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass

DIVERGED = "diverged"  # the only value of --stop-when
_PLATEAU = re.compile(r"plateau(?::([0-9]{1,3}(?:\.[0-9]{1,6})?)%/([0-9]{1,3}(?:\.[0-9]{1,6})?)%)?", re.ASCII)
_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z]{3,6}[0-9]?|[0-9]{1,2})(?:@[0-9]+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """Stop when the loss fell by less than `gain` in the last `share` of the steps; both are shares, 0 to 1."""

    gain: float = 0.001
    share: float = 0.2


def parse_plateau(text: str) -> Plateau:
    """Return the condition of --stop-at. Raise ValueError for anything else."""
    match = _PLATEAU.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no plateau")
    if match[1] is None:
        return Plateau()
    found = Plateau(gain=float(match[1]) / 100, share=float(match[2]) / 100)
    if not (0 < found.gain < 1 and 0 < found.share < 1):
        raise ValueError(f"{text!r} has a share that is not between 0 and 100 %")
    return found


def parse_signal(text: str) -> tuple[str, bool] | None:
    """Return name (or number) of the signal of sbatch's --signal, and whether only the batch shell gets it.

    "B:USR1@300" is ("USR1", True). None for anything else, and for "".
    """
    match = _SIGNAL.fullmatch(text)
    return None if match is None else (match[2].upper(), "B" in (match[1] or "").upper())
