"""What shows that a trial trains where its steps cannot be counted: printed progress and GPU activity.

Edge: the trial's output, read piece by piece. Order of a reading: what was counted, backward passes and batches, text,
GPU. Text ends a trial early only where nothing inside the program could ever count, so after a while: the program may
print steps of something else first.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from slurmwrap.inject.slurmwrap_counter import RANKS
from slurmwrap.inject.slurmwrap_torch import WEAK_STEPS
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import printed_progress
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.trial_spec import TrialSpec

# Reads what inject/slurmwrap_counter.py writes. Edge: the trial's files, which the user's program can change.
_MIB = 1 << 20
# bytes of the journal and of the list of refused commands that are read
_CAP = 1 << 20


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


# Whether a trial has its GPU at work, by NVML: the weakest sign that training goes on.
#
# It says "started", never how many steps: a process of the trial is on the GPU, and its SMs were busy in five looks.
# The looks are handed in (gpu_sampler.py takes them, about one a second).
BUSY_LOOKS = 5


def read_gpu_activity(samples: Iterable[GpuSample], pids: Collection[int]) -> StepReading:
    """Source "gpu" with the number of looks at which a GPU with a trial's process was busy; empty below BUSY_LOOKS.

    `pids`: every process that the trial has had. A driver that names no processes (MIG, a container's own pids) is
    believed as it is, since Slurm gave these GPUs to no one else.
    """
    times = sorted({one.at for one in samples if (one.sm or 0) > 0 and _is_own(one, pids)})
    if len(times) < BUSY_LOOKS:
        return StepReading()
    return StepReading(count=len(times), source="gpu", first=times[0], last=times[-1])


def _is_own(sample: GpuSample, pids: Collection[int]) -> bool:
    return not sample.pids or not set(sample.pids).isdisjoint(pids)


TEXT_S = 60.0  # since the first printed step, before text alone ends a trial
TEXT_TIMES = 10  # and so many times the steps that are wanted
_AT_ONCE = 64 << 10  # bytes of new output that are read; of more only the end


class StepDetector:
    """The signs of one trial. `look` about once a second."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec, self._offset = spec, 0
        self._text = printed_progress.TextProgress()
        # Clock of the first printed step.
        self._since: float | None = None
        self._pids: set[int] = set()

    def look(self, now: float, pids: Collection[int], counted: StepReading) -> None:
        """Takes in what was printed since, where nothing better was `counted`. `pids`: the trial's processes."""
        self._pids.update(pids)
        if counted.exact:
            return
        self._text = printed_progress.read(self._read_fresh(), self._text)
        if self._since is None and self.text.count:
            self._since = now

    def _read_fresh(self) -> bytes:
        try:
            with Path(self._spec.output).open("rb") as stream:
                size = stream.seek(0, 2)
                start = max(self._offset, size - _AT_ONCE)
                stream.seek(start)
                read = stream.read(size - start)
        except OSError:
            return b""
        skipped, self._offset = start > self._offset, size
        return read.partition(b"\n")[2] if skipped else read

    @property
    def text(self) -> StepReading:
        """By what was printed, the unfinished last line with it."""
        steps = printed_progress.end_progress(self._text).steps
        return StepReading(count=steps, source="text") if steps else StepReading()

    def shown(self, counted: StepReading, gpus: Iterable[GpuSample] = ()) -> StepReading:
        """The best reading: the first that shows enough, else the first that shows anything."""
        every = (counted, self.text, read_gpu_activity(gpus, self._pids))
        seen = [reading for reading in every if reading.count]
        return next((r for r in seen if is_enough(r, self._spec.steps)), seen[0] if seen else StepReading())

    def decided(self, counted: StepReading, now: float, *, last: bool) -> bool:
        """The trial may end here as one that trained. `last`: its time is up."""
        if last:
            return is_enough(self.shown(counted), self._spec.steps)
        if counted.count or self._since is None or now - self._since < TEXT_S:
            return False
        return self.text.count >= TEXT_TIMES * self._spec.steps and not is_using_torch(self._spec.step_dir)


def is_enough(reading: StepReading, wanted: int) -> bool:
    """It shows that training goes on. Three backward passes may be parts of one step; the GPU's use never shows it."""
    if reading.source in ("backward", "dataloader"):
        return reading.count >= max(WEAK_STEPS, wanted)
    return reading.source not in ("", "gpu") and reading.count >= wanted


def is_using_torch(step_dir: str) -> bool:
    """Some Python of the trial imported torch, so a step of its optimizer is what to wait for."""
    return is_marked(step_dir, "torch")
