"""`slurmwrap prerun` on directories of pre-runs, and how a pre-run is followed. Without Slurm."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import START, FakeClock, FakeSlurm, job
from typer.testing import Result

from slurmwrap.cli.prerun import PrerunRow, format_prerun, rows_of
from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.gsub.follow_prerun import PrerunSnapshot, describe, follow, take_prerun_snapshot
from slurmwrap.gsub.submit_context import PrerunChecks, SubmitContext
from slurmwrap.gsub.verdict_output import make_unproven_verdict, print_alone, verdict_to_json_dict
from slurmwrap.model.evidence import Citation
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.verdict import Outcome, Verdict, verdict_to_json
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_to_json
from slurmwrap.store.prerun_registry import PrerunRegistry
from slurmwrap.store.user_state_files import UserState

Run = Callable[..., Result]
PASSED = Verdict(outcome=Outcome.PASS, layer="optimizer", reason="3 steps ran", steps=3, seconds=41.0)
FAILED = Verdict(
    outcome=Outcome.FAIL,
    layer="exit",
    reason="train.py:9: KeyError: 'lr'",
    seconds=8.0,
    category="key_error",
    findings=(Finding(severity=Severity.WARNING, message="no such file", file="job.sh", line=4, fix="make it"),),
    evidence=(Citation(source="output", line=7, text="KeyError: 'lr'"),),
)


@pytest.fixture
def write_prerun(tmp_path: Path) -> Callable[..., Path]:
    """`write_prerun(name, verdict)` writes the directory of a pre-run."""

    def write(name: str, verdict: Verdict | None = None, *, age_s: float = 60.0, **files: Any) -> Path:
        directory = tmp_path / "slurmwrap" / "prerun" / name
        directory.mkdir(parents=True)
        spec = TrialSpec(
            trial_dir=str(directory),
            script=str(directory / "script"),
            script_name=files.pop("script_name", "/home/ada/job.sh"),
            real_job=files.pop("real_job", None),
            fingerprint=files.pop("fingerprint", "f" * 64),
            gpus=16,
        )
        (directory / "spec.json").write_text(json.dumps(spec_to_json(spec)))
        if verdict:
            (directory / "verdict.json").write_text(json.dumps(verdict_to_json(verdict)))
        for key, text in files.items():
            (directory / key).write_text(text)
        os.utime(directory / "spec.json", (time.time() - age_s,) * 2)
        return directory

    return write


def test_list_shows_the_newest_pre_run_first_with_its_verdict(
    slurmwrap: Run, write_prerun: Callable[..., Path]
) -> None:
    write_prerun("a", PASSED, age_s=7300, real_job="11", job="12\n")
    write_prerun("b", FAILED, age_s=100, job="14\n")
    write_prerun("c", PASSED, age_s=50, real_job="15", attached="12\n")
    done = slurmwrap("prerun", "list")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:4] for row in rows[1:4]] == [
        ["15", "12*", "job.sh", "pass"],
        ["-", "14", "job.sh", "fail"],
        ["11", "12", "job.sh", "pass"],
    ]
    assert rows[4][:3] == ["*", "waited", "for"]


def test_list_filters_pre_runs_and_json_has_every_field(slurmwrap: Run, write_prerun: Callable[..., Path]) -> None:
    write_prerun("a", PASSED, age_s=7300)
    write_prerun("b", FAILED, real_job="11", job="14\n", **{"progress.json": '{"steps": 2}'})
    (row,) = json.loads(slurmwrap("prerun", "list", "--failed", "--json").stdout)["rows"]
    wanted = {
        "job_id": 11,
        "prerun_job_id": 14,
        "attached": False,
        "state": "fail",
        "verdict": "fail",
        "category": "key_error",
        "gpus": 16,
    }
    assert {key: row[key] for key in wanted} == wanted
    assert row["progress"] == {"steps": 2}
    assert len(json.loads(slurmwrap("prerun", "list", "--since", "1h", "--json").stdout)["rows"]) == 1
    assert slurmwrap("prerun", "list", "--running").stdout == "No pre-run.\n"


def test_similar_pre_runs_share_a_line_and_omitted_lines_are_counted(
    slurmwrap: Run, write_prerun: Callable[..., Path]
) -> None:
    for number in range(5):
        write_prerun(f"s{number}", PASSED, age_s=100 + number, real_job=str(20 + number), job=f"{40 + number}\n")
    write_prerun("f", FAILED, age_s=600, real_job="11", job="14\n")
    lines = slurmwrap("prerun", "list").stdout.splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["20", "(5)", "40", "job.sh"], ["11", "14", "job.sh", "fail"]]
    assert slurmwrap("prerun", "list", "--limit", "1").stdout.splitlines()[2] == "and 1 more (--all shows them)"

    def jobs(*words: str) -> list[int]:
        return [row["job_id"] for row in json.loads(slurmwrap("prerun", "list", "--json", *words).stdout)["rows"]]

    assert jobs("--state", "pass,inconclusive", "--until", "5m") == []
    assert jobs("--category", "import_error") == [] and jobs("--failed") == [11]
    assert jobs("--name", "j*.sh", "--job", "22") == [22] and jobs("--name", "other*") == []


def test_an_attached_job_is_lost_when_its_pre_run_ended_or_it_left_the_queue(
    write_prerun: Callable[..., Path], tmp_path: Path
) -> None:
    trial, waiting = job(12, state="RUNNING"), job(15, state="PENDING")
    array = job(31, state="PENDING", array_job_id=30, array_task_id=None)
    slurm = FakeSlurm(clock=FakeClock())
    slurm.add(trial, waiting, job(16, state="CANCELLED"), array, replace(array, job_id=30, state="RUNNING"))
    jobs = {"own": 11, "waits": 15, "cancelled": 16, "forgotten": 17, "array": 30, "not submitted": 15, "alone": 15}
    hosts = {"own": "", "not submitted": "0\n", "alone": "99\n"}
    for name, number in jobs.items():
        host = hosts.get(name, "12\n")
        write_prerun(name, real_job=str(number), **({"attached": host} if host else {"job": "12\n"}))
    context = SubmitContext(
        slurm=slurm, clock=FakeClock(), memory=None, config=Config(), trials=None, uid=1, user="alice", environ={},
        flights=PrerunRegistry(tmp_path / "slurmwrap"),
    )  # type: ignore[arg-type]  # fmt: skip
    assert {row.directory.name: row.state for row in rows_of(context)} == {
        "own": "running", "waits": "attached", "cancelled": "lost", "forgotten": "lost", "array": "attached",
        "not submitted": "attached", "alone": "lost",
    }  # fmt: skip


def test_without_an_answer_of_slurm_the_state_is_unknown_and_the_user_is_told(
    write_prerun: Callable[..., Path], tmp_path: Path
) -> None:
    write_prerun("a", real_job="11", job="12\n")
    told: list[str] = []
    context = SubmitContext(
        slurm=FakeSlurm(clock=FakeClock(), away=True), clock=FakeClock(), memory=None, config=Config(), trials=None,
        uid=1, user="alice", environ={}, flights=PrerunRegistry(tmp_path / "slurmwrap"), say=told.append,
    )  # type: ignore[arg-type]  # fmt: skip
    assert [row.state for row in rows_of(context)] == ["unknown"]
    assert told == ["how they stand now is not known: Unable to contact slurm controller (connect failure)"]


def test_show_prints_verdict_findings_evidence_and_output(slurmwrap: Run, write_prerun: Callable[..., Path]) -> None:
    write_prerun("a", FAILED, age_s=600, real_job="11", job="14\n", output="\n".join(f"line {n}" for n in range(40)))
    by_job, by_trial, last = (slurmwrap("prerun", "show", which).stdout for which in ("11", "14", "last"))
    assert by_job == by_trial == last
    for text in (
        "PRE-RUN 14 of /home/ada/job.sh, for job 11 (16 GPUs)",
        "fail, submitted 10 min ago",
        "decided by layer exit",
        "key_error: train.py:9: KeyError: 'lr'",
        "warning: job.sh:4 no such file (make it)",
        "| output:7: KeyError: 'lr'",
        "| line 39",
    ):
        assert text in by_job
    assert "| line 27" not in by_job
    assert json.loads(slurmwrap("prerun", "show", "11", "--json").stdout)["output"][-1] == "line 39"


def test_show_prints_actions_and_the_errors_of_slurm(tmp_path: Path) -> None:
    spec = TrialSpec(trial_dir=str(tmp_path), script="", script_name="job.sh", real_job="11", gpus=16)
    row = PrerunRow(directory=tmp_path, spec=spec, at=0.0, state="fail", verdict=FAILED, prerun_job=14)
    cancelled = {"verb": "scancel", "target": "11", "reason": "its pre-run failed"}
    later = {"verb": "update_job", "target": "11", "option": "StartTime", "new": "now", "reason": "it passed"}
    page = format_prerun(row, [cancelled, {**later, "error": "Job is over"}], lambda text, *styles: text, 60.0)
    assert "  scancel 11 (its pre-run failed)\n" in page
    assert "  update_job 11 StartTime=now (it passed); Slurm refused: Job is over\n" in page


def test_a_pre_run_job_id_finds_the_pre_run_and_not_an_attached_job(
    slurmwrap: Run, write_prerun: Callable[..., Path]
) -> None:
    write_prerun("a", FAILED, age_s=100, real_job="11", job="12\n")
    write_prerun("b", PASSED, age_s=50, real_job="15", attached="12\n")
    assert json.loads(slurmwrap("prerun", "show", "12", "--json").stdout)["job_id"] == 11
    assert json.loads(slurmwrap("prerun", "show", "15", "--json").stdout)["attached"] is True


def test_show_of_an_unknown_pre_run_is_an_error(slurmwrap: Run, write_prerun: Callable[..., Path]) -> None:
    none = slurmwrap("prerun", "show", "last")
    assert "there is no pre-run of yours" in str(none.exception)
    write_prerun("a", PASSED)
    assert "no pre-run of yours is known as '99'" in str(slurmwrap("prerun", "show", "99").exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say what to forget"),
        (("--all", "7"), "say what to forget"),
        (("xyz",), "'xyz' is neither a job id nor a fingerprint"),
        (("7",), "no pre-run of job 7 is known"),
        (("abcdefabcdef",), "no fingerprint of yours starts with 'abcdefabcdef'"),
        (("--script", "/nosuch"), "--script /nosuch: No such file or directory"),
    ],
)
def test_clear_with_invalid_arguments_is_refused(slurmwrap: Run, words: tuple[str, ...], message: str) -> None:
    done = slurmwrap("prerun", "clear", *words)
    assert done.exit_code != 0
    assert message in str(done.exception)


def test_clear_by_job_fingerprint_script_and_all(
    slurmwrap: Run, write_prerun: Callable[..., Path], tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n")
    write_prerun("a", PASSED, real_job="11", job="12\n", fingerprint="a" * 64)
    write_prerun("b", PASSED, fingerprint="b" * 64, script_name=str(script))
    write_prerun("c", PASSED, fingerprint="c" * 64)
    forgotten = tmp_path / "slurmwrap" / "forgotten.json"
    for words, marks in [
        (("12",), ["a" * 64]),
        (("--script", str(script)), ["a" * 64, "b" * 64]),
        (("c" * 12,), ["a" * 64, "b" * 64, "c" * 64]),
        (("--all",), ["*"]),
    ]:
        done = slurmwrap("prerun", "clear", *words)
        assert done.exit_code == 0, done.output
        assert sorted(json.loads(forgotten.read_text())) == marks


def test_freed_inputs_do_not_contain_forgotten_fingerprints(tmp_path: Path) -> None:
    state = UserState(tmp_path)
    state.forget_passed(["a"], 5.0)
    state.free_input("d", 6.0)
    assert state.freed_inputs() == {"d": 6.0}


# --- following -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "progress", "expected"),
    [
        ("PENDING", {}, "pre-run waiting for one GPU 9 s  (Priority)"),
        ("CONFIGURING", {}, "pre-run starting 9 s  (Priority)"),
        ("RUNNING", {}, "pre-run starting 9 s"),
        ("RUNNING", {"seconds": 3.0, "steps": 0}, "pre-run running 3 s  0/3 steps"),
        ("RUNNING", {"seconds": 4.4, "steps": 2, "gpu_percent": 71.6}, "pre-run stepping 4 s  2/3 steps  GPU 72 %"),
        ("RUNNING", {"seconds": 60.0, "steps": 9, "stage": "profiles"}, "pre-run profiling 60 s  9 steps"),
        ("COMPLETING", {"seconds": 5.0, "steps": 3}, "pre-run ending 5 s  3/3 steps"),
        ("SUSPENDED", {"seconds": 5.0}, "pre-run stopped 9 s"),
        ("RUNNING", {"seconds": None, "steps": "x", "gpu_percent": "y"}, "pre-run running 0 s  0/3 steps"),
    ],
)
def test_each_stage_of_a_pre_run_is_described_in_one_line(state: str, progress: dict[str, Any], expected: str) -> None:
    assert describe(take_prerun_snapshot(state, "Priority", 9.0, progress, 3)) == expected


def test_the_progress_bar_fills_with_the_steps() -> None:
    def bar(steps: int) -> str:
        return describe(PrerunSnapshot(stage="stepping", steps=steps, steps_wanted=3), bar=True)

    assert ["[------------]" in bar(0), "[####--------]" in bar(1), "[############]" in bar(5)] == [True] * 3


class ScriptedClock(FakeClock):
    """A clock that runs the next scene at each sleep."""

    def __init__(self, *scenes: Callable[[], None]) -> None:
        super().__init__()
        self.scenes = list(scenes)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.scenes:
            self.scenes.pop(0)()


def make_context(slurm: FakeSlurm, clock: FakeClock) -> SubmitContext:
    none = PrerunChecks(check=lambda _: (), named_files=lambda _: (), digest=lambda _: None, entry_files=lambda _: {})
    return SubmitContext(
        slurm=slurm, clock=clock, memory=None, config=Config(), trials=none, uid=1, user="ada", environ={}
    )  # type: ignore[arg-type]


def test_without_a_terminal_each_stage_is_printed_once(tmp_path: Path) -> None:
    slurm, output = FakeSlurm(), io.StringIO()
    slurm.add(job(7, state="RUNNING"))
    (tmp_path / "spec.json").write_text('{"steps": 3}')

    def progress(steps: int) -> Callable[[], None]:
        text = json.dumps({"seconds": 2.0, "steps": steps, "last_line": "loss \x1b[31m1"})

        def write() -> None:
            (tmp_path / "progress.json").write_text(text)

        return write

    def verdict() -> None:
        (tmp_path / "verdict.json").write_text(json.dumps(verdict_to_json(PASSED)))

    clock = ScriptedClock(progress(0), progress(0), progress(1), progress(2), verdict)
    verdict_found = follow(tmp_path, 7, make_context(slurm, clock), Console("gsub", output))
    assert verdict_found == PASSED
    assert output.getvalue().splitlines() == [
        "gsub: pre-run starting 0 s",
        "gsub: pre-run running 2 s  0/3 steps  loss \\x1b[31m1",
        "gsub: pre-run stepping 2 s  1/3 steps  loss \\x1b[31m1",
        "gsub: pre-run: pass after 41 s, 3 steps: 3 steps ran",
    ]


def test_on_a_terminal_one_line_is_redrawn_and_cleared_at_the_end(tmp_path: Path) -> None:
    slurm, output = FakeSlurm(), io.StringIO()
    slurm.add(job(7, state="PENDING", reason="Priority"))
    clock = ScriptedClock(lambda: None, lambda: None, lambda: slurm.add(job(7, state="CANCELLED")), *[lambda: None] * 9)
    verdict_found = follow(tmp_path, 7, make_context(slurm, clock), Console("gsub", output, tty=True))
    assert (verdict_found.outcome, verdict_found.reason) == (
        Outcome.INCONCLUSIVE,
        "pre-run job 7 ended without a verdict (CANCELLED)",
    )
    drawn = output.getvalue()
    assert drawn.startswith("\r\033[Kpre-run waiting for one GPU 0 s  (Priority)\r\033[K")
    assert drawn.count("\n") == 1 and "gsub: pre-run: inconclusive" in drawn.split("\r\033[K")[-2]


def test_a_pre_run_that_squeue_misses_once_is_followed_to_its_verdict(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.add(job(7, state="RUNNING"))
    known = dict(slurm.records)

    def verdict() -> None:
        (tmp_path / "verdict.json").write_text(json.dumps(verdict_to_json(PASSED)))

    clock = ScriptedClock(
        slurm.records.clear, *[lambda: None] * 9, lambda: slurm.records.update(known), *[lambda: None] * 9, verdict
    )
    assert follow(tmp_path, 7, make_context(slurm, clock), Console("gsub", io.StringIO())) == PASSED


def test_a_controller_that_does_not_answer_does_not_end_the_following(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.away = True

    def verdict() -> None:
        (tmp_path / "verdict.json").write_text(json.dumps(verdict_to_json(FAILED)))

    clock = ScriptedClock(*[lambda: None] * 20, verdict)
    assert follow(tmp_path, 7, make_context(slurm, clock), Console("gsub", io.StringIO())) == FAILED
    assert clock.now() > START + 5


# --- the verdict alone -----------------------------------------------------------------------------------------------


def test_json_of_a_verdict_has_the_documented_field_names(capsys: pytest.CaptureFixture[str]) -> None:
    code = print_alone(FAILED, as_json=True, prerun_job_id=14)
    printed = json.loads(capsys.readouterr().out)
    assert code == 3
    named = ("verdict", "layer", "steps", "seconds", "category", "reason", "prerun_job_id")
    assert [printed[key] for key in named] == ["fail", "exit", 0, 8.0, "key_error", FAILED.reason, 14]
    assert printed["findings"][0] == {
        "severity": "warning", "message": "no such file", "file": "job.sh", "line": 4, "fix": "make it", "category": "",
    }  # fmt: skip
    assert printed["evidence"][0]["line"] == 7
    assert "outcome" not in printed


@pytest.mark.parametrize(
    ("verdict", "code", "line"),
    [
        (PASSED, 0, "pass: 3 steps ran"),
        (replace(FAILED, reason="two\nlines \x1b[31m"), 3, "fail: two\\nlines \\x1b[31m"),
        (make_unproven_verdict("no GPU"), 4, "inconclusive: no GPU"),
    ],
)
def test_text_of_a_verdict_is_one_line_with_escaped_control_characters(
    verdict: Verdict, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (print_alone(verdict, as_json=False), capsys.readouterr().out) == (code, line + "\n")
    assert verdict_to_json_dict(verdict)["verdict"] == verdict.outcome.value
