"""GPU-hours of runs without a result."""

from __future__ import annotations

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual
from slurmwrap.sim.whatif.whatif_replay import anonymize_users, compute_waste
from slurmwrap.sim.whatif.whatif_study import Lost, UserLoss


def run(user: str, status: str, hours: float | None, gpus: int = 2) -> tuple[SimJob, Actual]:
    job = SimJob(number=0, job="1", submit_s=0, work_s=1, gpus=gpus, user=user, status=status)
    return job, Actual(submit_s=0, start_s=0, end_s=None if hours is None else 3600 * hours, nodes=1)


def test_what_did_not_complete_is_summed_by_state_and_by_user_the_most_first() -> None:
    waste = compute_waste(
        [
            run("ana", "COMPLETED", 3),
            run("ana", "FAILED", 1),
            run("bo", "FAILED", 2),
            run("bo", "TIMEOUT", 5),
            run("bo", "RUNNING", None),
        ]
    )
    assert waste.gpu_hours == 22
    assert waste.lost == (Lost(state="TIMEOUT", runs=1, gpu_hours=10), Lost(state="FAILED", runs=2, gpu_hours=6))
    assert waste.users == (
        UserLoss(user="bo", runs=2, gpu_hours=14, share=1.0),
        UserLoss(user="ana", runs=1, gpu_hours=2, share=0.25),
    )
    assert waste.lost_gpu_hours == 16


def test_anonymous_users_are_numbered_as_they_appear() -> None:
    jobs = [run(user, "FAILED", 1)[0] for user in ("zoe", "ana", "zoe")]
    assert [job.user for job in anonymize_users(jobs)] == ["u1", "u2", "u1"]


def test_who_has_no_name_is_given_none() -> None:
    jobs = [run(user, "FAILED", 1)[0] for user in ("", "ana", "")]
    assert [job.user for job in anonymize_users(jobs)] == ["", "u1", ""]
