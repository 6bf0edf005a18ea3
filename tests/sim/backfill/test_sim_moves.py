"""Running jobs that are moved in the simulated Slurm: what it costs them, and what the others gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.config.config_defaults import Move
from slurmwrap.sim.engines.sim_moves import MOVES, SimMoveSettings
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob, make_equal_servers
from slurmwrap.sim.sim_outcome import SimOutcome

ONE = make_equal_servers(1, gpus=1, cpus=6, mem_gb=100)
TWO = make_equal_servers(2, gpus=2, cpus=12, mem_gb=100)
EXACT = SimMoveSettings(occasions=MOVES["both"], exact=True)


def job(number: int, work_s: float, submit_s: float = 0.0, gpus: int = 1) -> SimJob:
    return SimJob(number=number, job=str(number), submit_s=submit_s, work_s=work_s, gpus=gpus, user="ada")


# Enough runs for the limits of the classes: 100 s to 100,000 s.
HISTORY = tuple(job(number, 100.0 * 1.2**number, float(number)) for number in range(38))
SIMULATION = Simulation(jobs=(), servers=ONE, mode="slurm", history=HISTORY, move=EXACT)


def play(*jobs: SimJob, **changes: object) -> SimOutcome:
    return run_simulation(replace(SIMULATION, jobs=jobs, **changes))[0]  # type: ignore[arg-type]


def test_a_long_job_makes_room_for_a_short_one_and_does_its_last_work_again() -> None:
    outcome = play(job(0, 80_000), job(1, 200, 40_000))
    began = outcome.began_s[1]
    assert began is not None
    assert 40_000 <= began <= 40_300
    assert outcome.preemptions == 1
    # Back in the queue after the head start, it starts when the short job has ended.
    lost_s = outcome.held_s[0] - 80_000
    assert 60 <= lost_s <= 1860
    assert outcome.ended_s == (pytest.approx(80_000 + lost_s + 200), began + 200)


def test_a_job_is_moved_soon_after_its_checkpoint() -> None:
    outcome = play(job(0, 80_000), job(1, 200, 41_000))  # 1,400 s after a checkpoint, 400 s before the next one
    assert outcome.preemptions == 1
    assert outcome.held_s[0] - 80_000 < 60 + 1860


@pytest.mark.parametrize(
    "changes",
    [
        {"move": replace(EXACT, consent=0.0)},
        {"move": replace(EXACT, occasions=())},
        {"move": replace(EXACT, rule=Move(gain_factor=1000.0))},
        {"move": replace(EXACT, rule=Move(last_share=0.9))},
    ],
    ids=["no consent", "off", "the gain is too small", "the job is nearly done"],
)
def test_no_job_is_moved(changes: dict[str, object]) -> None:
    outcome = play(job(0, 80_000), job(1, 200, 40_000), **changes)
    assert (outcome.preemptions, outcome.began_s[1]) == (0, 80_000.0)


def test_a_job_is_moved_at_most_so_often() -> None:
    jobs = (job(0, 80_000), job(1, 200, 40_000), job(2, 200, 43_000))
    assert play(*jobs).began_s == (0.0, 40_000.0, 47_200.0)
    soon = play(*jobs, move=replace(EXACT, rule=Move(every_s=0.0))).began_s[2]
    assert soon is not None
    assert soon <= 43_300


def test_one_gpu_jobs_move_together_so_that_a_node_becomes_free() -> None:
    """Two short jobs end on different servers, two long ones stay; the job of two GPUs needs one server."""
    jobs = (job(0, 90_000), job(1, 300), job(2, 300), job(3, 90_000), job(4, 5000, 1000, gpus=2))
    found = {}
    for name in ("off", "fragmentation"):
        settings_of = replace(EXACT, occasions=MOVES.get(name, ()))
        found[name] = play(*jobs, servers=TWO, placement="consolidate", move=settings_of, scattered_gpus=2)
    assert found["off"].began_s[4] == 90_000
    assert found["off"].scattered_s[4] == pytest.approx(89_000)
    moved = found["fragmentation"]
    assert moved.preemptions == 1
    assert moved.scattered_s[4] <= 2000
    assert moved.began_s[4] == pytest.approx(1000 + moved.scattered_s[4])


def test_without_an_order_jobs_wait_by_the_service_that_they_have_had() -> None:
    """Jobs that never ran come before the one that was moved."""
    outcome = play(job(0, 80_000), job(1, 200, 40_000), job(2, 200, 40_100))
    assert outcome.ended_s[0] == max(end for end in outcome.ended_s if end is not None)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(10, 60_000), st.integers(0, 60_000)), min_size=1, max_size=12),
    st.sampled_from([0.0, 0.5]),
)
def test_every_job_ends_after_its_work_and_what_its_moves_cost(
    rows: list[tuple[int, int, int]], consent: float
) -> None:
    rows.sort(key=lambda row: row[2])
    jobs = [job(number, work_s, submit_s, gpus) for number, (gpus, work_s, submit_s) in enumerate(rows)]
    pack = replace(SIMULATION.pack, consent=consent, mean_util=0.2)
    outcome = play(*jobs, servers=TWO, pack=pack, move=replace(EXACT, rule=Move(every_s=0.0, gpu_share=1.0)))
    assert None not in outcome.ended_s
    extra = [held - one.work_s for held, one in zip(outcome.held_s, jobs, strict=True)]
    assert min(extra) >= -1e-6
    if not outcome.packed:
        assert sum(extra) <= outcome.preemptions * (60 + 1800) + 1e-6
    else:
        assert sum(extra) > 0
