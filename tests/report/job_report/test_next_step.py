"""The next command for each category of failure: in the unit of the request, and quoted for the shell."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report.job_report.next_step import Next, find_next_step, suggest_memory
from slurmwrap.report.job_report.timeline import JobTimeline

SUBMISSION = Submission(
    cluster="lab", job_id=81, uid=1, user="ada", at=1.0, script_path="train.sbatch", work_dir="/home/ada"
)
SCRIPT = "/home/ada/train.sbatch"


def make_run(category: str, **changes: Any) -> JobRun:
    known = CATEGORIES[category]
    diagnosis = Diagnosis(
        category=category,
        domain=known.domain,
        decision=known.decision,
        confidence=1,
        signature="",
        advice=known.advice,
        node=changes.pop("node", ""),
        input_path=changes.pop("input_path", ""),
    )
    base = JobRun(
        attempt=RunKey(cluster="lab", job_id=81, submit_time=2),
        address="81",
        state="FAILED",
        end_time=100,
        diagnosis=diagnosis,
        decision="stop",
    )
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("record", "commands"),
    [
        (make_run("gpu_oom"), (f"gsub --prerun=only {SCRIPT}",)),
        (make_run("cpu_oom", mem_mib_per_node=65536), (f"gsub --mem=96G {SCRIPT}",)),
        (make_run("cpu_oom", mem_mib_per_cpu=500), (f"gsub --mem-per-cpu=750M {SCRIPT}",)),
        (make_run("cpu_oom"), (f"gsub --prerun=only {SCRIPT}",)),
        (make_run("time_limit", time_limit_s=4 * 3600), (f"gsub --time=06:00:00 {SCRIPT}",)),
        (make_run("time_limit", time_limit_s=86400), (f"gsub --time=1-12:00:00 {SCRIPT}",)),
        (make_run("nccl_error"), (f"NCCL_DEBUG=INFO gsub --retry {SCRIPT}",)),
        (make_run("gpu_hardware", node="n3"), (f"gsub --retry --exclude=n3 {SCRIPT}",)),
        (make_run("core_dump"), (f"PYTHONFAULTHANDLER=1 gsub --prerun=only {SCRIPT}",)),
        (make_run("cuda_failure"), (f"CUDA_LAUNCH_BLOCKING=1 gsub --prerun=only {SCRIPT}",)),
        (make_run("model_diverged"), (f"gsub {SCRIPT}",)),
        (make_run("storage_full"), (f"gsub {SCRIPT}",)),
        (make_run("incorrect_inputs", decision="blacklist_input"), (f"gsub {SCRIPT}",)),
        (make_run("checkpoint_error"), (f"gsub --prerun=only {SCRIPT}",)),
        (make_run("no_signature", std_out="/o ut"), ("tail -n 60 '/o ut'", f"gsub --prerun=only {SCRIPT}")),
        (
            make_run("incorrect_inputs", decision="blacklist_input", input_path="/data/a b.npz"),
            (f"gsub {SCRIPT}", "slurmwrap inputs show '/data/a b.npz'"),
        ),
        (make_run("success"), ()),
        (make_run("cancelled", decision="none"), ()),
    ],
    ids=lambda value: value.diagnosis.category if isinstance(value, JobRun) else "",
)
def test_the_next_command_matches_the_category(record: JobRun, commands: tuple[str, ...]) -> None:
    assert find_next_step(JobTimeline(address="81", submission=SUBMISSION, attempts=(record,))).commands == commands


def test_without_a_script_file_the_advice_is_to_repeat_the_call() -> None:
    no_file = "It had no script file (--template, --wrap, a pipe): repeat that call,"
    for record, command, sentence in (
        (make_run("gpu_oom"), "", f"Fix it, test it on one GPU, then submit again. {no_file} gsub --prerun=only …"),
        (make_run("no_signature", std_out="/o"), "tail -n 60 /o", f"{no_file} gsub --prerun=only …"),
        (make_run("nccl_error"), "", f"{no_file} NCCL_DEBUG=INFO gsub --retry …"),
    ):
        step = find_next_step(
            JobTimeline(address="81", submission=replace(SUBMISSION, script_path=""), attempts=(record,))
        )
        assert (step.command, step.sentence[-len(sentence) :]) == (command, sentence)
        assert step.commands == ((command,) if command else ())
    unknown = find_next_step(JobTimeline(address="81", attempts=(make_run("gpu_oom"),)))
    assert unknown == Next(sentence="Fix it, test it on one GPU, then submit again.")


def test_file_names_are_quoted_as_one_shell_word() -> None:
    evil = "x'; rm -rf ~ #\n"
    submission = replace(SUBMISSION, script_path=evil, work_dir="/w d")
    advised = {
        category: find_next_step(
            JobTimeline(
                address="81",
                submission=submission,
                attempts=(make_run(category, input_path=evil, node=evil, std_out=evil),),
            )
        ).commands
        for category in CATEGORIES
    }
    words = {
        category: {word for one in commands for word in shlex.split(one)} for category, commands in advised.items()
    }
    assert {category for category, split in words.items() if split & {"rm", "-rf", "~", "#", ";"}} == set()


def test_a_measured_peak_above_the_request_decides_the_advised_memory() -> None:
    submission = make_run("cpu_oom", mem_mib_per_node=1024, measurement=Measurement(mem_peak_mib=10240))
    assert suggest_memory(submission) == "--mem=12G"


def test_the_newest_failure_of_an_array_decides_the_next_step() -> None:
    tasks = tuple(
        replace(
            make_run(category),
            address=f"77_{n}",
            attempt=RunKey(cluster="lab", job_id=90 + n, submit_time=2),
            end_time=at,
        )
        for n, (category, at) in enumerate((("gpu_oom", 100), ("model_diverged", 300), ("success", 400)))
    )
    submission = replace(SUBMISSION, job_id=77)
    step = find_next_step(JobTimeline(address="77", submission=submission, attempts=tasks))
    assert step == Next(sentence="Change what diverges, then submit again.", command=f"gsub {SCRIPT}")


@pytest.mark.parametrize(
    ("outcome", "real", "step"),
    [
        (Outcome.PASS, 81, Next(sentence="This is the pre-run of job 81, and it passed.", command="slurmwrap why 81")),
        (
            Outcome.INCONCLUSIVE,
            81,
            Next(sentence="This is the pre-run of job 81, and it proved nothing.", command="slurmwrap why 81"),
        ),
        (
            Outcome.PASS,
            None,
            Next(sentence="This is a pre-run without a job of its own, and it passed. The job can be submitted."),
        ),
    ],
)
def test_the_id_of_a_pre_run_shows_its_verdict_and_its_job(outcome: Outcome, real: int | None, step: Next) -> None:
    verdict = Verdict(outcome=outcome, layer="step", reason="three steps ran")
    tried = PrerunRecord(cluster="lab", job_id=real, prerun_job_id=82, uid=1, at=9.0, verdict=verdict)
    own = replace(make_run("success"), attempt=RunKey(cluster="lab", job_id=82, submit_time=2), address="82")
    assert find_next_step(JobTimeline(address="82", preruns=(tried,), slurm_says="COMPLETED")) == step
    assert find_next_step(JobTimeline(address="82", preruns=(tried,), attempts=(own,))) == step
    waiting = Next(sentence="It has not ended.", command="slurmwrap watch 81")
    assert find_next_step(JobTimeline(address="81", preruns=(tried,), slurm_says="PENDING (BeginTime)")) == waiting


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED (None assigned)"])
def test_an_ended_job_without_a_diagnosis_is_not_shown_as_running(state: str) -> None:
    sentence = "It ended, and is not judged yet: `slurmwrap reconcile` does that."
    assert find_next_step(JobTimeline(address="81", submission=SUBMISSION, slurm_says=state)) == Next(sentence=sentence)


def make_late_failure(step: int | None, run_s: int = 60, **changes: Any) -> JobRun:
    record = make_run("traceback_from_crash", start_time=1000, end_time=1000 + run_s, **changes)
    assert record.diagnosis is not None
    return replace(record, diagnosis=replace(record.diagnosis, step=step))


def make_passed_prerun(speed: float | None = None) -> PrerunRecord:
    measured = Measurement(steps_per_s=speed) if speed else None
    verdict = Verdict(outcome=Outcome.PASS, layer="steps", reason="", seconds=12, measurement=measured)
    return PrerunRecord(cluster="lab", job_id=81, prerun_job_id=82, uid=1, at=1.0, verdict=verdict)


@pytest.mark.parametrize(
    ("record", "preruns", "steps", "at"),
    [
        (make_late_failure(100), (), "150", "after step 100"),
        (make_late_failure(101), (make_passed_prerun(),), "160", "after step 101"),
        (make_late_failure(5, measurement=Measurement(steps=800)), (), "1200", "after step 800"),
        (make_late_failure(None), (make_passed_prerun(5.0),), "450", "after 60 s, and the pre-run ended after 12 s"),
        (make_late_failure(None), (make_passed_prerun(),), "100", "after 60 s, and the pre-run ended after 12 s"),
        (make_late_failure(None, 10), (make_passed_prerun(),), "", ""),
        (make_late_failure(None), (), "", ""),
        (make_late_failure(3), (make_passed_prerun(),), "", ""),
    ],
)
def test_the_advised_pre_run_has_more_steps_than_the_failed_run(
    record: JobRun, preruns: tuple[PrerunRecord, ...], steps: str, at: str
) -> None:
    step = find_next_step(JobTimeline(address="81", submission=SUBMISSION, attempts=(record,), preruns=preruns))
    further = f" --prerun-steps {steps}" if steps else ""
    sentence = f" It failed {at}: this pre-run goes that far." if at else ""
    assert step == Next(
        sentence=f"Fix it, test it on one GPU, then submit again.{sentence}",
        command=f"gsub --prerun=only{further} {SCRIPT}",
    )


def make_timeout(left: float | None, cap: int | None = None) -> JobRun:
    record = make_run("time_limit", time_limit_s=60, start_time=1000, end_time=1063, longest_s=cap, state="TIMEOUT")
    assert record.diagnosis is not None
    return replace(record, diagnosis=replace(record.diagnosis, remaining_s=left))


@pytest.mark.parametrize(
    ("record", "option", "sentence"),
    [
        (
            make_timeout(978),
            "--time=00:25:00",
            "Its output says that 16 min were left, of about 17 min: submit it again with more time; ",
        ),
        (make_timeout(None), "--time=00:02:00", "Submit it again with more time; "),
        (
            make_timeout(978, cap=1200),
            "--dependency=singleton --time=00:20:00",
            "Its output says that 16 min were left, of about 17 min: it needs about 25 min in all, and its partition "
            "allows 20 min: write checkpoints, and continue in a chain of jobs.",
        ),
    ],
)
def test_after_a_time_limit_the_remaining_time_decides_the_advice(record: JobRun, option: str, sentence: str) -> None:
    step = find_next_step(JobTimeline(address="81", submission=SUBMISSION, attempts=(record,)))
    assert (step.command, step.sentence[: len(sentence)]) == (f"gsub {option} {SCRIPT}", sentence)


def test_after_an_error_in_the_output_set_pipefail_is_advised() -> None:
    record = make_late_failure(100)
    assert record.diagnosis is not None
    flawed = replace(record.diagnosis, category="completed_with_error", error="traceback_from_crash", decision="none")
    timeline = JobTimeline(
        address="81", submission=SUBMISSION, attempts=(replace(record, state="COMPLETED", diagnosis=flawed),)
    )
    step = find_next_step(timeline)
    assert step.command == f"gsub --prerun=only --prerun-steps 150 {SCRIPT}"
    assert "The script hid the program's exit code: begin it with `set -eo pipefail`" in step.sentence


@pytest.mark.parametrize(
    ("says", "sentence", "command"),
    [
        ("", "Nothing: it was requeued and runs again by itself.", "slurmwrap watch 81"),
        (
            "PENDING (Priority)",
            "Nothing: it was requeued and runs again by itself. Slurm says PENDING (Priority).",
            "slurmwrap watch 81",
        ),
        ("CANCELLED", "The run after it ended, and is not judged yet (slurmwrap reconcile).", ""),
    ],
)
def test_a_requeued_job_is_not_shown_as_cancelled(says: str, sentence: str, command: str) -> None:
    requeued = make_run("cancelled", state="REQUEUED", decision="none")
    timeline = JobTimeline(address="81", submission=SUBMISSION, attempts=(requeued,), slurm_says=says)
    assert find_next_step(timeline) == Next(sentence=sentence, command=command)
