"""The text of `slurmwrap why`: golden pages, and escaped text from users."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.cli.terminal import paint
from slurmwrap.model.evidence import Citation
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.job_run import ActionRecord
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import EarlyFinding
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.report.job_report.job_report_text import MAX_LINES, format_job_report
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline
from slurmwrap.report.text_format import width

CHANGES = (
    {"option": "mem", "old": "64G", "new": "20G", "where": "train.sbatch:4", "reason": "Measured 15.9 GiB, 20 % more."},
    {"option": "exclude", "old": None, "new": "n[3-4]", "where": "added", "reason": "Suspect nodes."},
    {"option": "cpus-per-task", "old": "8", "new": "8", "where": "train.sbatch:5", "reason": "Nothing is known yet."},
    {"option": "requeue", "old": None, "new": "", "where": "added", "reason": "--retry needs it."},
    {"option": "nodelist", "old": "n1", "new": None, "where": "train.sbatch:6", "reason": ""},
)
PLAN = {"node_count": 2, "gpus_per_node": 8, "switch": "s1", "locality": "consolidated"}


def build_retried_timeline(day: dict[str, Any]) -> JobTimeline:
    """Ada's job 101 of the synthetic day: two plans, a failure by an Xid, a retry elsewhere."""
    timeline = build_timeline("101", day["submissions"], day["preruns"], day["attempts"], day["actions"])
    assert timeline.submission is not None
    submission = replace(
        timeline.submission,
        name="vit-large",
        gpus=16,
        script_path="train.sbatch",
        work_dir="/home/ada",
        changes=CHANGES[1:],
        plan=PLAN,
    )
    first, second = timeline.attempts
    assert first.diagnosis is not None
    text = "NVRM: Xid (PCI:0000:07:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    diagnosis = replace(
        first.diagnosis,
        evidence=(
            Citation(source="slurm-101.out", line=812, text="ncclRemoteError", role="cascade"),
            Citation(source="kernel:n3", line=0, text=text),
        ),
    )
    first = replace(first, diagnosis=diagnosis, exit_code=1, decision_reason="Xid 79 blames n3; retry 1 of 3")
    prerun = replace(timeline.preruns[0], changes=CHANGES[:1], plan=PLAN)
    return replace(timeline, submission=submission, preruns=(prerun,), attempts=(first, second))


def test_a_run_of_an_incident_is_marked(day: dict[str, Any]) -> None:
    plain = build_retried_timeline(day)
    struck = replace(plain, attempts=(replace(plain.attempts[0], incident="i1"), plain.attempts[1]))
    sentence = "Part of an incident: the same cause struck several jobs within minutes."
    assert (format_job_report(plain).count(sentence), format_job_report(struck).count(sentence)) == (0, 1)


def test_an_oom_kill_shows_no_signal_125_and_input_blocks_show_their_scope(day: dict[str, Any]) -> None:
    timeline = build_retried_timeline(day)
    killed = replace(timeline.attempts[0], state="OUT_OF_MEMORY", exit_code=0, signal=125)
    block = replace(timeline.actions[0], mode="act", verb="block input", target="/d/a.npz", key="user", reason="cut")
    blocks = (replace(block, done_at=1.0), replace(block, done_at=1.0, key="site", attempt=killed.attempt))
    page = format_job_report(
        replace(timeline, attempts=(killed,), actions=tuple(replace(b, attempt=killed.attempt) for b in blocks))
    )
    assert ("RUN 1 OUT_OF_MEMORY\n" in page, "125" in page) == (True, False)
    line = "  done: slurmwrap inputs block /d/a.npz --reason cut"
    assert [row for row in page.splitlines() if "inputs block" in row] == [
        f"{line}  # for its owner's jobs",
        f"{line}  # for everybody's jobs",
    ]


def build_stopped_timeline(day: dict[str, Any]) -> JobTimeline:
    """Fay's job 170, stopped by its pre-run."""
    timeline = build_timeline("170", day["submissions"], day["preruns"], day["attempts"], day["actions"])
    finding = Finding(
        severity=Severity.WARNING,
        message="the file 'data.bin' does not exist",
        file="train.py",
        line=12,
        fix="Make it.",
    )
    verdict = Verdict(
        outcome=Outcome.FAIL,
        layer="exit",
        reason="the program ended with exit code 1 before its first optimizer step",
        seconds=41,
        category="semantic_error",
        findings=(finding,),
        evidence=(
            Citation(source="stderr", line=31, text='  File "/home/fay/train.py", line 40, in training_step'),
            Citation(source="stderr", line=33, text="RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ),
        input_path="/data/x.npy",
        input_fault="truncated",
    )
    assert timeline.submission is not None
    submission = replace(timeline.submission, name="bert", gpus=32, script_path="/home/fay/train.sbatch")
    return replace(timeline, submission=submission, preruns=(replace(timeline.preruns[0], verdict=verdict),))


def test_pages_equal_the_golden_file(day: dict[str, Any], data: Path) -> None:
    page = (
        format_job_report(build_retried_timeline(day))
        + "\n"
        + "=" * 80
        + "\n\n"
        + format_job_report(build_stopped_timeline(day))
    )
    golden = data / "why.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(page, encoding="utf-8")
    assert page == golden.read_text(encoding="utf-8")


def test_colour_does_not_change_the_text(day: dict[str, Any]) -> None:
    import re

    for timeline in (build_retried_timeline(day), build_stopped_timeline(day)):
        coloured = format_job_report(timeline, paint=paint)
        assert "\033[31m" in coloured
        assert re.sub(r"\033\[\d+m", "", coloured) == format_job_report(timeline)


def test_control_characters_in_users_text_are_escaped(day: dict[str, Any]) -> None:
    evil = "\x1b[2J\r\n\u202e" + "word " * 100
    base, halted = build_retried_timeline(day), build_stopped_timeline(day)
    assert base.submission is not None
    first = base.attempts[0]
    assert first.diagnosis is not None
    diagnosis = replace(
        first.diagnosis, advice=evil, evidence=(Citation(source=evil, line=1, text=evil),) * 20, node=evil
    )
    timeline = replace(
        base,
        submission=replace(
            base.submission,
            name=evil,
            user=evil,
            script_path=evil,
            changes=({"option": evil, "old": evil, "new": evil + "x", "reason": evil}, {}, {"option": 3, "new": [1]}),
            plan={"node_count": evil, "switch": evil, "locality": 7},
        ),
        attempts=(replace(first, diagnosis=diagnosis, decision_reason=evil, state=evil, address=evil),),
        actions=tuple(replace(a, value=evil, error=evil) for a in base.actions),
        preruns=(replace(halted.preruns[0], verdict=replace(halted.preruns[0].verdict, reason=evil, input_path=evil)),),
    )
    page = format_job_report(timeline)
    assert all(character.isprintable() or character == "\n" for character in page)
    assert f"and {20 - MAX_LINES} lines more" in page
    wide = [line for line in page.splitlines() if width(line) > 80]
    assert [line for line in wide if "scontrol" not in line and "squeue" not in line and "gsub" not in line] == [
        line for line in wide if line.startswith("RUN 1")
    ]


def test_counted_steps_of_a_run_are_shown(day: dict[str, Any]) -> None:
    timeline = build_retried_timeline(day)
    first = timeline.attempts[0]
    counted = Measurement(steps=1200, steps_per_s=2.5, steps_until_s=first.run_s - 600)
    page = format_job_report(replace(timeline, attempts=(replace(first, measurement=counted), timeline.attempts[1])))
    assert "It counted 1,200 steps, 2.5 a second, the last 10 min before the end." in " ".join(page.split())
    assert "It counted" not in format_job_report(timeline)


def test_what_was_found_while_a_run_lasted_is_shown_with_it(day: dict[str, Any]) -> None:
    timeline = build_retried_timeline(day)
    finding = EarlyFinding(
        attempt=timeline.attempts[0].attempt, kind="partly_dead", at=timeline.attempts[0].attempt.submit_time + 600.0,
        n=1, evidence="rank 3 ended with an error", uid=1, address="101", mode="act", action="requeue",
    )  # fmt: skip
    page = " ".join(format_job_report(replace(timeline, findings=(finding,))).split())
    assert "partly dead: rank 3 ended with an error; slurmwrap requeued it" in page.partition("RUN 2")[0]


def test_a_job_of_the_holdout_group_is_marked(day: dict[str, Any]) -> None:
    plain = replace(build_retried_timeline(day), preruns=())
    assert plain.submission is not None
    held = replace(plain, submission=replace(plain.submission, holdout_group="0" * 16, held_out=True))
    sentence = "PRE-RUN left out at random (prerun.holdout), to measure what pre-runs save"
    assert [sentence in format_job_report(timeline).splitlines() for timeline in (plain, held)] == [False, True]


NAME_ERROR = Finding(
    severity=Severity.WARNING, message="NameError: name 'args' is not defined", file="/home/ada/train.py", line=9
)
OTHER = Finding(severity=Severity.WARNING, message="the file 'data.bin' does not exist", file="train.sbatch", line=3)


def build_warned_timeline(day: dict[str, Any]) -> JobTimeline:
    """Ada's job 101, which failed with an error that gsub had warned of."""
    timeline = build_retried_timeline(day)
    assert timeline.submission is not None
    first = timeline.attempts[0]
    assert first.diagnosis is not None
    crash = Citation(
        source="slurm-101.out",
        line=40,
        text="NameError: name 'args' is not defined",
        before=('  File "/home/ada/train.py", line 9, in save',),
    )
    diagnosis = replace(first.diagnosis, category="traceback_from_crash", domain="U", node="", evidence=(crash,))
    submission = replace(timeline.submission, warnings=(OTHER, NAME_ERROR))
    return replace(timeline, submission=submission, attempts=(replace(first, diagnosis=diagnosis),), actions=())


def test_a_warning_at_submission_is_shown_with_the_matching_failure(day: dict[str, Any]) -> None:
    page = format_job_report(build_warned_timeline(day), columns=200)
    assert "  gsub had warned at submission: train.py:9: NameError: name 'args' is not defined" in page.splitlines()
    assert "data.bin" not in page


def test_failure_and_next_step_are_shown_before_changed_options(day: dict[str, Any]) -> None:
    short, whole = (
        format_job_report(build_warned_timeline(day)),
        format_job_report(build_warned_timeline(day), verbose=True),
    )
    assert [whole.index(title) for title in ("RUN 1", "NEXT", "PRE-RUN", "ASKED AND CHANGED")] == sorted(
        whole.index(title) for title in ("RUN 1", "NEXT", "PRE-RUN", "ASKED AND CHANGED")
    )
    assert ("ASKED AND CHANGED" in short, "gsub changed 4 options of it" in short) == (False, True)
    assert "AFTER THE PRE-RUN" in whole
    kept = replace(build_warned_timeline(day).preruns[0], changes=(CHANGES[2],))
    assert "AFTER THE PRE-RUN" not in format_job_report(
        replace(build_warned_timeline(day), preruns=(kept,)), verbose=True
    )


def test_a_completed_run_shows_requested_and_used_resources(day: dict[str, Any]) -> None:
    timeline = build_retried_timeline(day)
    used = Measurement(cpus_used=2.1, mem_peak_mib=5222)
    run = replace(timeline.attempts[1], time_limit_s=86400, cpus=16, mem_mib_per_node=32768, measurement=used)
    line = "  Asked / used on a node: time 24 h / 12 h; CPUs 8 / 2.1; memory 32.0 GiB / 5.1 GiB."
    assert line in format_job_report(replace(timeline, attempts=(run,)), columns=120).splitlines()


def test_a_completed_run_with_an_error_in_its_output_shows_the_error(day: dict[str, Any]) -> None:
    timeline = build_warned_timeline(day)
    first = timeline.attempts[0]
    assert first.diagnosis is not None
    flawed = replace(first.diagnosis, category="completed_with_error", error="traceback_from_crash", decision="none")
    page = format_job_report(
        replace(timeline, attempts=(replace(first, state="COMPLETED", diagnosis=flawed, decision="none"),))
    )
    assert "  Completed, but its output ends with NameError (train.py:9).\n" in page
    assert "  error in the program (traceback_from_crash): user program, " in page
    assert "Decision" not in page


def test_a_pre_run_without_a_job_shows_its_user_and_output_file(day: dict[str, Any]) -> None:
    trial = build_stopped_timeline(day).preruns[0]
    cite = Citation(source="output", line=13, text="ValueError: no")
    about = {"job_id": None, "user": "fay", "name": "bert", "script_path": "t.sbatch", "work_dir": "/home/fay"}
    alone = replace(
        trial, **about, output="/home/fay/.local/x/output", verdict=replace(trial.verdict, evidence=(cite,))
    )
    page = format_job_report(JobTimeline(address="171", preruns=(alone,))).splitlines()
    assert page[0] == "Job 171 bert"
    assert page[1].startswith("  of fay, 32 GPUs, pre-run ended 2026-")
    assert page[2] == "  t.sbatch in /home/fay"
    assert "  | /home/fay/.local/x/output:13: ValueError: no" in page


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ({"node_count": 2, "gpus_per_node": 8, "locality": "consolidated"}, "Plan: 2 nodes with 8 GPUs each."),
        ({"node_count": 1, "gpus_per_node": 1}, "Plan: 1 node with 1 GPU."),
        ({"node_count": 4, "locality": "spread"}, "Plan: 4 nodes, on several switches."),
        ({"gpus_per_node": 2}, "Plan: 2 GPUs per node."),
        ({"switch": "s1"}, "Plan: there is room on switch s1 now."),
    ],
)
def test_a_placement_plan_is_shown_as_a_sentence(day: dict[str, Any], plan: dict[str, Any], line: str) -> None:
    timeline = build_retried_timeline(day)
    assert timeline.submission is not None
    submission = replace(timeline.submission, plan=plan)
    shown = format_job_report(replace(timeline, submission=submission), verbose=True)
    assert line in [one.strip() for one in shown.splitlines()]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_run_that_was_stopped_at_its_plateau_shows_the_command_and_the_reason(
    day: dict[str, Any], state: str
) -> None:
    timeline = build_retried_timeline(day)
    run = replace(timeline.attempts[1], state=state)
    action = ActionRecord(
        action_id=1, attempt=run.attempt, rule="stop", mode="act", verb="signal", target="101", key="USR1",
        value="batch", reason="stopped at your --stop-at=plateau: no more", intended_at=1.0, done_at=1.0,
    )  # fmt: skip
    page = format_job_report(replace(timeline, attempts=(run,), actions=(action,)), columns=120).splitlines()
    at = page.index("  done: scancel --signal=USR1 --batch 101")
    assert page[at + 1] == "    stopped at your --stop-at=plateau: no more"
    assert sum("scancel" in line for line in page) == 1
