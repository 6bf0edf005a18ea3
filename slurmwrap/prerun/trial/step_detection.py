"""What shows that a trial trains where its steps cannot be counted: printed progress and GPU activity beside the files.

Edge: the trial's output, read piece by piece. Order of a reading: what was counted, backward passes and batches, text,
GPU. Text ends a trial early only where nothing inside the program could ever count, so after a while: the program may
print steps of something else first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from slurmwrap.inject.slurmwrap_torch import WEAK_STEPS
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import gpu_activity, printed_progress
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.step_files import is_marked
from slurmwrap.prerun.trial.trial_spec import TrialSpec

TEXT_S = 60.0  # since the first printed step, before text alone ends a trial
TEXT_TIMES = 10  # and so many times the steps that are wanted
_AT_ONCE = 64 << 10  # bytes of new output that are read; of more only the end


class StepDetector:
    """The signs of one trial. `look` about once a second."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec, self._offset = spec, 0
        self._text = printed_progress.TextProgress()
        self._since: float | None = None  # clock of the first printed step
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
        every = (counted, self.text, gpu_activity.read_gpu_activity(gpus, self._pids))
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
    """It shows that training goes on. Three backward passes may be parts of one step; the GPU's use never tells."""
    if reading.source in ("backward", "dataloader"):
        return reading.count >= max(WEAK_STEPS, wanted)
    return reading.source not in ("", "gpu") and reading.count >= wanted


def is_using_torch(step_dir: str) -> bool:
    """Some Python of the trial imported torch, so a step of its optimizer is what to wait for."""
    return is_marked(step_dir, "torch")
