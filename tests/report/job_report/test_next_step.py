"""The command to try next, of each kind of failure: in the unit that was asked for, and safe to paste."""

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

ASKED = Submission(
    cluster="lab", job_id=81, uid=1, user="ada", at=1.0, script_path="train.sbatch", work_dir="/home/ada"
)
SCRIPT = "/home/ada/train.sbatch"


def run(category: str, **changes: Any) -> JobRun:
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
        (run("gpu_oom"), (f"gsub --prerun=only {SCRIPT}",)),
        (run("cpu_oom", mem_mib_per_node=65536), (f"gsub --mem=96G {SCRIPT}",)),
        (run("cpu_oom", mem_mib_per_cpu=500), (f"gsub --mem-per-cpu=750M {SCRIPT}",)),
        (run("cpu_oom"), (f"gsub --prerun=only {SCRIPT}",)),
        (run("time_limit", time_limit_s=4 * 3600), (f"gsub --time=06:00:00 {SCRIPT}",)),
        (run("time_limit", time_limit_s=86400), (f"gsub --time=1-12:00:00 {SCRIPT}",)),
        (run("nccl_error"), (f"NCCL_DEBUG=INFO gsub --retry {SCRIPT}",)),
        (run("gpu_hardware", node="n3"), (f"gsub --retry --exclude=n3 {SCRIPT}",)),
        (run("core_dump"), (f"PYTHONFAULTHANDLER=1 gsub --prerun=only {SCRIPT}",)),
        (run("cuda_failure"), (f"CUDA_LAUNCH_BLOCKING=1 gsub --prerun=only {SCRIPT}",)),
        (run("model_diverged"), (f"gsub {SCRIPT}",)),
        (run("storage_full"), (f"gsub {SCRIPT}",)),
        (run("incorrect_inputs", decision="blacklist_input"), (f"gsub {SCRIPT}",)),
        (run("checkpoint_error"), (f"gsub --prerun=only {SCRIPT}",)),
        (run("no_signature", std_out="/o ut"), ("tail -n 60 '/o ut'", f"gsub --prerun=only {SCRIPT}")),
        (
            run("incorrect_inputs", decision="blacklist_input", input_path="/data/a b.npz"),
            (f"gsub {SCRIPT}", "slurmwrap inputs show '/data/a b.npz'"),
        ),
        (run("success"), ()),
        (run("cancelled", decision="none"), ()),
    ],
    ids=lambda value: value.diagnosis.category if isinstance(value, JobRun) else "",
)
def test_the_command_fits_the_failure(record: JobRun, commands: tuple[str, ...]) -> None:
    assert find_next_step(JobTimeline(address="81", submission=ASKED, attempts=(record,))).commands == commands


def test_a_job_without_a_script_file_is_told_to_repeat_its_call() -> None:
    no_file = "It had no script file (--template, --wrap, a pipe): repeat that call,"
    for record, command, said in (
        (run("gpu_oom"), "", f"Fix it, test it on one GPU, then submit again. {no_file} gsub --prerun=only …"),
        (run("no_signature", std_out="/o"), "tail -n 60 /o", f"{no_file} gsub --prerun=only …"),
        (run("nccl_error"), "", f"{no_file} NCCL_DEBUG=INFO gsub --retry …"),
    ):
        step = find_next_step(JobTimeline(address="81", submission=replace(ASKED, script_path=""), attempts=(record,)))
        assert (step.command, step.sentence[-len(said) :]) == (command, said)
        assert step.commands == ((command,) if command else ())
    unknown = find_next_step(JobTimeline(address="81", attempts=(run("gpu_oom"),)))
    assert unknown == Next(sentence="Fix it, test it on one GPU, then submit again.")


def test_whatever_a_user_called_his_files_stays_one_word() -> None:
    evil = "x'; rm -rf ~ #\n"
    asked = replace(ASKED, script_path=evil, work_dir="/w d")
    told = {
        category: find_next_step(
            JobTimeline(
                address="81",
                submission=asked,
                attempts=(run(category, input_path=evil, node=evil, std_out=evil),),
            )
        ).commands
        for category in CATEGORIES
    }
    words = {category: {word for one in commands for word in shlex.split(one)} for category, commands in told.items()}
    assert {category for category, split in words.items() if split & {"rm", "-rf", "~", "#", ";"}} == set()


def test_what_was_measured_counts_where_it_is_more() -> None:
    asked = run("cpu_oom", mem_mib_per_node=1024, measurement=Measurement(mem_peak_mib=10240))
    assert suggest_memory(asked) == "--mem=12G"


def test_of_an_array_the_newest_failure_is_meant() -> None:
    tasks = tuple(
        replace(
            run(category), address=f"77_{n}", attempt=RunKey(cluster="lab", job_id=90 + n, submit_time=2), end_time=at
        )
        for n, (category, at) in enumerate((("gpu_oom", 100), ("model_diverged", 300), ("success", 400)))
    )
    asked = replace(ASKED, job_id=77)
    step = find_next_step(JobTimeline(address="77", submission=asked, attempts=tasks))
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
def test_asked_by_the_id_of_a_pre_run_its_verdict_and_its_job_are_told(
    outcome: Outcome, real: int | None, step: Next
) -> None:
    verdict = Verdict(outcome=outcome, layer="step", reason="three steps ran")
    tried = PrerunRecord(cluster="lab", job_id=real, prerun_job_id=82, uid=1, at=9.0, verdict=verdict)
    own = replace(run("success"), attempt=RunKey(cluster="lab", job_id=82, submit_time=2), address="82")
    assert find_next_step(JobTimeline(address="82", preruns=(tried,), slurm_says="COMPLETED")) == step
    assert find_next_step(JobTimeline(address="82", preruns=(tried,), attempts=(own,))) == step
    waiting = Next(sentence="It has not ended.", command="slurmwrap watch 81")
    assert find_next_step(JobTimeline(address="81", preruns=(tried,), slurm_says="PENDING (BeginTime)")) == waiting


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED (None assigned)"])
def test_a_job_that_has_ended_is_not_said_to_go_on(state: str) -> None:
    sentence = "It ended, and is not judged yet: `slurmwrap reconcile` does that."
    assert find_next_step(JobTimeline(address="81", submission=ASKED, slurm_says=state)) == Next(sentence=sentence)


def late(step: int | None, run_s: int = 60, **changes: Any) -> JobRun:
    record = run("traceback_from_crash", start_time=1000, end_time=1000 + run_s, **changes)
    assert record.diagnosis is not None
    return replace(record, diagnosis=replace(record.diagnosis, step=step))


def passed(speed: float | None = None) -> PrerunRecord:
    measured = Measurement(steps_per_s=speed) if speed else None
    verdict = Verdict(outcome=Outcome.PASS, layer="steps", reason="", seconds=12, measurement=measured)
    return PrerunRecord(cluster="lab", job_id=81, prerun_job_id=82, uid=1, at=1.0, verdict=verdict)


@pytest.mark.parametrize(
    ("record", "preruns", "steps", "at"),
    [
        (late(100), (), "150", "after step 100"),
        (late(101), (passed(),), "160", "after step 101"),
        (late(5, measurement=Measurement(steps=800)), (), "1200", "after step 800"),
        (late(None), (passed(5.0),), "450", "after 60 s, and the pre-run ended after 12 s"),
        (late(None), (passed(),), "100", "after 60 s, and the pre-run ended after 12 s"),
        (late(None, 10), (passed(),), "", ""),
        (late(None), (), "", ""),
        (late(3), (passed(),), "", ""),
    ],
)
def test_a_pre_run_is_advised_that_goes_beyond_the_failure(
    record: JobRun, preruns: tuple[PrerunRecord, ...], steps: str, at: str
) -> None:
    step = find_next_step(JobTimeline(address="81", submission=ASKED, attempts=(record,), preruns=preruns))
    further = f" --prerun-steps {steps}" if steps else ""
    said = f" It failed {at}: this pre-run goes that far." if at else ""
    assert step == Next(
        sentence=f"Fix it, test it on one GPU, then submit again.{said}",
        command=f"gsub --prerun=only{further} {SCRIPT}",
    )


def timed_out(left: float | None, cap: int | None = None) -> JobRun:
    record = run("time_limit", time_limit_s=60, start_time=1000, end_time=1063, longest_s=cap, state="TIMEOUT")
    assert record.diagnosis is not None
    return replace(record, diagnosis=replace(record.diagnosis, remaining_s=left))


@pytest.mark.parametrize(
    ("record", "option", "said"),
    [
        (timed_out(978), "--time=00:25:00", "Its output says that 16 min were left: submit it again with more time; "),
        (timed_out(None), "--time=00:02:00", "Submit it again with more time; "),
        (
            timed_out(978, cap=1200),
            "--dependency=singleton --time=00:20:00",
            "Its output says that 16 min were left: it needs about 25 min in all, and its partition allows 20 min: "
            "write checkpoints, and continue in a chain of jobs.",
        ),
    ],
)
def test_after_a_time_limit_the_progress_decides(record: JobRun, option: str, said: str) -> None:
    step = find_next_step(JobTimeline(address="81", submission=ASKED, attempts=(record,)))
    assert (step.command, step.sentence[: len(said)]) == (f"gsub {option} {SCRIPT}", said)


def test_after_an_error_in_the_output_the_script_is_to_keep_the_exit_code() -> None:
    record = late(100)
    assert record.diagnosis is not None
    flawed = replace(record.diagnosis, category="completed_with_error", error="traceback_from_crash", decision="none")
    timeline = JobTimeline(
        address="81", submission=ASKED, attempts=(replace(record, state="COMPLETED", diagnosis=flawed),)
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
def test_a_job_that_was_requeued_is_not_said_to_be_cancelled(says: str, sentence: str, command: str) -> None:
    requeued = run("cancelled", state="REQUEUED", decision="none")
    timeline = JobTimeline(address="81", submission=ASKED, attempts=(requeued,), slurm_says=says)
    assert find_next_step(timeline) == Next(sentence=sentence, command=command)
