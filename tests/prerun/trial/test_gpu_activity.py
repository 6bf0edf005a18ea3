"""GPU activity as a sign of training."""

from __future__ import annotations

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial.gpu_sampler import GpuSample
from slurmwrap.prerun.trial.step_detection import BUSY_LOOKS, is_gpu_shared, read_gpu_activity


def make_samples(count: int, *, sm: float | None = 0.8, pids: tuple[int, ...] = (7,), gpus: int = 1) -> list[GpuSample]:
    return [GpuSample(at=10.0 + at, sm=sm, pids=pids) for at in range(count) for _ in range(gpus)]


def test_five_busy_samples_mean_that_training_started() -> None:
    assert read_gpu_activity(make_samples(BUSY_LOOKS), {7, 8}) == StepReading(
        count=5, source="gpu", first=10.0, last=14.0
    )


def test_fewer_busy_samples_do_not_count() -> None:
    assert read_gpu_activity(make_samples(BUSY_LOOKS - 1), {7}) == StepReading()


def test_samples_of_several_gpus_at_the_same_time_count_once() -> None:
    assert read_gpu_activity(make_samples(BUSY_LOOKS - 1, gpus=4), {7}) == StepReading()


def test_an_idle_gpu_process_does_not_count() -> None:
    assert (
        read_gpu_activity(make_samples(20, sm=0.0), {7})
        == read_gpu_activity(make_samples(20, sm=None), {7})
        == StepReading()
    )


def test_gpu_processes_of_other_jobs_do_not_count() -> None:
    assert read_gpu_activity(make_samples(20, pids=(99,)), {7}) == StepReading()


def test_busy_samples_without_process_ids_count() -> None:
    assert read_gpu_activity(make_samples(20, pids=()), {7}).count == 20


def test_a_gpu_with_a_process_of_another_job_is_shared() -> None:
    assert is_gpu_shared([*make_samples(1), *make_samples(1, pids=(7, 99))], {7})
    assert not is_gpu_shared(make_samples(2, pids=(7, 8)), {7, 8, 9})


def test_pids_of_another_namespace_do_not_show_whether_a_gpu_is_shared() -> None:
    assert not is_gpu_shared(make_samples(2, pids=(99,)), {7})
