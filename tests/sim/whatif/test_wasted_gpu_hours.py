"""GPU-hours of runs that did not complete."""

from __future__ import annotations

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual
from slurmwrap.sim.whatif.whatif_replay import anonymize_users, compute_waste
from slurmwrap.sim.whatif.whatif_study import Lost, UserLoss


def make_run(user: str, status: str, hours: float | None, gpus: int = 2) -> tuple[SimJob, Actual]:
    job = SimJob(number=0, job="1", submit_s=0, work_s=1, gpus=gpus, user=user, status=status)
    return job, Actual(submit_s=0, start_s=0, end_s=None if hours is None else 3600 * hours, nodes=1)


def test_lost_gpu_hours_are_summed_by_state_and_user_in_descending_order() -> None:
    waste = compute_waste(
        [
            make_run("ana", "COMPLETED", 3),
            make_run("ana", "FAILED", 1),
            make_run("bo", "FAILED", 2),
            make_run("bo", "TIMEOUT", 5),
            make_run("bo", "RUNNING", None),
        ]
    )
    assert waste.gpu_hours == 22
    assert waste.lost == (Lost(state="TIMEOUT", runs=1, gpu_hours=10), Lost(state="FAILED", runs=2, gpu_hours=6))
    assert waste.users == (
        UserLoss(user="bo", runs=2, gpu_hours=14, share=1.0),
        UserLoss(user="ana", runs=1, gpu_hours=2, share=0.25),
    )
    assert waste.lost_gpu_hours == 16


def test_anonymous_users_are_numbered_in_order_of_appearance() -> None:
    jobs = [make_run(user, "FAILED", 1)[0] for user in ("zoe", "ana", "zoe")]
    assert [job.user for job in anonymize_users(jobs)] == ["u1", "u2", "u1"]


def test_a_job_without_a_user_stays_without_one() -> None:
    jobs = [make_run(user, "FAILED", 1)[0] for user in ("", "ana", "")]
    assert [job.user for job in anonymize_users(jobs)] == ["", "u1", ""]
