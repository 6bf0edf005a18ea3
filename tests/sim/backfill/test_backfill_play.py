"""Slurm's two schedulers, as the model plays them: who starts when, and what is never broken."""

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
WORLD = SchedulerParams(resolution_s=0.0, group_s=0.0, backfill_s=30.0)
NO_BACKFILL = replace(WORLD, backfill_s=0.0)


def job(number: int, gpus: int, work_s: float, **more: object) -> SimJob:
    known = {"submit_s": 0.0, "limit_s": work_s, **more}
    return SimJob(number=number, job=f"j{number}", work_s=work_s, gpus=gpus, **known)  # type: ignore[arg-type]


def run(
    jobs: Sequence[SimJob], servers: Sequence[Server] = ONE, world: SchedulerParams = WORLD, **more: object
) -> SimOutcome:
    return play_backfill(jobs, servers, world=world, profiles={}, **more)  # type: ignore[arg-type]


def test_jobs_start_in_turn_as_soon_as_they_fit() -> None:
    outcome = run([job(n, 1, 100.0) for n in range(9)])
    assert outcome == SimOutcome(
        mode="slurm",
        began_s=(0.0,) * 8 + (100.0,),
        ended_s=(100.0,) * 8 + (200.0,),
        held_s=(100.0,) * 9,
        servers=(1,) * 9,
        steps=outcome.steps,
    )


def test_a_short_job_passes_one_that_waits_where_it_ends_before_that_one_could_start() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 100.0), job(3, 2, 101.0)]
    assert run(jobs).began_s == (0.0, 100.0, 0.0, 200.0)


def test_without_backfill_nobody_passes() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 100.0)]
    assert run(jobs, world=NO_BACKFILL).began_s == (0.0, 100.0, 200.0)


def test_backfill_looks_only_so_often() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 20.0, submit_s=1.0)]
    assert run(jobs).began_s == (0.0, 100.0, 30.0)


def test_a_planned_job_keeps_whole_nodes() -> None:
    """Job 2 would end after job 1 is planned, and there are 2 GPUs that job 1 does not need: backfill counts nodes."""
    jobs = [job(0, 6, 100.0), job(1, 6, 100.0), job(2, 2, 150.0)]
    assert run(jobs).began_s == (0.0, 100.0, 100.0)


def test_a_job_that_would_start_beyond_the_window_has_nothing_kept_for_it() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 2, 150.0)]
    assert run(jobs, world=replace(WORLD, window_s=99.0)).began_s == (0.0, 150.0, 0.0)


def test_backfill_looks_at_so_many_jobs_and_no_further() -> None:
    jobs = [job(0, 6, 100.0), job(1, 8, 100.0), job(2, 8, 100.0), job(3, 2, 50.0)]
    assert run(jobs, world=replace(WORLD, max_job_test=2)).began_s == (0.0, 100.0, 200.0, 300.0)


def test_a_node_is_kept_from_the_full_minute_before() -> None:
    """Job 1 is planned at 100 s, and job 2 believed to end at 90 s."""
    jobs = [job(0, 6, 100.0), job(1, 8, 10.0), job(2, 2, 90.0)]
    assert run(jobs).began_s[2] == 0.0
    assert run(jobs, world=replace(WORLD, resolution_s=60.0)).began_s[2] == 110.0


def test_slurm_takes_ends_of_running_jobs_together_so_a_start_is_planned_later_than_it_could_be() -> None:
    """Job 2 could start at 100 s. Planned for 149 s, when the second one ends too, it lets job 3 run until 120 s."""
    jobs = [job(0, 6, 100.0), job(1, 8, 149.0), job(2, 8, 10.0), job(3, 2, 120.0)]
    assert run(jobs, TWO).began_s == (0.0, 0.0, 100.0, 110.0)
    assert run(jobs, TWO, replace(WORLD, group_s=30.0)).began_s == (0.0, 0.0, 120.0, 0.0)


def test_a_gap_between_two_planned_jobs_is_used() -> None:
    """Jobs 1 and 2 are planned one after the other on both servers; job 3 fits before them, job 4 nowhere."""
    jobs = [job(0, 12, 100.0), job(1, 16, 50.0), job(2, 16, 50.0), job(3, 4, 100.0), job(4, 4, 101.0)]
    assert run(jobs, TWO).began_s == (0.0, 100.0, 150.0, 0.0, 200.0)


def test_a_job_is_killed_at_its_limit() -> None:
    outcome = run([job(0, 8, 100.0, limit_s=60.0), job(1, 8, 10.0)])
    assert (outcome.ended_s, outcome.held_s) == ((60.0, 70.0), (60.0, 10.0))


def test_nobody_is_killed_where_the_limit_is_only_assumed() -> None:
    assert run([job(0, 8, 100.0, limit_s=None)], world=replace(WORLD, limit_s=10.0)).ended_s == (100.0,)


def test_gpus_wherever_they_are_free_unless_it_insists_on_the_fewest_servers() -> None:
    jobs = [job(0, 4, 100.0), job(1, 8, 50.0), job(2, 4, 80.0), job(3, 6, 10.0)]
    spread = run([replace(one, nodes=None) for one in jobs], TWO)
    assert (spread.began_s, spread.servers) == ((0.0, 0.0, 0.0, 50.0), (1, 1, 1, 1))
    jobs = [job(0, 5, 100.0), job(1, 5, 100.0), job(2, 6, 10.0)]
    spread, together = run(jobs, TWO), run(jobs, TWO, placement="consolidate")
    assert (spread.began_s[2], spread.servers[2]) == (0.0, 2)
    assert (together.began_s[2], together.servers[2]) == (100.0, 1)


def test_a_spread_job_is_slower_where_its_model_is() -> None:
    jobs = [job(0, 5, 100.0), job(1, 5, 100.0), job(2, 6, 10.0, model="vgg16", limit_s=None)]
    world = replace(WORLD, spread_slowdown={"vgg16": 2.0})
    assert run(jobs, TWO, world).ended_s[2] == 20.0


def test_cpus_and_memory_that_the_trace_tells_keep_others_out() -> None:
    many_cpus = [job(0, 1, 100.0, cpus=22), job(1, 1, 100.0)]
    much_memory = [job(0, 1, 100.0, mem_mib=75 * 1024), job(1, 1, 100.0)]
    assert run(many_cpus).began_s == (0.0, 100.0)
    assert run(much_memory).began_s == (0.0, 100.0)


def test_a_job_that_no_empty_cluster_could_hold_is_refused_and_stands_in_nobodys_way() -> None:
    outcome = run([job(0, 9, 10.0), job(1, 1, 10.0, cpus=25), job(2, 1, 10.0)])
    assert (outcome.began_s, outcome.ended_s, outcome.servers) == ((None, None, 0.0), (None, None, 10.0), (0, 0, 1))


def test_each_partition_has_a_queue_of_its_own() -> None:
    world = replace(NO_BACKFILL, partitions={"a": frozenset({"n0"}), "b": frozenset({"n1"})})
    jobs = [job(n, 8, 100.0, partition="a") for n in range(2)] + [job(2, 8, 100.0, partition="b")]
    outcome = run(jobs, TWO, world)
    assert outcome.began_s == (0.0, 100.0, 0.0)


def test_a_partition_of_unknown_servers_is_named() -> None:
    with pytest.raises(ValueError, match="n7"):
        run([job(0, 1, 1.0)], world=replace(WORLD, partitions={"a": frozenset({"n7"})}))


def test_an_unknown_placement_is_named() -> None:
    with pytest.raises(ValueError, match="close"):
        run([job(0, 1, 1.0)], placement="close")


def test_the_shortest_first_where_the_site_orders_its_queue_so() -> None:
    jobs = [job(0, 8, 50.0), job(1, 8, 20.0), job(2, 8, 10.0)]
    assert run(jobs, policy=make_policy("srtf", jobs)).began_s == (30.0, 10.0, 0.0)


def test_gpus_are_given_away_when_the_epilog_is_over() -> None:
    outcome = run([job(0, 8, 10.0), job(1, 8, 10.0)], world=replace(WORLD, react_s=2.0))
    assert (outcome.began_s, outcome.ended_s) == ((0.0, 12.0), (10.0, 22.0))


def test_progress_is_told_and_ends_with_all_jobs() -> None:
    told: list[tuple[int, int]] = []
    run([job(n, 8, 1.0) for n in range(3)], progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (3, 3)


# ------------------------------------------------------------------------------------------- what always holds

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


def jobs_of(rows: Sequence[dict[str, object]]) -> list[SimJob]:
    ordered = sorted(rows, key=lambda row: row["submit_s"])  # type: ignore[arg-type, return-value]
    return [SimJob(number=n, job=str(n), **row) for n, row in enumerate(ordered)]  # type: ignore[arg-type]


@settings(max_examples=60)
@given(LOADS)
def test_all_that_fit_end_and_no_more_gpus_are_held_than_there_are(rows: Sequence[dict[str, object]]) -> None:
    """Of each single server too: Floor.take raises where one has not so much left."""
    jobs = jobs_of(rows)
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
def test_a_running_job_keeps_what_it_has_to_its_end(rows: Sequence[dict[str, object]]) -> None:
    jobs = jobs_of(rows)
    outcome = run(jobs, TWO)
    for one, began, ended, held in zip(jobs, outcome.began_s, outcome.ended_s, outcome.held_s, strict=True):
        if began is not None and ended is not None:
            assert one.submit_s <= began
            assert held == pytest.approx(one.work_s) == pytest.approx(ended - began)
    assert outcome.preemptions == 0


@settings(max_examples=40)
@given(LOADS)
def test_without_backfill_starts_are_in_strict_order(rows: Sequence[dict[str, object]]) -> None:
    outcome = run(jobs_of(rows), TWO, NO_BACKFILL)
    began = [moment for moment in outcome.began_s if moment is not None]
    assert began == sorted(began)


@settings(max_examples=40)
@given(LOADS)
def test_who_passes_does_not_delay_the_first_that_waits(rows: Sequence[dict[str, object]]) -> None:
    """Limits are exact here. So the first job that does not fit starts as if nobody had come behind it."""
    jobs = [replace(one, submit_s=0.0, limit_s=one.work_s) for one in jobs_of(rows)]
    alone = run(jobs, TWO, NO_BACKFILL).began_s
    first = next((n for n, began in enumerate(alone) if began is not None and began > 0), None)
    if first is not None:
        assert (run(jobs, TWO).began_s[first] or 0.0) <= (alone[first] or 0.0) + 1e-6
