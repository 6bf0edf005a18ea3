"""The model of Slurm's main and backfill schedulers: start times, and properties for every load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.demand import Server
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.queue_policies import make_policy
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome

ONE = make_equal_servers(1, gpus=8, cpus=24, mem_gb=80)
TWO = make_equal_servers(2, gpus=8, cpus=24, mem_gb=80)
PARAMS = SchedulerParams(resolution_s=0.0, group_s=0.0, backfill_s=30.0)
NO_BACKFILL = replace(PARAMS, backfill_s=0.0)


def job(number: int, gpus: int, work_s: float, **more: object) -> SimJob:
    known = {"submit_s": 0.0, "limit_s": work_s, **more}
    return SimJob(number=number, job=f"j{number}", work_s=work_s, gpus=gpus, **known)  # type: ignore[arg-type]


def run(
    jobs: Sequence[SimJob], servers: Sequence[Server] = ONE, world: SchedulerParams = PARAMS, **more: object
) -> SimOutcome:
    return play_backfill(jobs, servers, world=world, profiles={}, **more)  # type: ignore[arg-type]


def test_jobs_start_in_order_as_soon_as_they_fit() -> None:
    outcome = run([job(n, 1, 100.0) for n in range(9)])
    assert outcome == SimOutcome(
        mode="slurm",
        began_s=(0.0,) * 8 + (100.0,),
        ended_s=(100.0,) * 8 + (200.0,),
        held_s=(100.0,) * 9,
        servers=(1,) * 9,
        steps=outcome.steps,
    )


def test_backfill_starts_a_job_that_ends_before_the_first_waiting_job_starts() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 100.0), job(3, 2, 101.0)]
    assert run(jobs).began_s == (0.0, 100.0, 0.0, 200.0)


def test_without_backfill_no_job_passes_another() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 100.0)]
    assert run(jobs, world=NO_BACKFILL).began_s == (0.0, 100.0, 200.0)


def test_backfill_runs_at_its_interval() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 20.0, submit_s=1.0)]
    assert run(jobs).began_s == (0.0, 100.0, 30.0)


def test_backfill_reserves_whole_nodes_for_a_planned_job() -> None:
    """Job 2 would end after the planned start of job 1 and needs only GPUs that job 1 leaves; backfill counts nodes."""
    jobs = [job(0, 6, 100.0), job(1, 6, 100.0), job(2, 2, 150.0)]
    assert run(jobs).began_s == (0.0, 100.0, 100.0)


def test_no_nodes_are_reserved_for_a_job_that_would_start_after_the_window() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 150.0)]
    assert run(jobs, world=replace(PARAMS, window_s=99.0)).began_s == (0.0, 150.0, 0.0)


def test_backfill_tests_at_most_max_job_test_jobs() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 8, 100.0), job(3, 2, 50.0)]
    assert run(jobs, world=replace(PARAMS, max_job_test=2)).began_s == (0.0, 100.0, 200.0, 300.0)


def test_reservations_begin_at_multiples_of_the_resolution() -> None:
    """Job 1 is planned at 100 s, and job 2 would end at 90 s."""
    jobs = [job(0, 6, 100.0), job(1, 8, 10.0), job(2, 2, 90.0)]
    assert run(jobs).began_s[2] == 0.0
    assert run(jobs, world=replace(PARAMS, resolution_s=60.0)).began_s[2] == 110.0


def test_grouped_ends_of_running_jobs_delay_a_planned_start() -> None:
    """Job 2 could start at 100 s. If it is planned for 149 s, the end of job 1, job 3 can run until 120 s."""
    jobs = [job(0, 6, 100.0), job(1, 8, 149.0), job(2, 8, 10.0), job(3, 2, 120.0)]
    assert run(jobs, TWO).began_s == (0.0, 0.0, 100.0, 110.0)
    assert run(jobs, TWO, replace(PARAMS, group_s=30.0)).began_s == (0.0, 0.0, 120.0, 0.0)


def test_backfill_uses_a_gap_before_planned_jobs() -> None:
    """Jobs 1 and 2 are planned one after the other on both servers. Job 3 fits before them, job 4 does not."""
    jobs = [job(0, 12, 100.0), job(1, 16, 50.0), job(2, 16, 50.0), job(3, 4, 100.0), job(4, 4, 101.0)]
    assert run(jobs, TWO).began_s == (0.0, 100.0, 150.0, 0.0, 200.0)


def test_a_job_is_killed_at_its_limit() -> None:
    outcome = run([job(0, 8, 100.0, limit_s=60.0), job(1, 8, 10.0)])
    assert (outcome.ended_s, outcome.held_s) == ((60.0, 70.0), (60.0, 10.0))


def test_no_job_is_killed_at_an_assumed_limit() -> None:
    assert run([job(0, 8, 100.0, limit_s=None)], world=replace(PARAMS, limit_s=10.0)).ended_s == (100.0,)


def test_only_consolidate_waits_for_the_fewest_servers() -> None:
    jobs = [job(0, 4, 100.0), job(1, 8, 50.0), job(2, 4, 80.0), job(3, 6, 10.0)]
    spread = run([replace(one, nodes=None) for one in jobs], TWO)
    assert (spread.began_s, spread.servers) == ((0.0, 0.0, 0.0, 50.0), (1, 1, 1, 1))
    jobs = [job(0, 5, 100.0), job(1, 5, 100.0), job(2, 6, 10.0)]
    spread, together = run(jobs, TWO), run(jobs, TWO, placement="consolidate")
    assert (spread.began_s[2], spread.servers[2]) == (0.0, 2)
    assert (together.began_s[2], together.servers[2]) == (100.0, 1)


def test_a_spread_job_is_slower_by_the_slowdown_of_its_model() -> None:
    jobs = [job(0, 5, 100.0), job(1, 5, 100.0), job(2, 6, 10.0, model="vgg16", limit_s=None)]
    world = replace(PARAMS, spread_slowdown={"vgg16": 2.0})
    assert run(jobs, TWO, world).ended_s[2] == 20.0


def test_cpus_and_memory_of_the_trace_limit_other_jobs() -> None:
    many_cpus = [job(0, 1, 100.0, cpus=22), job(1, 1, 100.0)]
    much_memory = [job(0, 1, 100.0, mem_mib=75 * 1024), job(1, 1, 100.0)]
    assert run(many_cpus).began_s == (0.0, 100.0)
    assert run(much_memory).began_s == (0.0, 100.0)


def test_a_job_too_large_for_the_cluster_never_starts_and_blocks_no_other() -> None:
    outcome = run([job(0, 9, 10.0), job(1, 1, 10.0, cpus=25), job(2, 1, 10.0)])
    assert (outcome.began_s, outcome.ended_s, outcome.servers) == ((None, None, 0.0), (None, None, 10.0), (0, 0, 1))


def test_each_partition_has_its_own_queue() -> None:
    world = replace(NO_BACKFILL, partitions={"a": frozenset({"n0"}), "b": frozenset({"n1"})})
    jobs = [job(n, 8, 100.0, partition="a") for n in range(2)] + [job(2, 8, 100.0, partition="b")]
    outcome = run(jobs, TWO, world)
    assert outcome.began_s == (0.0, 100.0, 0.0)


def test_a_partition_with_unknown_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="n7"):
        run([job(0, 1, 1.0)], world=replace(PARAMS, partitions={"a": frozenset({"n7"})}))


def test_an_unknown_placement_is_refused() -> None:
    with pytest.raises(ValueError, match="close"):
        run([job(0, 1, 1.0)], placement="close")


def test_policy_srtf_starts_the_shortest_job_first() -> None:
    jobs = [job(0, 8, 50.0), job(1, 8, 20.0), job(2, 8, 10.0)]
    assert run(jobs, policy=make_policy("srtf", jobs)).began_s == (30.0, 10.0, 0.0)


def test_gpus_are_free_only_after_the_epilog() -> None:
    outcome = run([job(0, 8, 10.0), job(1, 8, 10.0)], world=replace(PARAMS, react_s=2.0))
    assert (outcome.began_s, outcome.ended_s) == ((0.0, 12.0), (10.0, 22.0))


def test_progress_is_reported_until_all_jobs_have_ended() -> None:
    reports: list[tuple[int, int]] = []
    run([job(n, 8, 1.0) for n in range(3)], progress=lambda done, of: reports.append((done, of)))
    assert reports[-1] == (3, 3)


# ------------------------------------------------------------------------------------------- properties

LOADS = st.lists(
    st.builds(
        lambda submit, work, gpus, nodes, cpus, slack: {
            "submit_s": float(submit),
            "work_s": float(work),
            "gpus": gpus,
            "nodes": nodes if nodes is None or gpus % nodes == 0 else 1,
            "cpus": cpus,
            "limit_s": work * slack,
        },
        st.integers(0, 300),
        st.integers(1, 200),
        st.sampled_from((1, 2, 3, 4, 8, 12, 16)),
        st.sampled_from((None, None, 1, 2)),
        st.sampled_from((None, None, 4, 10)),
        st.sampled_from((1.0, 1.5, 3.0)),
    ),
    min_size=1,
    max_size=25,
)


def make_jobs(rows: Sequence[dict[str, object]]) -> list[SimJob]:
    ordered = sorted(rows, key=lambda row: row["submit_s"])  # type: ignore[arg-type, return-value]
    return [SimJob(number=n, job=str(n), **row) for n, row in enumerate(ordered)]  # type: ignore[arg-type]


@settings(max_examples=60)
@given(LOADS)
def test_all_feasible_jobs_end_and_hold_no_more_gpus_than_exist(rows: Sequence[dict[str, object]]) -> None:
    """For each server too: FreeResources.take raises if a server has not enough left."""
    jobs = make_jobs(rows)
    outcome = run(jobs, TWO)
    assert None not in outcome.ended_s
    moments = sorted(began for began in outcome.began_s if began is not None)
    for moment in moments:
        held = [
            one.gpus
            for one, began, ended in zip(jobs, outcome.began_s, outcome.ended_s, strict=True)
            if began is not None and ended is not None and began <= moment < ended - 1e-6
        ]
        assert sum(held) <= 16


@settings(max_examples=40)
@given(LOADS)
def test_a_running_job_keeps_its_resources_to_its_end(rows: Sequence[dict[str, object]]) -> None:
    jobs = make_jobs(rows)
    outcome = run(jobs, TWO)
    for one, began, ended, held in zip(jobs, outcome.began_s, outcome.ended_s, outcome.held_s, strict=True):
        if began is not None and ended is not None:
            assert one.submit_s <= began
            assert held == pytest.approx(one.work_s) == pytest.approx(ended - began)
    assert outcome.preemptions == 0


@settings(max_examples=40)
@given(LOADS)
def test_without_backfill_jobs_start_in_strict_order(rows: Sequence[dict[str, object]]) -> None:
    outcome = run(make_jobs(rows), TWO, NO_BACKFILL)
    began = [moment for moment in outcome.began_s if moment is not None]
    assert began == sorted(began)


@settings(max_examples=40)
@given(LOADS)
def test_backfilled_jobs_do_not_delay_the_first_waiting_job(rows: Sequence[dict[str, object]]) -> None:
    """The limits are exact, so the first job that does not fit starts as if no job were behind it."""
    jobs = [replace(one, submit_s=0.0, limit_s=one.work_s) for one in make_jobs(rows)]
    alone = run(jobs, TWO, NO_BACKFILL).began_s
    first = next((n for n, began in enumerate(alone) if began is not None and began > 0), None)
    if first is not None:
        assert (run(jobs, TWO).began_s[first] or 0.0) <= (alone[first] or 0.0) + 1e-6
