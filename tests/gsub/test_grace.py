"""If a dependency is met after the job's grace period, the job gets a new grace period."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import START, FakeClock, job

from slurmwrap.gsub.apply_verdict import HeldJob, extend_grace
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.sbatch.parse_request import parse_request

MET = START - 5  # when the pre-run became eligible
GIVEN = START - 3000
WAITING = HeldJob(
    request=parse_request(
        ["-dafterok:9", "job"], environ={}, cwd="/w", read_script=lambda path: b"#!/bin/sh\n", read_stdin=lambda: b""
    ),
    plan=PlacementPlan(),
    job_id=5,
    prerun_job_id=6,
    release_at="now",
    profile_key="",
    fingerprint="",
    given=(GIVEN, GIVEN + 365 * 86400.0),
)


class Slurm:
    """A job, its pre-run, and the changes requested for them."""

    def __init__(self, **real: Any) -> None:
        self.records = {
            "5": replace(job(5), **{"state": "PENDING", "eligible_time": int(MET), **real}),
            "6": replace(job(6), state="RUNNING", eligible_time=int(MET)),
        }
        self.asked: list[tuple[str, str]] = []

    def job(self, address: str) -> Any:
        return self.records.get(address)

    def jobs(self, user: str | None = None) -> tuple[Any, ...]:
        return tuple(self.records.values())

    def apply(self, action: Any) -> None:
        self.asked.append((action.target, action.key))


def extend(slurm: Slurm, waiting: HeldJob = WAITING, grace_s: float = 600) -> tuple[float | None, list[float]]:
    recorded: list[float] = []
    context: Any = SimpleNamespace(slurm=slurm, clock=FakeClock(START), user="alice", say=lambda line: None)
    return extend_grace(waiting, grace_s, context, recorded.append), recorded


def test_the_new_begin_time_is_one_grace_period_after_the_dependency_was_met() -> None:
    slurm = Slurm()
    assert extend(slurm) == (MET + 600, [MET + 600])
    assert slurm.asked == [("5", "StartTime")]


@pytest.mark.parametrize(
    ("real", "grace_s"),
    [
        ({"state": "RUNNING"}, 600),
        ({"eligible_time": int(START + 9000)}, 600),  # the user's own --begin, or a start time that the user changed
        ({"eligible_time": int(MET - 1000)}, 600),  # the user released it earlier
        ({}, 4),  # the pre-run waited longer than the grace period
    ],
)
def test_a_job_that_must_not_wait_is_not_changed(real: dict[str, Any], grace_s: float) -> None:
    slurm = Slurm(**real)
    assert (extend(slurm, grace_s=grace_s), slurm.asked) == ((None, []), [])


def test_a_job_without_dependency_or_from_another_version_is_not_changed() -> None:
    plain = replace(WAITING, request=replace(WAITING.request, settings=()))
    assert extend(Slurm(), plain) == (None, [])
    assert extend(Slurm(), replace(WAITING, given=())) == (None, [])


def test_a_begin_time_that_cannot_be_recorded_is_not_set() -> None:
    slurm = Slurm()
    context: Any = SimpleNamespace(slurm=slurm, clock=FakeClock(START), user="alice", say=lambda line: None)

    def fail_to_record(at: float) -> None:
        raise OSError

    with pytest.raises(OSError):
        extend_grace(WAITING, 600, context, fail_to_record)
    assert slurm.asked == []
