"""Speeds of the same work on more GPUs, by complete runs, and the advice for a request that they do not support."""

from __future__ import annotations

from slurmwrap.gsub.explain_gpus import describe_enough_gpus
from slurmwrap.model.resource_profile import RunSpeed
from slurmwrap.profiling.gpu_scaling import describe_scaling, list_scaling, make_run_speed, merge_speeds

EPOCHS, STEPS = (("epochs", "90"),), (("max-steps", "1000"),)


def make_run(
    gpus: int, run_s: float, length: tuple[tuple[str, str], ...] = EPOCHS, rate: float | None = None, variant: str = "v"
) -> RunSpeed:
    found = make_run_speed(
        gpus=gpus, nodes=-(-gpus // 8), run_s=run_s, steps_per_s=rate, at=float(gpus), variant=variant, length=length
    )
    assert found is not None
    return found


def test_runs_of_the_same_work_are_compared_by_their_time() -> None:
    points = list_scaling((make_run(1, 7000), make_run(8, 1148), make_run(16, 1000), make_run(32, 1, variant="other")))
    assert describe_scaling(points) == "8 GPUs: 6.1x of one (1 run); 16: 7.0x (1 run)"
    assert describe_enough_gpus(points, 16).startswith("it asks for 16 GPUs, but 16 were only 1.1 times as fast as 8")
    assert describe_enough_gpus(points, 32) and not describe_enough_gpus(points, 8)


def test_work_that_is_given_in_steps_is_compared_by_steps_times_gpus() -> None:
    runs = (make_run(1, 100, STEPS, rate=10.0), make_run(8, 110, STEPS, rate=9.0))
    assert describe_scaling(list_scaling(runs)) == "8 GPUs: 7.2x of one (1 run); if each GPU keeps its batch"
    # Without counted steps, runs of the same number of steps say nothing about the work.
    assert list_scaling((make_run(1, 100, STEPS), make_run(8, 110, STEPS))) == ()


def test_one_number_of_gpus_is_no_curve_and_repeated_runs_are_averaged() -> None:
    known: tuple[RunSpeed, ...] = ()
    for run_s in (100.0, 200.0):
        known = merge_speeds(known, make_run(8, run_s))
    assert [(one.runs, one.run_s) for one in known] == [(2, 150.0)]
    assert list_scaling(known) == () and list_scaling(()) == ()
    assert make_run_speed(gpus=0, nodes=1, run_s=5, steps_per_s=None, at=0, variant="", length=()) is None
    for number in range(40):
        known = merge_speeds(known, make_run(8, 1.0, variant=str(number)))
    assert len(known) == 24
