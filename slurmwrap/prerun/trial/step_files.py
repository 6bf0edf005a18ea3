"""Reads what inject/slurmwrap_counter.py writes. Edge: the trial's files, which the user's program can change."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from slurmwrap.inject.slurmwrap_counter import RANKS
from slurmwrap.model.trial_result import StepReading

_MIB = 1 << 20
_CAP = 1 << 20  # bytes of the journal and of the list of refused commands that are read


def read_steps(step_dir: str) -> StepReading:
    """The reading of the process that counted most by the best source; before all others, one that parked."""
    return _select_best(step_dir, [name for name in _list_names(step_dir) if name.isdigit()])


def read_job_steps(step_dir: str, job_id: str, restarts: int = 0) -> StepReading:
    """The same of one attempt of one job in a directory that many share (files <job>.<restarts>.<node>.<pid>)."""
    ours = f"{job_id}.{restarts}."
    return _select_best(
        step_dir, [n for n in _list_names(step_dir) if n.startswith(ours) and n.rpartition(".")[2].isdigit()]
    )


def _list_names(step_dir: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(step_dir)]
    except OSError:
        return []


def _select_best(step_dir: str, names: Iterable[str]) -> StepReading:
    found = {name: record for name in names if (record := parse_record(_read(Path(step_dir, name), 128)))}
    if not found:
        return StepReading()
    name, best = max(found.items(), key=lambda item: (item[1].parked, RANKS.get(item[1].source, 0), item[1].count))
    return _add_model_size(best, _read(Path(step_dir, f"{name}.model"), 128))


def _add_model_size(reading: StepReading, text: str) -> StepReading:
    try:
        whole, largest, world = map(int, text.split())
    except ValueError:
        return reading
    return dataclasses.replace(
        reading, model_mib=round(whole / _MIB, 6), largest_tensor_mib=round(largest / _MIB, 6), world=world
    )


def parse_record(text: str) -> StepReading | None:
    """One record; None when it is no record of slurmwrap's (half written, or something else)."""
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


def has_last_python_crashed(step_dir: str) -> bool:
    """True when no Python started after the last one that died of an exception."""
    lines = _read(Path(step_dir, "journal"), _CAP).splitlines()
    return bool(lines) and lines[-1].startswith("crash ")


def list_starts(step_dir: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """(pid, the words of its command line without folders) of every Python that started, in order."""
    lines = (line.split() for line in _read(Path(step_dir, "journal"), _CAP).splitlines())
    return tuple((int(line[1]), tuple(line[2:])) for line in lines if line[:1] == ["start"] and line[1].isdigit())


def is_marked(step_dir: str, name: str) -> bool:
    """Some process of the trial left this mark: "torch", "optimizer" (one was made), "generate"."""
    return Path(step_dir, name).exists()


def list_refused_commands(step_dir: str) -> tuple[str, ...]:
    """The Slurm commands that the shims left out, in order."""
    return tuple(_read(Path(step_dir, "refused"), _CAP).splitlines())


def _read(path: Path, cap: int) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(cap).decode("ascii", "replace")
    except OSError:
        return ""
