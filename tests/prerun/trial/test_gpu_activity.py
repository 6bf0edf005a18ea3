"""GPU activity as a sign of training."""

from __future__ import annotations

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.step_detection import BUSY_LOOKS, read_gpu_activity


def looks(count: int, *, sm: float | None = 0.8, pids: tuple[int, ...] = (7,), gpus: int = 1) -> list[GpuSample]:
    return [GpuSample(at=10.0 + at, sm=sm, pids=pids) for at in range(count) for _ in range(gpus)]


def test_five_busy_looks_say_that_it_started() -> None:
    assert read_gpu_activity(looks(BUSY_LOOKS), {7, 8}) == StepReading(count=5, source="gpu", first=10.0, last=14.0)


def test_fewer_say_nothing() -> None:
    assert read_gpu_activity(looks(BUSY_LOOKS - 1), {7}) == StepReading()


def test_several_gpus_at_one_look_count_once() -> None:
    assert read_gpu_activity(looks(BUSY_LOOKS - 1, gpus=4), {7}) == StepReading()


def test_a_process_that_is_there_and_idle_says_nothing() -> None:
    assert read_gpu_activity(looks(20, sm=0.0), {7}) == read_gpu_activity(looks(20, sm=None), {7}) == StepReading()


def test_other_peoples_processes_say_nothing() -> None:
    assert read_gpu_activity(looks(20, pids=(99,)), {7}) == StepReading()


def test_a_driver_that_names_no_process_is_believed() -> None:
    assert read_gpu_activity(looks(20, pids=()), {7}).count == 20
