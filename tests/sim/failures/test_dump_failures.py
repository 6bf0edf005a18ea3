"""Failure study of a sacct dump: failed jobs and run times are from the dump, the causes are drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from slurmwrap.config.load_config import Config
from slurmwrap.sim.failures import FailureSettings, study_of_dump
from slurmwrap.sim.failures.draw_failures import FailingJob, draw_dump
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

SERVERS = make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)
DEFAULT = FailureSettings()
# Every job has a pre-run, whether it is worth it or not.
ALL = replace(Config(), prerun=replace(Config().prerun, select="all", min_gpus=1))
SURE = FailureSettings(misread=0.0, own_read=1.0, rehearsal_s=0.0)


def make_job(
    number: int, status: str, work_s: float = 100.0, *, user: str = "ada", gpus: int = 2, gap_s: float = 1e6
) -> SimJob:
    return SimJob(
        number=number, job=str(number), submit_s=gap_s * number, work_s=work_s, gpus=gpus, user=user, status=status
    )


def draw_jobs(*jobs: SimJob, seed: int = 1) -> list[FailingJob | None]:
    found = draw_dump(jobs, DEFAULT, seed)
    return [found.get(job.number) for job in jobs]


@pytest.mark.parametrize(
    ("status", "category", "curable"),
    [
        ("OUT_OF_MEMORY", "cpu_oom", False),
        ("TIMEOUT", "time_limit", False),
        ("DEADLINE", "time_limit", False),
        ("NODE_FAIL", "node_failure", True),
        ("BOOT_FAIL", "node_failure", True),
        ("PREEMPTED", "job_preempted", True),
    ],
)
def test_the_slurm_state_determines_the_category(status: str, category: str, curable: bool) -> None:
    (found,) = draw_jobs(make_job(0, status, 1234.0))
    assert found is not None
    assert (found.category, found.curable, found.run_s, found.trials) == (category, curable, 1234.0, 1)


@pytest.mark.parametrize("status", ["COMPLETED", "RUNNING", "", "REQUEUED"])
def test_other_states_are_not_failures(status: str) -> None:
    assert draw_jobs(make_job(0, status)) == [None]


def test_a_cancelled_job_counts_as_killed() -> None:
    (found,) = draw_jobs(make_job(0, "CANCELLED by 1000"))
    assert found == FailingJob(number=0, uid=0, killed=True)


def test_the_drawn_cause_of_a_failed_job_depends_on_its_run_time() -> None:
    """After a week MPI daemons, checkpoints and inputs still fail; a syntax error does not take that long."""

    def causes(work_s: float) -> Counter[str]:
        jobs = [make_job(number, "FAILED", work_s, user=str(number)) for number in range(300)]
        return Counter(one.category for one in draw_jobs(*jobs) if one is not None)

    short, long = causes(20.0), causes(7 * 86_400.0)
    assert short["core_dump"] > 3 * long["core_dump"]
    assert short["syntax_error"] > 0
    assert short["mpi_runtime_failure"] == 0
    assert long["mpi_runtime_failure"] + long["checkpoint_error"] + long["incorrect_inputs"] > 200
    assert long["syntax_error"] == 0
    assert (short["cpu_oom"], long["job_preempted"]) == (0, 0)


def test_the_same_request_again_within_a_day_has_the_same_fault() -> None:
    one, again, other = draw_jobs(
        *(make_job(at, "FAILED", gap_s=3600.0) for at in range(2)), make_job(2, "FAILED", user="bob")
    )
    assert one is not None
    assert again is not None
    assert other is not None
    assert (again.category, again.chain) == (one.category, one.chain)
    assert other.chain == other.number


@pytest.mark.parametrize(
    "later",
    [
        make_job(1, "FAILED", gap_s=3600.0, gpus=4),  # another request
        make_job(1, "FAILED", gap_s=3600.0, user="bob"),
        make_job(1, "FAILED", gap_s=200_000.0),  # two days later
        make_job(1, "FAILED", gap_s=50.0),  # submitted before the first one had failed
        make_job(1, "TIMEOUT", gap_s=3600.0),
    ],
    ids=["another request", "another user", "later", "at once", "another end"],
)
def test_failures_that_do_not_continue_an_earlier_one(later: SimJob) -> None:
    _, found = draw_jobs(make_job(0, "FAILED"), later)
    assert found is not None
    assert found.chain == 1


def test_jobs_without_users_do_not_continue_earlier_failures() -> None:
    found = draw_jobs(*(make_job(at, "FAILED", gap_s=3600.0, user="") for at in range(3)))
    assert [one.chain for one in found if one is not None] == [0, 1, 2]


def test_each_failure_is_followed_by_at_most_one_job() -> None:
    """Two equal jobs fail at the same time; of three later jobs the third is not a retry."""
    failed = [make_job(at, "FAILED", gap_s=1.0) for at in range(2)]
    later = [replace(make_job(at, "COMPLETED", gap_s=1.0), submit_s=1000.0 + at) for at in range(2, 5)]
    found = draw_jobs(*failed, *later)
    assert [one and one.chain for one in found] == [0, 1, 0, 1, None]


def test_only_after_out_of_memory_a_retry_may_request_more_memory() -> None:
    def answer(status: str, mem_mib: int) -> FailingJob | None:
        first = replace(make_job(0, status), mem_mib=1000)
        return draw_jobs(first, replace(make_job(1, "COMPLETED", gap_s=3600.0), mem_mib=mem_mib))[1]

    assert answer("OUT_OF_MEMORY", 2000) is not None
    assert answer("OUT_OF_MEMORY", 500) is None
    assert answer("FAILED", 2000) is None


def test_a_job_with_another_name_is_not_a_retry() -> None:
    _, found = draw_jobs(make_job(0, "FAILED"), replace(make_job(1, "COMPLETED", gap_s=3600.0), model="eval"))
    assert found is None


def test_a_successful_retry_replaces_the_users_own_retry() -> None:
    """The user's retry an hour later succeeds; with slurmwrap a retry has already succeeded before."""
    jobs = [make_job(0, "NODE_FAIL"), make_job(1, "COMPLETED", gap_s=3600.0)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.completed_jobs.mean, plain.runs.mean) == (1, 2)
    assert (ours.completed_jobs.mean, ours.runs.mean, ours.replaced.mean, ours.cured.mean) == (1, 2, 1, 1)
    assert ours.saved_gpu_hours.mean == 0.0


def test_a_requeue_by_slurm_is_not_credited_to_slurmwrap() -> None:
    jobs = [make_job(0, "NODE_FAIL"), replace(make_job(1, "COMPLETED", gap_s=3600.0), job="0")]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    ours = done.arm("retry")
    assert (ours.cured.mean, ours.replaced.mean, ours.runs.mean, ours.completed_jobs.mean) == (0, 0, 2, 1)


def test_the_users_own_retry_is_kept_if_slurmwrap_gives_up() -> None:
    """The retries of slurmwrap get too little memory; meanwhile the user submits the job with much more."""
    jobs = [replace(make_job(0, "OUT_OF_MEMORY", 3600.0), mem_mib=1000)]
    jobs.append(replace(make_job(1, "COMPLETED", gap_s=3700.0), mem_mib=100_000))
    done = study_of_dump(jobs, servers=SERVERS, settings=replace(SURE, oom_most=1e9), seeds=(1,))
    ours = done.arm("retry")
    assert ours.failed_runs.mean > 1
    assert (ours.completed_jobs.mean, ours.replaced.mean, ours.cured.mean) == (1, 0, 0)


def test_costs_and_benefits_of_retries_are_both_reported() -> None:
    jobs = make_dump()
    done = study_of_dump(jobs, servers=SERVERS, seeds=(1, 2))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.again_gpu_hours.mean, plain.cured.mean) == (0.0, 0.0)
    assert ours.again_gpu_hours.mean > 0
    own = ours.wasted_gpu_hours.mean - ours.again_gpu_hours.mean
    assert own == pytest.approx(plain.wasted_gpu_hours.mean)
    assert ours.false_stop_gpu_hours.mean == 0.0  # these jobs were not run again in the dump either
    assert sum(make_job.cured["retry"] for make_job in done.categories) == pytest.approx(ours.cured.mean)


@pytest.mark.parametrize(("waited_s", "trials"), [(0.0, 0.0), (60.0, 0.0), (61.0, 0.05)])
def test_a_one_gpu_job_that_started_soon_needs_no_pre_run(waited_s: float, trials: float) -> None:
    jobs = [make_job(0, "COMPLETED", 3600.0, gpus=1)]
    done = study_of_dump(jobs, servers=SERVERS, config=ALL, settings=SURE, seeds=(1,), waited_s={0: waited_s})
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(trials)


def test_waiting_in_vain_counts_jobs_that_the_pre_run_stops() -> None:
    jobs = [make_job(at, "FAILED", 20.0, user=str(at), gpus=8) for at in range(200)]
    done = study_of_dump(jobs, servers=SERVERS, config=ALL, seeds=(1,), waited_s=dict.fromkeys(range(200), 7200.0))
    arm = done.arm("pre-run")
    assert arm.stopped_by_trial.mean > 20
    assert arm.waited_in_vain_hours.mean == pytest.approx(2 * arm.stopped_by_trial.mean)


@pytest.mark.parametrize(("reuse", "trials"), [(0.0, 4), (1.0, 1)])
def test_a_program_that_passed_a_pre_run_gets_no_second_one(reuse: float, trials: int) -> None:
    jobs = [replace(make_job(at, "COMPLETED", 3600.0), model="sweep") for at in range(4)]
    done = study_of_dump(jobs, servers=SERVERS, config=ALL, settings=replace(SURE, reuse=reuse), seeds=(1,))
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(trials * 180 / 3600)


def test_an_array_gets_one_pre_run() -> None:
    jobs = [replace(make_job(at, "COMPLETED", 36_000.0), job=f"77_{at}") for at in range(50)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(180 / 3600)


def make_dump() -> list[SimJob]:
    states = (
        "COMPLETED",
        "COMPLETED",
        "FAILED",
        "CANCELLED by 7",
        "TIMEOUT",
        "OUT_OF_MEMORY",
        "NODE_FAIL",
        "PREEMPTED",
    )
    return [
        make_job(
            at, states[at % 8], (50.0, 700.0, 9000.0)[at % 3], user=f"u{at % 5}", gpus=(1, 4, 8)[at % 3], gap_s=900.0
        )
        for at in range(400)
    ]


def test_the_plain_arm_costs_the_failed_gpu_hours_of_the_dump() -> None:
    jobs = make_dump()
    failed = [job for job in jobs if job.status.split()[0] not in ("COMPLETED", "CANCELLED")]
    done = study_of_dump(jobs, servers=SERVERS, seeds=(1, 2))
    plain = done.arm("plain")
    assert plain.cost_gpu_hours.mean == pytest.approx(sum(job.work_s * job.gpus for job in failed) / 3600)
    assert plain.cost_gpu_hours.low == pytest.approx(plain.cost_gpu_hours.high)
    assert (plain.failed_runs.mean, plain.runs.mean) == (len(failed), len(jobs))
    assert (done.source, done.checks) == ("dump", ())


def test_killed_and_completed_runs_are_not_a_cost() -> None:
    jobs = [make_job(0, "COMPLETED", 3600.0), make_job(1, "CANCELLED", 7200.0)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    assert (done.productive_gpu_hours.mean, done.killed_gpu_hours.mean) == (2.0, 4.0)
    assert done.arm("plain").cost_gpu_hours.mean == 0.0


def test_a_job_that_hit_its_time_limit_is_not_retried() -> None:
    done = study_of_dump([make_job(0, "TIMEOUT", 3600.0)], servers=SERVERS, settings=SURE, seeds=(1,))
    assert done.arm("all").failed_runs == done.arm("plain").failed_runs


def test_a_retry_by_slurmwrap_spares_later_submissions_of_the_user() -> None:
    """The user's job runs out of memory three times; the first retry of slurmwrap with more memory succeeds."""
    jobs = [make_job(at, "OUT_OF_MEMORY", 100.0, gap_s=3600.0) for at in range(3)]
    done = study_of_dump(jobs, servers=SERVERS, settings=replace(SURE, oom_most=1.4), seeds=(1,))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.failed_runs.mean, ours.failed_runs.mean, ours.spared.mean) == (3, 1, 2)
    assert ours.completed_jobs.mean == 1


def test_excluding_lemon_nodes_prevents_node_failures() -> None:
    """Every job of a long dump failed with its node, and nearly all of these nodes are drawn as lemons."""
    jobs = [make_job(at, "NODE_FAIL", 3600.0, gpus=1, user=f"u{at % 7}", gap_s=7200.0) for at in range(600)]
    lemons = replace(SURE, lemons_cause=1.0, lemon_share=(0.05, 0.05))
    done = study_of_dump(jobs, servers=SERVERS, settings=lemons, seeds=(1,))
    assert done.arm("plain").node_failures.mean == 600
    assert done.arm("exclusion").node_failures.mean < 300
    assert done.arm("exclusion").saved_gpu_hours.mean > 300


def test_the_same_seed_gives_the_same_study() -> None:
    assert study_of_dump(make_dump(), servers=SERVERS, seeds=(3,)) == study_of_dump(
        make_dump(), servers=SERVERS, seeds=(3,)
    )
