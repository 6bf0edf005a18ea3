"""The expected start of a job, from Slurm's queue as squeue shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.cluster import Node
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import FROM_USER, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.placement.expected_start import (
    MOST_AHEAD,
    ExpectedStart,
    find_expected_start,
    find_expected_starts,
    find_starts_in_partitions,
)
from slurmwrap.placement.start_forecast import QueuedJob

NOW, HOUR = 1_800_000_000, 3600
NODE = Node(name="n0", state="ALLOCATED", gpus=4, gpus_used=4, partitions=("gpu",))
RUNNING = JobRecord(
    job_id=1, uid=1, partition="gpu", state="RUNNING", gpus=4, nodes=("n0",), num_nodes=1, start_time=NOW - HOUR,
    time_limit_s=24 * HOUR, priority=9,
)  # fmt: skip
PENDING = JobRecord(
    job_id=3, uid=2, partition="gpu", state="PENDING", reason="Priority", gpus=4, num_nodes=1, priority=5,
    time_limit_s=10 * HOUR, eligible_time=NOW - 60,
)  # fmt: skip
AHEAD = replace(PENDING, job_id=2, priority=7)


def estimate(job: JobRecord) -> RunTimeEstimate | None:
    """Return two hours for each job of user 1; nothing is known of the others."""
    times = (2.0 * HOUR,) * len(QUANTILE_LEVELS)
    return RunTimeEstimate(quantiles_s=times, source=FROM_USER, n=5) if job.uid == 1 else None


def find(job: JobRecord | QueuedJob = PENDING, *jobs: JobRecord, nodes: tuple[Node, ...] = (NODE,), **more):
    found = find_expected_start(job, nodes, (RUNNING, PENDING, *jobs), estimate, float(NOW), **more)
    return None if found is None else replace(found, at=round(found.at), by=round(found.by))


def test_a_job_starts_at_the_predicted_end_of_the_running_job() -> None:
    assert find() == ExpectedStart(at=NOW + HOUR, by=NOW + HOUR, jobs=1, predicted=1)


def test_a_job_ahead_of_which_nothing_is_known_uses_its_limit() -> None:
    assert find(PENDING, AHEAD) == ExpectedStart(at=NOW + 11 * HOUR, by=NOW + 11 * HOUR, jobs=2, predicted=1)
    assert find(PENDING, replace(AHEAD, uid=1)) == ExpectedStart(
        at=NOW + 3 * HOUR, by=NOW + 3 * HOUR, jobs=2, predicted=2
    )
    array = replace(AHEAD, uid=1, array_job_id=2, array_tasks="1-3")
    assert find(PENDING, array) == ExpectedStart(at=NOW + 7 * HOUR, by=NOW + 7 * HOUR, jobs=4, predicted=4)


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "Dependency"},
        {"reason": "QOSMaxJobsPerUserLimit"},
        {"reason": "JobHeldUser", "priority": 0},
        {"priority": 3},
        {"gpus": 0},
        {"partition": "other"},
    ],
)
def test_jobs_that_do_not_compete_are_left_out(change: dict[str, object]) -> None:
    found = find(PENDING, replace(AHEAD, **change))
    assert found is not None
    assert found.at == NOW + HOUR


def test_slurms_own_forecast_is_the_latest_start() -> None:
    found = find(PENDING, AHEAD, slurm_start=NOW + 2 * HOUR)
    assert (found.at, found.by) == (NOW + 2 * HOUR, NOW + 2 * HOUR)


def test_a_job_that_is_not_submitted_yet_comes_last() -> None:
    new = QueuedJob(job="new", gpus=2, nodes=1, partitions=("gpu",), limit_s=HOUR)
    assert find(new) == ExpectedStart(at=NOW + 11 * HOUR, by=NOW + 11 * HOUR, jobs=2, predicted=1)


def test_a_pending_job_comes_last_in_another_partition() -> None:
    other = replace(NODE, name="n1", state="IDLE", gpus_used=0, partitions=("free",))
    small = replace(other, name="n2", gpus=2, partitions=("small",))
    there = replace(AHEAD, partition="free")
    names = ("gpu", "free", "small", "absent")

    def starts(*jobs: JobRecord) -> dict[str, float]:
        known = (RUNNING, PENDING, *jobs)
        found = find_starts_in_partitions(PENDING, names, (NODE, other, small), known, estimate, float(NOW))
        return {name: round(at) - NOW for name, at in found.items()}

    assert starts() == {"gpu": HOUR, "free": 0}
    assert starts(there) == {"gpu": HOUR, "free": 10 * HOUR}


def test_a_job_that_outran_its_estimate_may_end_at_any_moment() -> None:
    late = replace(RUNNING, start_time=NOW - 2 * HOUR + 5)
    found = find_expected_start(PENDING, (NODE,), (late, PENDING), estimate, float(NOW))
    assert found is not None
    assert round(found.at) == NOW + 5


def test_a_completing_job_soon_frees_its_gpus() -> None:
    jobs = (replace(RUNNING, state="COMPLETING"), PENDING, replace(RUNNING, job_id=9, nodes=("n1",)))
    two = (NODE, replace(NODE, name="n1", partitions=("other",)))
    found = find_expected_start(PENDING, two, jobs, estimate, float(NOW))
    assert found is not None
    assert round(found.at) == NOW + 60


def test_only_slurms_forecast_is_known() -> None:
    nothing = (PENDING, (NODE,), (replace(RUNNING, uid=2), PENDING), estimate, float(NOW))
    assert find_expected_start(*nothing) is None, "no run time is predicted"
    hidden = (PENDING, (NODE,), (PENDING,), estimate, float(NOW))
    assert find_expected_start(*hidden) is None, "running jobs are not shown"
    assert find(replace(PENDING, job_id=99)) is None, "the job does not wait for resources"
    assert find(PENDING, nodes=(replace(NODE, gpus=8),)) is None, "it could start now: something else holds it"
    assert find(PENDING, replace(AHEAD, array_job_id=2, array_tasks=f"1-{MOST_AHEAD + 1}")) is None, (
        "too many are ahead"
    )
    assert find(PENDING, nodes=(replace(NODE, state="DOWN"),)) is None, "its node is down"


def test_one_forecast_for_many_jobs_is_that_of_each_of_them() -> None:
    array = replace(AHEAD, uid=1, job_id=4, array_job_id=4, array_tasks="1-3", priority=6)
    jobs = (RUNNING, PENDING, AHEAD, array, replace(PENDING, job_id=5, reason="JobHeldUser", priority=0))
    wanted = {"2": None, "3": float(NOW + 2 * HOUR), "4": None, "5": None}
    found = find_expected_starts(wanted, (NODE,), jobs, estimate, float(NOW))
    assert found == {
        one.address: find_expected_start(one, (NODE,), jobs, estimate, float(NOW), wanted[one.address])
        for one in (AHEAD, PENDING, array)
    }
    assert find_expected_starts({"5": None}, (NODE,), jobs, estimate, float(NOW)) == {}


def test_jobs_behind_the_longest_queue_that_is_considered_have_no_forecast() -> None:
    many = replace(AHEAD, uid=1, job_id=4, array_job_id=4, array_tasks=f"0-{MOST_AHEAD}", priority=6)
    found = find_expected_starts({"2": None, "3": None}, (NODE,), (RUNNING, AHEAD, many, PENDING), estimate, float(NOW))
    assert tuple(found) == ("2",)
