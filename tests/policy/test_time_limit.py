"""Which time limit fits a pending job, which must stay, and when a started job gets its user's limit again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import START, job, node

from slurmwrap.config.load_config import Limit
from slurmwrap.model.cluster import Partition, Reservation, Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import LoweredLimit, TimeRequest
from slurmwrap.model.run_time import FROM_OTHER_RUNS, FROM_RUNS, QUANTILE_LEVELS, RunTimeEstimate
from slurmwrap.policy.time_limit import (
    LEAST_S,
    RESTORED_WITHIN_S,
    SETTLED_S,
    choose_running_limit,
    compute_lower_limit,
    find_reason_to_keep,
    format_limit,
    is_settled,
    list_steps,
    select_jobs_of,
)

DAY, HOUR = 86_400, 3600
FREE = TimeRequest()


def estimate(p50_s: float, p90_s: float, p99_s: float, *, n: int = 14, source: str = FROM_RUNS) -> RunTimeEstimate:
    times = [p50_s if level < 0.9 else p90_s if level < 0.99 else p99_s for level in QUANTILE_LEVELS]
    return RunTimeEstimate(quantiles_s=tuple(times), source=source, n=n)


def pending(**changes: object) -> JobRecord:
    plain = job(81, state="PENDING", reason="Priority", start_time=None, end_time=None, nodes=(), time_limit_s=7 * DAY)
    return replace(plain, **changes)  # type: ignore[arg-type]


def running(limit_s: int, **changes: object) -> JobRecord:
    return replace(job(81, state="RUNNING", end_time=None, start_time=START, time_limit_s=limit_s), **changes)  # type: ignore[arg-type]


def snapshot(*reservations: Reservation, max_time_s: int | None = 7 * DAY) -> Snapshot:
    return Snapshot(
        taken_at=START,
        nodes=(node("n1"), node("n2"), node("n9", partitions=("cpu",))),
        partitions=(Partition(name="gpu", max_time_s=max_time_s), Partition(name="cpu")),
        reservations=reservations,
    )


def lowered(**changes: object) -> LoweredLimit:
    plain = LoweredLimit(job_id=81, uid=1001, submit_time=START - 100, at=START - 50.0, user_s=7 * DAY, set_s=5 * HOUR)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "user_s", "limit_s"),
    [
        (estimate(HOUR, 3 * HOUR, 3.2 * HOUR), 7 * DAY, 4.5 * HOUR),  # 1.5 x p90
        (estimate(HOUR, 3 * HOUR, 9 * HOUR), 7 * DAY, 9 * HOUR),  # p99
        (estimate(HOUR, 10_001, 10_002), 7 * DAY, 15_060),  # rounded up to minutes
        (estimate(60, 90, 100), 7 * DAY, 1800),  # limit.least_s
        (estimate(HOUR, 3 * HOUR, 3 * HOUR), 4 * HOUR, None),  # never above the user's
        (estimate(HOUR, 3 * HOUR, 3 * HOUR), 5.6 * HOUR, None),  # not clearly lower
        (estimate(HOUR, 3 * HOUR, 3 * HOUR, n=4), 7 * DAY, None),  # too few runs
        (estimate(HOUR, 3 * HOUR, 3 * HOUR, source=FROM_OTHER_RUNS), 7 * DAY, None),
        (None, 7 * DAY, None),
    ],
)
def test_the_limit_fits_the_earlier_runs(known: RunTimeEstimate | None, user_s: float, limit_s: float | None) -> None:
    assert compute_lower_limit(known, user_s, Limit()) == limit_s


def test_no_limit_is_so_low_that_its_user_could_be_told_of_the_end_or_killed_before_it_is_restored() -> None:
    short, settings = estimate(60, 90, 100), Limit(least_s=60)
    assert compute_lower_limit(short, DAY, settings) == LEAST_S > RESTORED_WITHIN_S
    limit = compute_lower_limit(short, DAY, settings, warn_s=3600)
    assert limit is not None and limit - 3600 > RESTORED_WITHIN_S


@pytest.mark.parametrize(
    ("changed", "request_", "reason"),
    [
        ({}, FREE, ""),
        ({}, None, "it was submitted by an older gsub"),
        ({}, TimeRequest(fixed="--time-min"), "--time-min"),
        ({"time_limit_s": None}, FREE, "it has no time limit"),
        ({"het_job_id": 80}, FREE, "it is a heterogeneous job"),
        ({"restarts": 1}, FREE, "it ran before"),
        ({"reason": "QOSMaxWallDurationPerJobLimit"}, FREE, "Slurm says QOSMaxWallDurationPerJobLimit"),
        ({"reason": "AssocGrpCPURunMinutesLimit"}, FREE, "Slurm says AssocGrpCPURunMinutesLimit"),
        ({"reason": "AssocGrpGRES"}, FREE, ""),
        ({"time_limit_s": 8 * DAY}, FREE, "its time limit exceeds that of its partition"),
        ({"time_limit_s": 8 * DAY, "partition": "cpu,gpu"}, FREE, "its time limit exceeds that of its partition"),
        ({"time_limit_s": 8 * DAY, "partition": "cpu"}, FREE, ""),
    ],
)
def test_limits_that_must_stay(changed: dict[str, object], request_: TimeRequest | None, reason: str) -> None:
    assert find_reason_to_keep(pending(**changed), request_, snapshot()) == reason


@pytest.mark.parametrize(
    ("reservation", "changed", "stays"),
    [
        (Reservation(name="maint", start=START + DAY, end=START + 2 * DAY, nodes=("n2",)), {}, True),
        (Reservation(name="maint", start=START + 8 * DAY, end=START + 9 * DAY, nodes=("n2",)), {}, False),
        (Reservation(name="now", start=START - DAY, end=START + DAY, nodes=("n2",)), {}, False),
        (Reservation(name="other", start=START + DAY, end=START + 2 * DAY, nodes=("n9",)), {}, False),
        (Reservation(name="maint", start=START + DAY, end=START + 2 * DAY, nodes=("n2",)), {"req_nodes": "n1"}, False),
    ],
)
def test_a_job_whose_own_limit_reaches_into_a_reservation_keeps_it(
    reservation: Reservation, changed: dict[str, object], stays: bool
) -> None:
    found = find_reason_to_keep(pending(**changed), FREE, snapshot(reservation))
    assert found == ("reservation maint begins before its time limit would end" if stays else "")


@pytest.mark.parametrize("state", ["RUNNING", "CONFIGURING", "SUSPENDED"])
def test_a_started_job_gets_its_users_limit_at_once(state: str) -> None:
    assert choose_running_limit(running(5 * HOUR, state=state), lowered(), START) == 7 * DAY


@pytest.mark.parametrize("limit_s", [7 * DAY, 4 * HOUR, 6 * HOUR])
def test_a_limit_that_someone_else_set_stays(limit_s: int) -> None:
    assert choose_running_limit(running(limit_s), lowered(), START) is None
    assert choose_running_limit(running(limit_s), lowered(keep=True), START + 4 * HOUR) is None


def test_a_kept_limit_is_extended_in_steps_at_70_percent() -> None:
    kept = lowered(keep=True, user_s=16 * HOUR)
    assert list_steps(kept) == (5 * HOUR, 10 * HOUR, 15 * HOUR, 16 * HOUR)
    assert choose_running_limit(running(5 * HOUR), kept, START + 3.4 * HOUR) is None
    assert choose_running_limit(running(5 * HOUR), kept, START + 3.5 * HOUR) == 10 * HOUR
    assert choose_running_limit(running(10 * HOUR), kept, START + 6.9 * HOUR) is None
    assert choose_running_limit(running(10 * HOUR), kept, START + 7 * HOUR) == 15 * HOUR
    assert choose_running_limit(running(15 * HOUR), kept, START + 11 * HOUR) == 16 * HOUR
    assert choose_running_limit(running(16 * HOUR), kept, START + 15 * HOUR) is None


def test_a_short_kept_limit_is_extended_before_only_the_watchdog_could_restore_it_in_time() -> None:
    kept = lowered(keep=True, set_s=1800, warn_s=300)
    due = START + 1800 - RESTORED_WITHIN_S - 300
    assert choose_running_limit(running(1800), kept, due - 1) is None
    assert choose_running_limit(running(1800), kept, due) == 3600


@pytest.mark.parametrize(
    ("record", "after_s", "settled"),
    [
        (pending(time_limit_s=5 * HOUR), 1e6, False),
        (running(5 * HOUR), 1e6, False),
        (running(10 * HOUR), 1e6, False),  # a step of it
        (pending(time_limit_s=3 * HOUR), 0, True),  # its user changed it
        (pending(), 0, False),  # the call may still be under way
        (pending(), SETTLED_S, True),
        (running(5 * HOUR, state="COMPLETING"), 0, True),
        (running(5 * HOUR, state="COMPLETED"), 0, True),
    ],
)
def test_what_has_to_be_remembered(record: JobRecord, after_s: float, settled: bool) -> None:
    assert is_settled(record, lowered(at=START), START + after_s) is settled


def test_an_array_is_found_with_its_tasks_and_a_later_job_with_the_same_id_is_not() -> None:
    rest = pending(array_job_id=81, array_tasks="3-9")
    task = running(5 * HOUR, job_id=90, array_job_id=81, array_task_id=2)
    others = (
        running(5 * HOUR, job_id=91),
        running(5 * HOUR, uid=1002),
        replace(rest, submit_time=START - 200),
    )
    assert select_jobs_of(lowered(), (rest, task, *others)) == (rest, task)


def test_limits_are_written_as_slurm_reads_them() -> None:
    assert [format_limit(one) for one in (1800, 5 * HOUR, 36_060, 7 * DAY + 60)] == [
        "0:30:00",
        "5:00:00",
        "10:01:00",
        "7-00:01:00",
    ]
