"""Loads from Synergy's generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256

import pytest

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.synergy_models import ITERATION_S, TASKS
from slurmwrap.sim.trace.synergy_loads import generate_load

Split = Mapping[str, float] | Sequence[float]


def test_synergys_documented_check_is_reproduced_row_by_row() -> None:
    """7,000 jobs at 9 per hour, split 20/70/10, seed 42, written as a CSV trace."""
    jobs = generate_load(
        "synergy-dynamic", seed=42, jobs=7000, jobs_per_hour=9, split=(0.2, 0.7, 0.1), run_times="gavel"
    )
    rows = "".join(f"{job.submit_s:.0f},{job.work_s:.3f},{job.gpus},,,,,{job.model}\n" for job in jobs)
    table = "submit_s,duration_s,gpus,cpus,mem_gb,user,status,model\n" + rows
    assert sha256(table.encode()).hexdigest() == "1df3b8925c8eabbc038ec09aa2d8be582506162d967047d22f60a44414e0b99a"


def test_static_jobs_are_submitted_a_millisecond_apart() -> None:
    jobs = generate_load("synergy-static", seed=1, jobs=3)
    assert [job.submit_s for job in jobs] == [0.0, 0.001, 0.002]
    assert jobs[0] == SimJob(number=0, job="0", submit_s=0.0, work_s=jobs[0].work_s, gpus=1, model="alexnet")


def test_dynamic_jobs_are_submitted_in_whole_seconds_at_the_given_rate() -> None:
    jobs = generate_load("synergy-dynamic", seed=1, jobs=4000, jobs_per_hour=60)
    submits = [job.submit_s for job in jobs]
    assert submits == sorted(submits) and all(submit == int(submit) for submit in submits)
    assert submits[-1] / 4000 == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize("split", [(0.5, 0.3, 0.2), (50, 30, 20), {"speech": 2, "image": 5, "language": 3}], ids=str)
def test_models_have_the_given_shares_and_are_drawn_in_turn(split: Split) -> None:
    drawn = Counter(job.model for job in generate_load("synergy-static", seed=3, jobs=900, split=split))
    assert drawn == dict.fromkeys(ITERATION_S, 90)


def test_a_task_with_share_0_is_not_drawn() -> None:
    drawn = {job.model for job in generate_load("synergy-dynamic", seed=3, split=(0, 1, 0))}
    assert drawn == set(TASKS["language"])


def test_gpu_demands_have_the_shares_of_synergy() -> None:
    drawn = Counter(job.gpus for job in generate_load("synergy-dynamic", seed=5, jobs=20_000, gpu_demand="synthetic"))
    assert {gpus: count / 20_000 for gpus, count in drawn.items()} == pytest.approx(
        {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}, abs=0.01
    )


@pytest.mark.parametrize(("run_times", "least_s", "most_s"), [("small", 1897, 30_072), ("gavel", 1897, 600_000)])
def test_run_times_are_whole_iterations_within_the_distribution_limits(
    run_times: str, least_s: int, most_s: int
) -> None:
    jobs = generate_load("synergy-static", seed=9, jobs=2000, run_times=run_times)
    assert all(least_s - 1 <= job.work_s <= most_s for job in jobs)
    assert max(job.work_s for job in jobs) > 0.9 * most_s
    assert all(round(job.work_s / ITERATION_S[job.model]) * ITERATION_S[job.model] == job.work_s for job in jobs)


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    assert generate_load("synergy-dynamic", seed=7) == generate_load("synergy-dynamic", seed=7)
    assert generate_load("synergy-dynamic", seed=7) != generate_load("synergy-dynamic", seed=8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "synergy"},
        {"gpu_demand": "philly"},
        {"run_times": "long"},
        {"jobs_per_hour": 0},
        {"jobs_per_hour": float("nan")},
        {"split": (0, 0, 0)},
        {"split": (1, 2)},
        {"split": {"image": 1, "video": 1}},
        {"split": (1, -1, 1)},
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        generate_load(**{"kind": "synergy-dynamic", "seed": 1} | wrong)
