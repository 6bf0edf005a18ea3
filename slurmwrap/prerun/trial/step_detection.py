"""Read the steps of a trial: counted steps, else weaker signs of training (printed progress, GPU activity).

Adapter: the trial's files and its output, which is read piece by piece. Sources in order of precedence: counted steps,
backward passes and batches, text, GPU. Text ends a trial early only if nothing inside the program can be counted, and
only after a while, because the program may print steps of something else first.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from slurmwrap.inject.slurmwrap_counter import RANKS
from slurmwrap.inject.slurmwrap_torch import WEAK_STEPS
from slurmwrap.inject.slurmwrap_total_steps import FIXED, SHARED
from slurmwrap.model.resource_profile import ModelLayer
from slurmwrap.model.trial_result import ExitCall, Rehearsal, StepReading
from slurmwrap.prerun.trial import printed_progress
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.trial_spec import TrialSpec

# This part reads the files of inject/slurmwrap_counter.py. The user's program can change them, so they are not trusted.
_MIB = 1 << 20
# Maximum bytes that are read of the journal and of the list of refused commands.
_MAX_BYTES = 1 << 20
_LAYER_BYTES = 1 << 16


def read_steps(step_dir: str) -> StepReading:
    """Return the reading of a parked process, else of the process that counted most by the best source."""
    return _select_best(step_dir, [name for name in _list_names(step_dir) if name.isdigit()])


def read_job_steps(step_dir: str, job_id: str, restarts: int = 0) -> StepReading:
    """Return the reading of one run of a job from a directory that many jobs share.

    The files are named <job>.<restarts>.<node>.<pid>.
    """
    prefix = f"{job_id}.{restarts}."
    return _select_best(
        step_dir, [n for n in _list_names(step_dir) if n.startswith(prefix) and n.rpartition(".")[2].isdigit()]
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
    best = _add_model_size(best, _read(Path(step_dir, f"{name}.model"), 128))
    best = dataclasses.replace(best, layers=parse_layers(_read(Path(step_dir, f"{name}.layers"), _LAYER_BYTES)))
    return _add_total(best, _read(Path(step_dir, f"{name}.total"), 128))


def _add_model_size(reading: StepReading, text: str) -> StepReading:
    try:
        model, largest, world = map(int, text.split())
    except ValueError:
        return reading
    return dataclasses.replace(
        reading, model_mib=round(model / _MIB, 6), largest_tensor_mib=round(largest / _MIB, 6), world=world
    )


def parse_layers(text: str) -> tuple[ModelLayer, ...]:
    """Parse the file of inject/slurmwrap_model_layers.py; () if it is incomplete or something else."""
    found = []
    try:
        for line in text.splitlines():
            size, largest, micros, kind, name = line.split()
            found.append(
                ModelLayer(
                    name=name,
                    mib=round(int(size) / _MIB, 6),
                    largest_mib=round(int(largest) / _MIB, 6),
                    kind="" if kind == "-" else kind,
                    forward_s=None if int(micros) < 0 else int(micros) / 1e6,
                )
            )
    except (ValueError, OverflowError):
        return ()
    return tuple(found)


def _add_total(reading: StepReading, text: str) -> StepReading:
    try:
        total, scale = map(int, text.split())
    except ValueError:
        return reading
    if total <= reading.count or not reading.exact:
        return reading
    return dataclasses.replace(reading, total=total, total_is_shared={FIXED: False, SHARED: True}.get(scale))


def parse_record(text: str) -> StepReading | None:
    """Parse one record of the step counter; None if it is incomplete or something else."""
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
    """Return whether no Python process started after the last one that died of an exception."""
    lines = _read(Path(step_dir, "journal"), _MAX_BYTES).splitlines()
    return bool(lines) and lines[-1].startswith("crash ")


def list_starts(step_dir: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return (pid, words of the command line without directories) of every Python process that started, in order."""
    lines = (line.split() for line in _read(Path(step_dir, "journal"), _MAX_BYTES).splitlines())
    return tuple((int(line[1]), tuple(line[2:])) for line in lines if line[:1] == ["start"] and line[1].isdigit())


def is_marked(step_dir: str, name: str) -> bool:
    """Return whether a process of the trial left this mark: "torch", "optimizer" (one was created) or "generate"."""
    return Path(step_dir, name).exists()


def list_refused_commands(step_dir: str) -> tuple[str, ...]:
    """Return the Slurm commands that the shims did not execute, in order."""
    return tuple(_read(Path(step_dir, "refused"), _MAX_BYTES).splitlines())


def read_rehearsal(step_dir: str) -> Rehearsal | None:
    """Return what inject/slurmwrap_rehearsal.py recorded; None if no rehearsal has begun."""
    events = _read(Path(step_dir, "rehearsal"), _MAX_BYTES, "utf-8").splitlines()
    if not events:
        return None
    return Rehearsal(
        endings=sum(event.split(" ")[0] in ("loader", "loop", "epoch_end") for event in events),
        intervals=sum(event.startswith("interval ") for event in events),
        next_epoch="epoch" in events or events.count("epoch_end") > 1,
        refused=tuple(dict.fromkeys(event[8:] for event in events if event.startswith("refused "))),
    )


def request_rehearsal(step_dir: str) -> None:
    """Let the counting process rehearse from its next step on. Raise OSError if the request cannot be written."""
    Path(step_dir, "rehearse").touch(mode=0o600)


def list_exits(step_dir: str) -> tuple[ExitCall, ...]:
    """Return the calls of exit that Python programs and bash recorded, in order."""
    rows = (line.rsplit("\t", 2) for line in _read(Path(step_dir, "exits"), _MAX_BYTES, "utf-8").splitlines())
    return tuple(
        ExitCall(file=row[0], line=int(row[1]), in_bash=row[2] == "bash")
        for row in rows
        if len(row) == 3 and row[1].isdecimal()
    )


def _read(path: Path, cap: int, encoding: str = "ascii") -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(cap).decode(encoding, "replace")
    except OSError:
        return ""


# GPU activity by NVML is the weakest sign that the program trains.
#
# It shows that the program uses the GPU, never how many steps it made: a process of the trial is on the GPU, and its
# SMs were busy in at least this many samples (gpu_sampler.py takes about one per second).
BUSY_LOOKS = 5


def read_gpu_activity(samples: Iterable[GpuSample], pids: Collection[int]) -> StepReading:
    """Return a reading with source "gpu" and the number of samples in which a GPU of the trial was busy.

    It is empty below BUSY_LOOKS samples. `pids`: all processes that the trial has had. If the driver reports no
    processes (MIG, or pids of a container), the sample counts as the trial's, because Slurm gave these GPUs to no other
    job.
    """
    times = sorted({one.at for one in samples if (one.sm or 0) > 0 and _is_own(one, pids)})
    if len(times) < BUSY_LOOKS:
        return StepReading()
    return StepReading(count=len(times), source="gpu", first=times[0], last=times[-1])


def is_gpu_shared(samples: Iterable[GpuSample], pids: Collection[int]) -> bool:
    """Return whether processes other than the trial's were on its GPUs. `pids`: all processes that the trial has had.

    A driver that reports pids of another namespace shows none of the trial's own. Then this is unknown: False.
    """
    seen = {pid for one in samples for pid in one.pids}
    return not seen.isdisjoint(pids) and not seen <= set(pids)


def _is_own(sample: GpuSample, pids: Collection[int]) -> bool:
    return not sample.pids or not set(sample.pids).isdisjoint(pids)


TEXT_S = 60.0  # seconds after the first printed step before text alone may end a trial
TEXT_TIMES = 10  # text alone must show this multiple of the wanted steps
_MAX_NEW_BYTES = 64 << 10  # maximum bytes of new output that are read at once; if there are more, only the end is read


class StepDetector:
    """The signs of training in one trial. Call `look` about once a second."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec, self._offset = spec, 0
        self._text = printed_progress.TextProgress()
        # Time of the first printed step.
        self._since: float | None = None
        # All processes that the trial has had.
        self.pids: set[int] = set()

    def look(self, now: float, pids: Collection[int], counted: StepReading) -> None:
        """Read new output, unless steps were `counted` exactly. `pids`: the trial's processes."""
        self.pids.update(pids)
        if counted.exact:
            return
        self._text = printed_progress.read(self._read_fresh(), self._text)
        if self._since is None and self.text.count:
            self._since = now

    def _read_fresh(self) -> bytes:
        try:
            with Path(self._spec.output).open("rb") as stream:
                size = stream.seek(0, 2)
                start = max(self._offset, size - _MAX_NEW_BYTES)
                stream.seek(start)
                read = stream.read(size - start)
        except OSError:
            return b""
        skipped, self._offset = start > self._offset, size
        return read.partition(b"\n")[2] if skipped else read

    @property
    def text(self) -> StepReading:
        """The reading by the printed output, including an unfinished last line."""
        steps = printed_progress.end_progress(self._text).steps
        return StepReading(count=steps, source="text") if steps else StepReading()

    def shown(self, counted: StepReading, gpus: Iterable[GpuSample] = ()) -> StepReading:
        """Return the best reading: the first source that shows enough steps, else the first that shows any."""
        every = (counted, self.text, read_gpu_activity(gpus, self.pids))
        seen = [reading for reading in every if reading.count]
        return next((r for r in seen if is_enough(r, self._spec.steps)), seen[0] if seen else StepReading())

    def decided(self, counted: StepReading, now: float, *, last: bool) -> bool:
        """Return whether the trial may end now with the result that it trained. `last`: its time is up."""
        if last:
            return is_enough(self.shown(counted), self._spec.steps)
        if counted.count or self._since is None or now - self._since < TEXT_S:
            return False
        return self.text.count >= TEXT_TIMES * self._spec.steps and not is_using_torch(self._spec.step_dir)


def is_enough(reading: StepReading, wanted: int) -> bool:
    """Return whether the reading proves that the program trains.

    Backward passes and batches need more than `wanted`, because several may belong to one step. GPU use is no proof.
    """
    if reading.source in ("backward", "dataloader"):
        return reading.count >= max(WEAK_STEPS, wanted)
    return reading.source not in ("", "gpu") and reading.count >= wanted


def is_using_torch(step_dir: str) -> bool:
    """Return whether a Python process of the trial imported torch, so that a step of its optimizer can be expected."""
    return is_marked(step_dir, "torch")
