"""Parse --preemptible and --lease of gsub: when a running job may leave its GPUs, and after which signal. Pure."""

from __future__ import annotations

import re

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.resource_shape import parse_time_limit
from slurmwrap.sbatch.stop_option import parse_signal

ANY_CHECKPOINT = "yes"  # --preemptible without a value: at a checkpoint that the job writes anyway
# As long as the longest sbatch takes for --signal (65535 s).
_MOST_S = 65_535
_SPAN = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHORTEST_LEASE_S, LONGEST_LEASE_S = 60, 30 * 86400
PREEMPTIBLE_HINT = "a signal and seconds, as sbatch's --signal: --preemptible=USR1@120, B:USR1@120 for the batch shell"
LEASE_HINT = "a time from 1 minute on: --lease=2h, or as sbatch's --time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptible:
    """How a job may be taken from its GPUs. Without a signal it is after a checkpoint that it writes anyway."""

    signal: str = ""
    batch: bool = False  # only the batch shell gets the signal
    seconds: int = 0  # for the checkpoint, after the signal


def parse_preemptible(text: str) -> Preemptible | None:
    """Return what --preemptible says; None for "" (it was not given). Raise ValueError for anything else."""
    if text in ("", ANY_CHECKPOINT):
        return Preemptible() if text else None
    signal, _, seconds = text.rpartition("@")
    found = parse_signal(signal) if "@" not in signal else None
    if found is None or not (seconds.isascii() and seconds.isdecimal() and 0 < int(seconds) <= _MOST_S):
        raise ValueError(f"{text!r} is no signal with seconds")
    return Preemptible(signal=found[0], batch=found[1], seconds=int(seconds))


def parse_lease(text: str) -> int:
    """Return the seconds of --lease: "2h", "90m", or a time as for sbatch's --time. Raise ValueError for others."""
    span = _SPAN.fullmatch(text)
    seconds = int(span[1]) * _UNITS[span[2]] if span else parse_time_limit(text)
    if seconds is None or not SHORTEST_LEASE_S <= seconds <= LONGEST_LEASE_S:
        raise ValueError(f"{text!r} is no time from {SHORTEST_LEASE_S} s on")
    return seconds
