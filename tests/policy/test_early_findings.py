"""Findings about running jobs: figures of the evaluation, and what it does not play."""

from __future__ import annotations

import early_findings as bench
import pytest

from slurmwrap.config.config_defaults import Early
from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.diagnosis.running_output import OutputSigns
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import DIVERGED, HOST, GpuUse
from slurmwrap.policy.early_findings import (
    CountedNow,
    RunningLook,
    RunningSeries,
    WatchedRun,
    add_look,
    find_signs,
    get_usual_gap_s,
)

SETTINGS = Early()
RUN = WatchedRun(began=0.0, gpus=1, cpus=8)


def count(at: float, steps: int, *, last: float | None = None, not_finite: int = 0) -> RunningLook:
    counter = CountedNow(
        count=steps, total=steps, processes=1, at=at if last is None else last, per_s=1.0, not_finite=not_finite
    )
    return RunningLook(at=at, counter=counter)


def test_some_jobs_of_each_kind() -> None:
    rows = [row for row, _ in bench.run_all(seed=3, share=0.0)]
    total = bench.sum_up(rows)
    assert (total.precision, total.recall) == (1.0, 1.0)
    assert {row.name: row.kinds for row in rows if not row.bad and row.kinds} == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_precision_and_time_of_all_jobs(seed: int) -> None:
    total = bench.sum_up(row for row, _ in bench.run_all(seed))
    assert total.good >= 200 and total.bad >= 100
    assert total.precision >= bench.PRECISION and total.recall >= bench.PRECISION
    assert total.in_time >= bench.PRECISION


def test_a_pause_is_one_gap_and_the_other_steps_share_the_rest() -> None:
    series = RunningSeries(run=RUN)
    for look in (count(100, 100), count(220, 100, last=100), count(340, 100, last=100), count(460, 200)):
        series = add_look(series, look, SETTINGS)
    assert series.gaps[-2:] == ((240.0, 1), (pytest.approx(120 / 99), 99))
    assert series.longest_s == 240 and get_usual_gap_s(series) == pytest.approx(1.2, abs=0.1)


def test_another_program_of_the_script_with_fewer_steps_goes_on() -> None:
    """The total of all processes grows although the one with most steps has ended."""
    series = add_look(RunningSeries(run=RUN), count(1000, 5000), SETTINGS)
    later = RunningLook(at=1120, counter=CountedNow(count=5000, total=5040, processes=2, at=1119, per_s=1.0))
    assert add_look(series, later, SETTINGS).step_at == 1119


def test_the_counters_loss_is_enough_and_is_no_text() -> None:
    series = RunningSeries(run=RUN)
    for at in (120, 240, 360):
        series = add_look(series, count(at, at, not_finite=at), SETTINGS)
    (sign,) = find_signs(series, (), 360, SETTINGS)
    assert (sign.kind, sign.n, sign.confirmed) == (DIVERGED, 360, True)


def test_old_or_missing_samples_of_gpus_show_nothing() -> None:
    series = RunningSeries(run=RUN)
    for at in range(0, 1200, 120):
        series = add_look(series, count(at, 10 + at), SETTINGS)
    series = add_look(series, RunningLook(at=1900), SETTINGS)
    key = RunKey(cluster="c", job_id=1, submit_time=1)

    def found(use_pct: tuple[float, ...], began: float) -> bool:
        use = GpuUse(
            attempt=key, node="n", gpu=0, began=began, interval_s=60, use_pct=use_pct, mem_mib=(),
            processes=(1,) * len(use_pct),
        )  # fmt: skip
        return bool(find_signs(series, (use,), 1900, SETTINGS))

    assert found((0.0,) * 30, 60)
    assert not found((0.0,) * 20, 60)  # the newest one is 11 minutes old
    assert not found((0.0,) * 5, 1560)  # too few
    assert not found((-1.0,) * 30, 60)  # unknown
    assert not found((*(0.0,) * 29, 3.0), 60)
    assert not find_signs(series, (), 1900, SETTINGS)


def test_a_job_without_gpus_or_cpu_time_is_never_called_stuck() -> None:
    series = RunningSeries(run=WatchedRun(began=0.0))
    for at in range(0, 1200, 120):
        series = add_look(series, count(at, 10 + at), SETTINGS)
    assert find_signs(add_look(series, RunningLook(at=9e5), SETTINGS), (), 9e5, SETTINGS) == ()


@pytest.mark.parametrize(("cpus", "found"), [(10.0, True), (900.0, False), (-1.0, False)])
def test_the_cpus_of_the_nodes_decide_where_no_gpu_is_known(cpus: float, found: bool) -> None:
    series = RunningSeries(run=RUN)
    for at in range(0, 1200, 120):
        series = add_look(series, count(at, 10 + at), SETTINGS)
    series = add_look(series, RunningLook(at=1900), SETTINGS)
    host = GpuUse(
        attempt=RunKey(cluster="c", job_id=1, submit_time=1), node="n", gpu=HOST, began=60, interval_s=60,
        use_pct=(cpus,) * 30, mem_mib=(1,) * 30, processes=(-1,) * 30,
    )  # fmt: skip
    assert bool(find_signs(series, (host,), 1900, SETTINGS)) is found


def test_no_look_shows_nothing() -> None:
    series = add_look(RunningSeries(run=RUN), RunningLook(at=9e5, signs=OutputSigns()), SETTINGS)
    assert find_signs(series, (), 9e5, SETTINGS) == ()


def test_a_late_end_names_the_gpu_whose_clock_was_held_down() -> None:
    shown = ShownProgress(done=300, total=1000, left_s=7000.0)
    run = WatchedRun(began=0.0, limit_s=4000, gpus=2)
    series = replace(RunningSeries(run=run), shown=(3000.0, shown), late_since=0.0)
    key = RunKey(cluster="c", job_id=1, submit_time=1)
    fast = GpuUse(attempt=key, node="n1", gpu=0, began=0, interval_s=60, use_pct=(), mem_mib=(), processes=())
    slow = replace(fast, gpu=1, clocks={"busy": 40.0, "slowed": 31.0, "hw_thermal": 31.0, "sm": 0.62})
    (alone,) = find_signs(series, (fast,), 3000, SETTINGS)
    (named,) = find_signs(series, (fast, slow), 3000, SETTINGS)
    assert (named.kind, named.n) == (alone.kind, alone.n)
    slowed = "GPU 1 of n1 was slowed down in 31 of 40 minutes of use (hw_thermal 31)"
    assert named.words == f"{alone.words}; {slowed}, its SM clock was at 62 % of its maximum"
