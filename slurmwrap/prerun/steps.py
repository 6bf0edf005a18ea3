"""Reads what inject/slurmwrap_step.py writes. Edge: files of the trial, which the user's program could have changed."""

from __future__ import annotations

import os
from pathlib import Path

from slurmwrap.prerun.result import StepReading

_CAP = 1 << 20  # bytes of the journal and of the list of refused commands that are read


def read_steps(step_dir: str) -> StepReading:
    """The reading of the process that counted most; of two, the one that parked."""
    best = StepReading()
    try:
        names = [entry.name for entry in os.scandir(step_dir) if entry.name.isdigit()]
    except OSError:
        return best
    for name in names:
        found = parse_record(_read(Path(step_dir, name), 128))
        if found is not None and (found.parked, found.count) > (best.parked, best.count):
            best = found
    return best


def parse_record(text: str) -> StepReading | None:
    """One record; None when it is no record of ours (half written, or something else)."""
    try:
        count, source, first, last, memory, parked = text.split()
        return StepReading(
            count=int(count),
            source=source,
            first=float(first),
            last=float(last),
            gpu_mem_mib=int(memory),
            parked=parked == "1",
        )
    except ValueError:
        return None


def last_python_crashed(step_dir: str) -> bool:
    """True when no Python started after the last one that died of an exception."""
    lines = _read(Path(step_dir, "journal"), _CAP).splitlines()
    return bool(lines) and lines[-1].startswith("crash ")


def refused(step_dir: str) -> tuple[str, ...]:
    """The Slurm commands that the shims left out, in order."""
    return tuple(_read(Path(step_dir, "refused"), _CAP).splitlines())


def _read(path: Path, cap: int) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(cap).decode("ascii", "replace")
    except OSError:
        return ""
