"""Which records belong to a job, which job failed last, and its next step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.policy.retry_decision import REQUEUED_ALREADY
from slurmwrap.report.job_report.next_step import Next, find_next_step
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline, find_last_failure

SUBMISSION = Submission(
    cluster="lab",
    job_id=81,
    uid=1001,
    user="ada",
    at=10_000,
    prerun_job_id=82,
    script_path="my train.sbatch",
    work_dir="/home/ada",
)
PASSED = PrerunRecord(
    cluster="lab",
    job_id=81,
    prerun_job_id=82,
    uid=1001,
    at=10_100,
    verdict=Verdict(outcome=Outcome.PASS, layer="step", reason="3 steps"),
)
FAILED = replace(PASSED, verdict=Verdict(outcome=Outcome.FAIL, layer="exit", reason="exit 1"))


def make_run(submit_time: int = 10_001, category: str = "gpu_oom", decision: str = "stop", job_id: int = 81) -> JobRun:
    diagnosis = Diagnosis(
        category=category, domain="U", decision=decision, confidence=1, signature="", advice="Use less."
    )
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=submit_time),
        address=str(job_id),
        uid=1001,
        state="FAILED",
        end_time=submit_time + 50,
        diagnosis=diagnosis if category else None,
        decision=decision if category else "",
    )


def make_action(record: JobRun, **changes: object) -> ActionRecord:
    base = ActionRecord(
        action_id=1,
        attempt=record.attempt,
        rule="retry",
        mode="act",
        verb="requeuehold",
        target=record.address,
        key="",
        value="",
        reason="",
        intended_at=1.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_timeline_is_of_the_newest_job_with_the_id() -> None:
    old = replace(SUBMISSION, at=100.0, prerun_job_id=None)
    mine = make_run()
    timeline = build_timeline(
        "81", [SUBMISSION, old], [PASSED, replace(PASSED, at=150.0)], [mine, make_run(101)], [make_action(mine)]
    )
    assert timeline == JobTimeline(
        address="81", submission=SUBMISSION, preruns=(PASSED,), attempts=(mine,), actions=(make_action(mine),)
    )


def test_a_job_with_the_same_id_on_another_cluster_is_left_out() -> None:
    mine, later = make_run(), make_run(20_000)
    theirs = replace(later, attempt=replace(later.attempt, cluster="other"))
    timeline = build_timeline(
        "81", [SUBMISSION], [PASSED, replace(PASSED, cluster="other", at=20_100)], [mine, theirs], []
    )
    assert (timeline.preruns, timeline.attempts) == ((PASSED,), (mine,))


def test_an_older_job_with_a_soon_reused_id_is_left_out() -> None:
    """A cluster that is set up again under its old name starts again with job id 1."""
    submission, old = replace(SUBMISSION, prerun_job_id=None), [make_run(9_800), replace(make_run(9_900), restarts=1)]
    mine = [make_run(10_001), replace(make_run(10_100), restarts=1)]
    assert build_timeline("81", [submission], [], [*old, *mine], []).attempts == tuple(mine)
    assert build_timeline("81", [], [], [*old, *mine], []).attempts == tuple(mine)


def test_a_submission_of_an_older_job_is_not_used_for_a_newer_one() -> None:
    old, newer = make_run(10_001), make_run(20_000)
    timeline = build_timeline("81", [SUBMISSION], [PASSED], [old, newer], [])
    assert timeline == JobTimeline(address="81", attempts=(newer,))


def test_the_id_of_a_prerun_gives_the_timeline_of_its_job() -> None:
    runs = [make_run(), make_run(job_id=82)]
    timeline = JobTimeline(address="81", submission=SUBMISSION, preruns=(PASSED,), attempts=(runs[0],))
    assert (
        build_timeline("82", [SUBMISSION], [PASSED], runs, [])
        == build_timeline("81", [SUBMISSION], [PASSED], runs, [])
        == timeline
    )


def test_timelines_of_an_array_an_array_task_and_a_raw_job_id() -> None:
    tasks = tuple(replace(make_run(10_000 + n, job_id=90 + n), address=f"81_{n}") for n in range(3))
    assert build_timeline("81", [SUBMISSION], [], tasks, []).attempts == tasks
    assert build_timeline("81_1", [SUBMISSION], [], tasks, []) == JobTimeline(
        address="81_1", submission=SUBMISSION, attempts=(tasks[1],)
    )
    assert build_timeline("92", [], [], tasks, []).attempts == (tasks[2],)


def test_array_tasks_are_ordered_by_number() -> None:
    tasks = [replace(make_run(job_id=90 + task), address=f"77_{task}") for task in (10, 2, 0)]
    assert [one.address for one in build_timeline("77", (), (), tasks, (), ()).attempts] == ["77_0", "77_2", "77_10"]


def test_without_a_submission_only_runs_of_the_newest_owner_count() -> None:
    mine, other = make_run(20_000), replace(make_run(10_000), uid=7)
    assert build_timeline("81", [], [], [other, mine], []).attempts == (mine,)


def test_the_timeline_of_an_unknown_job_is_empty() -> None:
    assert build_timeline("99", [SUBMISSION], [PASSED], [make_run()], []).empty
    assert build_timeline("x", [SUBMISSION], [PASSED], [make_run()], []).empty


def test_the_last_failure_is_the_later_of_run_and_prerun() -> None:
    assert find_last_failure(
        [make_run(), make_run(20_000, "success", job_id=83), make_run(30_000, "", job_id=84)], [PASSED]
    ) == (
        "81",
        "lab",
    )
    assert find_last_failure([make_run(10_001)], [replace(FAILED, job_id=85, at=20_000, cluster="b")]) == ("85", "b")
    assert find_last_failure([], [replace(FAILED, job_id=None)]) == ("82", "lab")
    assert find_last_failure([make_run(category="cancelled")], [PASSED]) is None


SCRIPT = "'/home/ada/my train.sbatch'"
BLOCKED = make_run(category="incorrect_inputs", decision="blacklist_input")
NOT_LAUNCHED = make_run(category="node_failure", decision="retry_elsewhere")
HELD = (
    "it could not be launched, and Slurm holds it; not released: no --retry ('scontrol release 81' lets it start again)"
)
WITH_REQUEUE = make_run(category="nccl_error", decision="retry")


@pytest.mark.parametrize(
    ("timeline", "step"),
    [
        (
            JobTimeline(address="81", submission=SUBMISSION, preruns=(FAILED,)),
            Next(
                sentence="Fix what the pre-run found, test it on one GPU, then submit again.",
                command=f"gsub --prerun=only {SCRIPT}",
            ),
        ),
        (
            JobTimeline(
                address="81",
                submission=SUBMISSION,
                preruns=(FAILED,),
                attempts=(replace(make_run(category="cancelled", decision="none"), state="CANCELLED"),),
            ),
            Next(
                sentence="Fix what the pre-run found, test it on one GPU, then submit again.",
                command=f"gsub --prerun=only {SCRIPT}",
            ),
        ),
        (
            JobTimeline(address="81", submission=SUBMISSION, preruns=(PASSED,)),
            Next(sentence="It has not ended.", command="slurmwrap watch 81"),
        ),
        (
            JobTimeline(address="81", submission=SUBMISSION, attempts=(make_run(),)),
            Next(
                sentence="Fix it, test it on one GPU, then submit again.",
                command=f"gsub --prerun=only {SCRIPT}",
            ),
        ),
        (
            JobTimeline(address="81", attempts=(make_run(),)),
            Next(sentence="Fix it, test it on one GPU, then submit again."),
        ),
        (
            JobTimeline(address="81", submission=SUBMISSION, attempts=(BLOCKED,)),
            Next(
                sentence="Find the file that it could not read, fix or replace it, then submit again.",
                command=f"gsub {SCRIPT}",
            ),
        ),
        (
            JobTimeline(
                address="81",
                submission=SUBMISSION,
                attempts=(replace(BLOCKED, decision_reason="/data/a.npz: does not exist"),),
            ),
            Next(sentence="Put the file there, or correct its path; then submit again.", command=f"gsub {SCRIPT}"),
        ),
        (
            JobTimeline(
                address="81",
                submission=SUBMISSION,
                attempts=(replace(NOT_LAUNCHED, decision="stop", decision_reason=HELD),),
            ),
            Next(sentence="Slurm holds it: let it start again, or cancel it.", command="scontrol release 81"),
        ),
        (
            JobTimeline(
                address="81",
                submission=SUBMISSION,
                attempts=(NOT_LAUNCHED,),
                actions=(make_action(NOT_LAUNCHED, verb="release", done_at=2.0),),
            ),
            Next(sentence="Nothing: it runs again by itself.", command="slurmwrap watch 81"),
        ),
        (
            JobTimeline(address="81", attempts=(WITH_REQUEUE,), actions=(make_action(WITH_REQUEUE, done_at=2.0),)),
            Next(sentence="Nothing: it runs again by itself.", command="slurmwrap watch 81"),
        ),
        (
            JobTimeline(
                address="81",
                submission=SUBMISSION,
                attempts=(WITH_REQUEUE,),
                actions=(
                    make_action(WITH_REQUEUE, mode="advise"),
                    make_action(WITH_REQUEUE, mode="advise", verb="release"),
                    make_action(WITH_REQUEUE, mode="advise", verb="drain", target="n3"),
                ),
            ),
            Next(sentence="It can be run again:", command="scontrol requeuehold 81 && scontrol release 81"),
        ),
        (
            JobTimeline(address="81", attempts=(WITH_REQUEUE,), actions=(make_action(WITH_REQUEUE, error="no"),)),
            Next(sentence="Use less."),
        ),
        (
            JobTimeline(address="81", attempts=(make_run(category="success", decision="none"),)),
            Next(sentence="Nothing: it completed."),
        ),
        (
            JobTimeline(address="81", attempts=(make_run(category="cancelled", decision="none"),)),
            Next(sentence="Nothing: it was cancelled."),
        ),
        (
            JobTimeline(address="81", attempts=(make_run(category=""),)),
            Next(sentence="It ended and is not judged yet; the reconciler does that within a minute."),
        ),
    ],
)  # fmt: skip
def test_next_step_of_a_timeline(timeline: JobTimeline, step: Next) -> None:
    assert find_next_step(timeline) == step


def test_a_run_requeued_by_slurm_needs_no_action() -> None:
    lost = replace(
        make_run(category="node_failure", decision="retry_elsewhere"), decision_reason=f"x; {REQUEUED_ALREADY}"
    )
    timeline = build_timeline("81", [SUBMISSION], [PASSED], [lost], [])
    assert find_next_step(timeline) == Next(sentence="Nothing: it runs again by itself.", command="slurmwrap watch 81")
