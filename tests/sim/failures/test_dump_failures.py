"""A site's own dump: what failed and for how long are facts; the cause is drawn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from slurmwrap.sim.failures import FailureSettings, study_of_dump
from slurmwrap.sim.failures.draw_failures import FailingJob, draw_dump
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

SERVERS = make_equal_servers(20, gpus=8, cpus=24, mem_gb=500)
DEFAULT = FailureSettings()
SURE = FailureSettings(misread=0.0, own_read=1.0)


def row(
    number: int, status: str, work_s: float = 100.0, *, user: str = "ada", gpus: int = 2, gap_s: float = 1e6
) -> SimJob:
    return SimJob(
        number=number, job=str(number), submit_s=gap_s * number, work_s=work_s, gpus=gpus, user=user, status=status
    )


def failing_job(*jobs: SimJob, seed: int = 1) -> list[FailingJob | None]:
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
def test_slurms_word_is_the_cause(status: str, category: str, curable: bool) -> None:
    (found,) = failing_job(row(0, status, 1234.0))
    assert found is not None
    assert (found.category, found.curable, found.run_s, found.trials) == (category, curable, 1234.0, 1)


@pytest.mark.parametrize("status", ["COMPLETED", "RUNNING", "", "REQUEUED"])
def test_what_is_no_failure_fails_not(status: str) -> None:
    assert failing_job(row(0, status)) == [None]


def test_a_cancelled_job_was_ended_by_its_user() -> None:
    (found,) = failing_job(row(0, "CANCELLED by 1000"))
    assert found == FailingJob(number=0, uid=0, killed=True)


def test_the_cause_of_a_failed_job_agrees_with_its_run_time() -> None:
    """Nothing but MPI's daemons and checkpoints goes on for a week before it fails; a syntax error does not."""

    def causes(work_s: float) -> Counter[str]:
        jobs = [row(number, "FAILED", work_s, user=str(number)) for number in range(300)]
        return Counter(one.category for one in failing_job(*jobs) if one is not None)

    short, long = causes(20.0), causes(7 * 86_400.0)
    assert short["core_dump"] > 3 * long["core_dump"]
    assert short["syntax_error"] > 0
    assert short["mpi_runtime_failure"] == 0
    assert long["mpi_runtime_failure"] + long["checkpoint_error"] + long["incorrect_inputs"] > 200
    assert long["syntax_error"] == 0
    assert (short["cpu_oom"], long["job_preempted"]) == (0, 0)


def test_the_same_asked_again_within_a_day_is_the_same_fault() -> None:
    one, again, other = failing_job(*(row(at, "FAILED", gap_s=3600.0) for at in range(2)), row(2, "FAILED", user="bob"))
    assert one is not None
    assert again is not None
    assert other is not None
    assert (again.category, again.chain) == (one.category, one.chain)
    assert other.chain == other.number


@pytest.mark.parametrize(
    "later",
    [
        row(1, "FAILED", gap_s=3600.0, gpus=4),  # asks for something else
        row(1, "FAILED", gap_s=3600.0, user="bob"),
        row(1, "FAILED", gap_s=200_000.0),  # two days later
        row(1, "FAILED", gap_s=50.0),  # submitted before the first one had failed
        row(1, "TIMEOUT", gap_s=3600.0),
    ],
    ids=["another request", "another user", "later", "at once", "another end"],
)
def test_what_is_a_fault_of_its_own(later: SimJob) -> None:
    _, found = failing_job(row(0, "FAILED"), later)
    assert found is not None
    assert found.chain == 1


def test_jobs_without_users_are_nobodys_second_try() -> None:
    found = failing_job(*(row(at, "FAILED", gap_s=3600.0, user="") for at in range(3)))
    assert [one.chain for one in found if one is not None] == [0, 1, 2]


def test_each_failure_is_answered_once() -> None:
    """Two of the same fail side by side; of the three that come later the third answers nobody."""
    failed = [row(at, "FAILED", gap_s=1.0) for at in range(2)]
    later = [replace(row(at, "COMPLETED", gap_s=1.0), submit_s=1000.0 + at) for at in range(2, 5)]
    found = failing_job(*failed, *later)
    assert [one and one.chain for one in found] == [0, 1, 0, 1, None]


def test_who_ran_out_of_memory_may_ask_for_more() -> None:
    def answer(status: str, mem_mib: int) -> FailingJob | None:
        first = replace(row(0, status), mem_mib=1000)
        return failing_job(first, replace(row(1, "COMPLETED", gap_s=3600.0), mem_mib=mem_mib))[1]

    assert answer("OUT_OF_MEMORY", 2000) is not None
    assert answer("OUT_OF_MEMORY", 500) is None
    assert answer("FAILED", 2000) is None


def test_another_name_is_another_job() -> None:
    _, found = failing_job(row(0, "FAILED"), replace(row(1, "COMPLETED", gap_s=3600.0), model="eval"))
    assert found is None


def test_a_retry_that_ends_well_stands_for_its_users_own() -> None:
    """He submits it again an hour later, and that ends well: with slurmwrap it has ended well before."""
    jobs = [row(0, "NODE_FAIL"), row(1, "COMPLETED", gap_s=3600.0)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.completed_jobs.mean, plain.runs.mean) == (1, 2)
    assert (ours.completed_jobs.mean, ours.runs.mean, ours.replaced.mean, ours.cured.mean) == (1, 2, 1, 1)
    assert ours.saved_gpu_hours.mean == 0.0


def test_what_slurm_requeued_by_itself_is_no_merit_of_ours() -> None:
    jobs = [row(0, "NODE_FAIL"), replace(row(1, "COMPLETED", gap_s=3600.0), job="0")]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    ours = done.arm("retry")
    assert (ours.cured.mean, ours.replaced.mean, ours.runs.mean, ours.completed_jobs.mean) == (0, 0, 2, 1)


def test_where_we_give_up_its_users_own_run_is_not_taken_from_him() -> None:
    """Ever more memory is not enough, and meanwhile he submitted it with much more."""
    jobs = [replace(row(0, "OUT_OF_MEMORY", 3600.0), mem_mib=1000)]
    jobs.append(replace(row(1, "COMPLETED", gap_s=3700.0), mem_mib=100_000))
    done = study_of_dump(jobs, servers=SERVERS, settings=replace(SURE, oom_most=1e9), seeds=(1,))
    ours = done.arm("retry")
    assert ours.failed_runs.mean > 1
    assert (ours.completed_jobs.mean, ours.replaced.mean, ours.cured.mean) == (1, 0, 0)


def test_what_a_retry_costs_is_told_beside_what_it_gives() -> None:
    jobs = dump()
    done = study_of_dump(jobs, servers=SERVERS, seeds=(1, 2))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.again_gpu_hours.mean, plain.cured.mean) == (0.0, 0.0)
    assert ours.again_gpu_hours.mean > 0
    own = ours.wasted_gpu_hours.mean - ours.again_gpu_hours.mean
    assert own == pytest.approx(plain.wasted_gpu_hours.mean)
    assert ours.false_stop_gpu_hours.mean == 0.0  # nobody ran these again as it was, either
    assert sum(row.cured["retry"] for row in done.categories) == pytest.approx(ours.cured.mean)


@pytest.mark.parametrize(("waited_s", "trials"), [(0.0, 0.0), (60.0, 0.0), (61.0, 0.05)])
def test_a_one_gpu_job_that_could_start_was_its_own_pre_run(waited_s: float, trials: float) -> None:
    jobs = [row(0, "COMPLETED", 3600.0, gpus=1)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,), waited_s={0: waited_s})
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(trials)


def test_what_jobs_waited_for_in_vain_is_known_of_those_that_the_pre_run_stops() -> None:
    jobs = [row(at, "FAILED", 20.0, user=str(at), gpus=8) for at in range(200)]
    done = study_of_dump(jobs, servers=SERVERS, seeds=(1,), waited_s=dict.fromkeys(range(200), 7200.0))
    arm = done.arm("pre-run")
    assert arm.stopped_by_trial.mean > 20
    assert arm.waited_in_vain_hours.mean == pytest.approx(2 * arm.stopped_by_trial.mean)


@pytest.mark.parametrize(("reuse", "trials"), [(0.0, 4), (1.0, 1)])
def test_what_passed_a_pre_run_is_not_pre_run_again(reuse: float, trials: int) -> None:
    jobs = [replace(row(at, "COMPLETED", 3600.0), model="sweep") for at in range(4)]
    done = study_of_dump(jobs, servers=SERVERS, settings=replace(SURE, reuse=reuse), seeds=(1,))
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(trials * 180 / 3600)


def test_an_array_has_one_pre_run() -> None:
    jobs = [replace(row(at, "COMPLETED", 3600.0), job=f"77_{at}") for at in range(50)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    assert done.arm("pre-run").trial_gpu_hours.mean == pytest.approx(180 / 3600)


def dump() -> list[SimJob]:
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
        row(at, states[at % 8], (50.0, 700.0, 9000.0)[at % 3], user=f"u{at % 5}", gpus=(1, 4, 8)[at % 3], gap_s=900.0)
        for at in range(400)
    ]


def test_as_it_was_costs_what_the_dump_says() -> None:
    jobs = dump()
    failed = [job for job in jobs if job.status.split()[0] not in ("COMPLETED", "CANCELLED")]
    done = study_of_dump(jobs, servers=SERVERS, seeds=(1, 2))
    plain = done.arm("plain")
    assert plain.cost_gpu_hours.mean == pytest.approx(sum(job.work_s * job.gpus for job in failed) / 3600)
    assert plain.cost_gpu_hours.low == pytest.approx(plain.cost_gpu_hours.high)
    assert (plain.failed_runs.mean, plain.runs.mean) == (len(failed), len(jobs))
    assert (done.source, done.checks) == ("dump", ())


def test_runs_that_were_killed_or_ended_well_are_no_cost() -> None:
    jobs = [row(0, "COMPLETED", 3600.0), row(1, "CANCELLED", 7200.0)]
    done = study_of_dump(jobs, servers=SERVERS, settings=SURE, seeds=(1,))
    assert (done.productive_gpu_hours.mean, done.killed_gpu_hours.mean) == (2.0, 4.0)
    assert done.arm("plain").cost_gpu_hours.mean == 0.0


def test_a_time_limit_is_given_nothing_more() -> None:
    done = study_of_dump([row(0, "TIMEOUT", 3600.0)], servers=SERVERS, settings=SURE, seeds=(1,))
    assert done.arm("all").failed_runs == done.arm("plain").failed_runs


def test_what_is_retried_for_its_user_need_not_be_submitted_again() -> None:
    """Three times out of memory by hand; with more memory at once, the second run ends well."""
    jobs = [row(at, "OUT_OF_MEMORY", 100.0, gap_s=3600.0) for at in range(3)]
    done = study_of_dump(jobs, servers=SERVERS, settings=replace(SURE, oom_most=1.4), seeds=(1,))
    plain, ours = done.arm("plain"), done.arm("retry")
    assert (plain.failed_runs.mean, ours.failed_runs.mean, ours.spared.mean) == (3, 1, 2)
    assert ours.completed_jobs.mean == 1


def test_a_lemon_that_is_avoided_fails_under_nobody() -> None:
    """Every job of a long dump was lost to its node; nearly all of them to one of the made-up lemons."""
    jobs = [row(at, "NODE_FAIL", 3600.0, gpus=1, user=f"u{at % 7}", gap_s=7200.0) for at in range(600)]
    lemons = replace(SURE, lemons_cause=1.0, lemon_share=(0.05, 0.05))
    done = study_of_dump(jobs, servers=SERVERS, settings=lemons, seeds=(1,))
    assert done.arm("plain").node_failures.mean == 600
    assert done.arm("exclusion").node_failures.mean < 300
    assert done.arm("exclusion").saved_gpu_hours.mean > 300


def test_the_same_seed_gives_the_same() -> None:
    assert study_of_dump(dump(), servers=SERVERS, seeds=(3,)) == study_of_dump(dump(), servers=SERVERS, seeds=(3,))
