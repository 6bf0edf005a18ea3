"""slurmwrap why: from the user's database, the spool, the site's database, and records that the site sealed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.host import munge
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FilePublisher
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.spool_writer import write_plain

Run = Callable[..., Result]
Fill = Callable[[Path, dict[str, Any], float], None]
NOW = time.time()


def make_submission(**changes: Any) -> Submission:
    base = Submission(
        cluster="lab", job_id=81, uid=os.geteuid(), user="me", at=NOW - 100, name="train", prerun_job_id=82, gpus=8
    )
    return replace(base, **changes)


def make_failed_prerun() -> PrerunRecord:
    verdict = Verdict(outcome=Outcome.FAIL, layer="exit", reason="exit code 1", seconds=3, category="import_error")
    return PrerunRecord(
        cluster="lab", job_id=81, prerun_job_id=82, uid=os.geteuid(), at=NOW - 50, verdict=verdict, gpus=8
    )


def write_observation(spool: Path, context: Context, **facts: Any) -> None:
    observation = Observation(
        nonce=os.urandom(16).hex(), cluster="lab", job_id=81, context=context, at=NOW - 50, facts=facts
    )
    write_plain(spool, observation)


def test_a_failed_pre_run_is_explained_before_the_first_reconciler_pass(slurmwrap: Run, tmp_path: Path) -> None:
    spool = tmp_path / "slurmwrap" / "spool"
    write_observation(spool, Context.SUBMIT, submission=to_json_dict(make_submission()))
    write_observation(spool, Context.PRERUN, prerun=to_json_dict(make_failed_prerun()))
    result = slurmwrap("why")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "Job 81 train"
    assert "PRE-RUN (job 82) failed after 3 s" in lines
    assert "  missing Python module (import_error): exit code 1" in lines
    assert "  Job 81 was cancelled before it started: 8 GPUs kept free." in lines
    assert slurmwrap("why", "81").stdout == slurmwrap("why", "82").stdout == result.stdout
    assert not (tmp_path / "slurmwrap" / "user.db").exists()
    assert len(list(spool.iterdir())) == 2


def test_root_reads_the_site_database(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    fill(tmp_path / "site" / "site.db", day, NOW - day["until"])
    result = slurmwrap("why", "101", site=True)
    assert "RUN 1 FAILED" in result.stdout
    assert "  GPU hardware fault (gpu_hardware): infrastructure, node n3, 90 % sure" in result.stdout.splitlines()
    assert "  done: scontrol requeuehold 101" in result.stdout.splitlines()
    assert "RUN 2 COMPLETED" in result.stdout
    array = json.loads(slurmwrap("why", "110", "--json", site=True).stdout)
    assert [run["address"] for run in array["attempts"]] == ["110_0", "110_1", "110_2"]
    assert array["next"]["sentence"] == "It can be run again:"
    task = json.loads(slurmwrap("why", "110_1", "--json", site=True).stdout)
    assert [run["address"] for run in task["attempts"]] == ["110_1"]
    assert json.loads(slurmwrap("why", "111", "--json", site=True).stdout)["attempts"] == task["attempts"]


def test_the_last_failed_job_is_the_default(slurmwrap: Run, fill: Fill, day: dict[str, Any], tmp_path: Path) -> None:
    fill(tmp_path / "slurmwrap" / "user.db", day, NOW - day["until"])
    assert slurmwrap("why").stdout.startswith("Job 170\n")  # the pre-run of job 170 failed after every failed run


def test_without_slurm_and_records_it_is_unknown_whether_a_job_failed(slurmwrap: Run) -> None:
    result = slurmwrap("why")
    assert (result.exit_code, result.stdout) == (0, "")
    no_answer, not_known = result.stderr.splitlines()
    assert no_answer.startswith("slurmwrap: Slurm could not be asked (")
    assert not_known == "slurmwrap: no failure is stored; whether a job failed since the last look is not known"


def test_an_unknown_job_is_an_error_with_a_hint(slurmwrap: Run) -> None:
    result = slurmwrap("why", "4711")
    assert isinstance(result.exception, SlurmwrapError)
    assert str(result.exception) == "nothing is known of job 4711"
    assert result.exception.hint.endswith("scontrol show job 4711")


@pytest.mark.parametrize("word", ["x", "8 1", "-1", "81_x", "1" * 40, "٣", "81;id"])
def test_an_invalid_job_id_is_refused(slurmwrap: Run, word: str) -> None:
    result = slurmwrap("why", "--", word)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"'{word}' is no job id"


def test_json_has_every_field(slurmwrap: Run, tmp_path: Path) -> None:
    write_observation(tmp_path / "slurmwrap" / "spool", Context.SUBMIT, submission=to_json_dict(make_submission()))
    result = slurmwrap("why", "81", "--json")
    assert result.stderr.startswith("slurmwrap: Slurm could not be asked (") and result.stderr.count("\n") == 1
    assert json.loads(result.stdout) == {
        "kind": "slurmwrap.why",
        "schema": 1,
        "address": "81",
        "submission": to_json_dict(make_submission()),
        "preruns": [],
        "attempts": [],
        "actions": [],
        "delays": [],
        "incidents": [],
        "curves": [],
        "slurm_says": "",
        "queue_order": "",
        "shared": "",
        "findings": [],
        "lines": [],
        "cluster": "lab",
        "next": {"sentence": "It has not ended.", "command": "slurmwrap watch 81", "also": []},
    }


def test_malformed_spool_files_are_ignored(slurmwrap: Run, tmp_path: Path) -> None:
    spool = tmp_path / "slurmwrap" / "spool"
    write_observation(spool, Context.SUBMIT, submission={"job_id": "81; rm -rf"})
    write_observation(spool, Context.PRERUN, prerun=[1])
    write_observation(spool, Context.SUBMIT, submission=to_json_dict(make_submission()))
    (spool / "junk.obs").write_bytes(b"\xff" * 100)
    assert slurmwrap("why", "81").stdout.startswith("Job 81 train\n")


# Prints for each user: exit code, standard output and standard error of `why RUN` for each given run.
RUN_WHY_AS_USERS = """
import contextlib, io, json, os, sys
from slurmwrap.cli.slurmwrap import main
for uid, runs in json.loads(sys.argv[1]).items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    os.environ["HOME"] = os.environ["XDG_STATE_HOME"] = f"{os.environ['HOME']}/home{uid}"
    done = []
    for run in runs:
        sys.argv = ["slurmwrap", "why", *([run] if run else [])]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                main()
            except SystemExit as ended:
                code = ended.code
        done.append((code, out.getvalue(), err.getvalue()))
    print(json.dumps(done), flush=True)
    os._exit(0)
"""


def test_a_sealed_diagnosis_is_readable_only_by_its_user(open_dir: Path, munge_socket: str) -> None:
    if os.geteuid():
        pytest.skip("needs root to act as two users")
    diagnosis = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=1, signature="s", advice="Shard.")
    attempt = RunKey(cluster="lab", job_id=90, submit_time=int(NOW) - 500)
    record = JobRun(
        attempt=attempt,
        address="88_1",
        uid=65534,
        user="nobody",
        state="FAILED",
        end_time=int(NOW),
        diagnosis=diagnosis,
    )
    FilePublisher(open_dir / "published", munge_socket, munge.encode).tell_owner(record, ())

    environ = {
        **os.environ,
        "HOME": str(open_dir),
        "SLURMWRAP_CONFIG": "/nonexistent",
        "SLURMWRAP_SITE_PUBLISHED": str(open_dir / "published"),
        "SLURMWRAP_SITE_MUNGE_SOCKET": munge_socket,
    }
    runs_by_uid = json.dumps({65534: ["88_1", "", "90"], 12345: ["88_1"]})
    done = subprocess.run(
        [sys.executable, "-c", RUN_WHY_AS_USERS, runs_by_uid], capture_output=True, text=True, env=environ
    )
    owners, others = map(json.loads, done.stdout.splitlines())
    (code, explained, stderr), (_, last, _), (_, by_id, _) = owners
    assert (code, "cannot be read" in stderr) == (0, False)
    assert "  out of GPU memory (gpu_oom): user program, 100 % sure" in explained.splitlines()
    assert last == explained
    assert by_id.splitlines()[2:] == explained.splitlines()[2:]
    ((code, shown, stderr),) = others
    assert (code, shown) == (1, "")
    assert "nothing is known of job 88_1" in stderr


def test_without_munged_the_user_records_are_shown(
    slurmwrap: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMWRAP_SITE_PUBLISHED", str(tmp_path / "published"))
    monkeypatch.setenv("SLURMWRAP_SITE_MUNGE_SOCKET", str(tmp_path / "no-socket"))

    def seal(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
        return payload

    record = JobRun(attempt=RunKey(cluster="lab", job_id=81, submit_time=1), uid=os.geteuid())
    FilePublisher(tmp_path / "published", "", seal).tell_owner(record, ())
    write_observation(tmp_path / "slurmwrap" / "spool", Context.SUBMIT, submission=to_json_dict(make_submission()))
    result = slurmwrap("why", "81")
    assert result.stdout.startswith("Job 81 train\n")
    assert "the site's diagnoses cannot be read: unmunge: " in result.stderr


# --- arrays, many runs, findings, jobs that wait ---------------------------------------------------------------------


def make_failed_run(number: int, address: str, category: str = "gpu_oom", **changes: Any) -> JobRun:
    cited = Citation(
        source=f"slurm-{address}.out",
        line=44,
        text="torch.cuda.OutOfMemoryError: CUDA out of memory.",
        before=('  File "/home/me/train.py", line 9, in step', "    loss = model(batch)"),
        after=("wandb: waiting",),
    )
    diagnosis = Diagnosis(
        category=category,
        domain="U",
        decision="stop",
        confidence=0.93,
        signature="s",
        advice="Shard.",
        evidence=(cited,),
    )
    return replace(
        JobRun(
            attempt=RunKey(cluster="lab", job_id=number, submit_time=int(NOW) - 9000 + number),
            address=address,
            name="sweep",
            user="me",
            uid=os.geteuid(),
            state="FAILED",
            exit_code=1,
            gpus=1,
            nodes=(f"n{number % 4 + 1}",),
            start_time=int(NOW) - 8000,
            end_time=int(NOW) - 7000 + number,
            diagnosis=diagnosis,
            decision="stop",
            decision_reason="Shard.",
        ),
        **changes,
    )


@pytest.fixture
def user_db(tmp_path: Path) -> Path:
    (tmp_path / "slurmwrap").mkdir()
    return tmp_path / "slurmwrap" / "user.db"


def save_runs(path: Path, *runs: JobRun) -> None:
    with Database.open(path) as database, database.transaction():
        for run in runs:
            database.save_attempt(run)


def test_array_tasks_with_the_same_failure_are_explained_once(slurmwrap: Run, user_db: Path) -> None:
    success = Diagnosis(category="success", domain="", decision="none", confidence=1, signature="")
    done = make_failed_run(40, "77_40", state="COMPLETED", exit_code=0, diagnosis=success, decision="none")
    save_runs(
        user_db, *(make_failed_run(n, f"77_{n}") for n in range(32)), make_failed_run(33, "77_33", "cpu_oom"), done
    )
    page = slurmwrap("why", "77").stdout
    lines = page.splitlines()
    assert [line for line in lines if "TASK" in line] == [
        "32 TASKS 77_[0-31] failed alike",
        "TASK 77_33 FAILED, exit code 1",
        "TASK 77_40 COMPLETED",
    ]
    assert "  The first one is 77_0 (slurmwrap why 77_0):" in lines
    assert "on n[1-4]." in page and page.count("slurm-77_0.out:44") == 1
    assert len(lines) < 50
    assert slurmwrap("why", "77", "--verbose").stdout.count("RUN ") == 34


def test_of_several_runs_the_last_is_explained_and_the_retry_budget_shown(slurmwrap: Run, user_db: Path) -> None:
    runs = [
        replace(
            make_failed_run(n, "81", "nccl_error"),
            attempt=RunKey(cluster="lab", job_id=81, submit_time=int(NOW) - 9000 + n),
            restarts=n,
            decision="retry" if n < 3 else "stop",
        )
        for n in range(4)
    ]
    runs = [
        replace(run, diagnosis=replace(run.diagnosis, decision="retry", domain="AE")) for run in runs if run.diagnosis
    ]
    save_runs(user_db, *runs)
    lines = slurmwrap("why", "81").stdout.splitlines()
    assert [line for line in lines if line.startswith("RUN ")] == ["RUN 4 FAILED, exit code 1"]
    table = lines[lines.index("4 RUNS") + 2 : lines.index("4 RUNS") + 6]
    assert [line.split()[-3:] for line in table] == [["NCCL", "error", "retry"]] * 3 + [["NCCL", "error", "stop"]]
    assert ["NCCL", "error", "4", "3", "3", "0"] in [line.split() for line in lines]
    assert slurmwrap("why", "81", "-v").stdout.count("RUN ") == 4


def test_the_cited_line_is_shown_with_the_lines_around_it(slurmwrap: Run, user_db: Path) -> None:
    save_runs(user_db, make_failed_run(81, "81"))
    lines = slurmwrap("why", "81").stdout.splitlines()
    at = lines.index("  slurm-81.out:44")
    assert lines[at + 1 : at + 5] == [
        '    |   File "/home/me/train.py", line 9, in step',
        "    |     loss = model(batch)",
        "    > torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "    | wandb: waiting",
    ]


def test_a_finding_shows_the_script_line_unless_the_script_was_changed(slurmwrap: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/sh\npython train.py --data /nowhere\n")
    os.utime(script, (NOW - 200, NOW - 200))
    finding = Finding(severity=Severity.ERROR, message="/nowhere: no such file", file="train.sbatch", line=2)
    failed = replace(make_failed_prerun(), verdict=replace(make_failed_prerun().verdict, findings=(finding,)))
    spool = tmp_path / "slurmwrap" / "spool"
    write_observation(
        spool,
        Context.SUBMIT,
        submission=to_json_dict(make_submission(work_dir=str(tmp_path), script_path="train.sbatch")),
    )
    write_observation(spool, Context.PRERUN, prerun=to_json_dict(failed))
    assert "    > python train.py --data /nowhere\n" in slurmwrap("why", "81").stdout
    lines = json.loads(slurmwrap("why", "81", "--json").stdout)["lines"]
    assert lines == [{"file": "train.sbatch", "line": 2, "text": "python train.py --data /nowhere"}]
    script.touch()
    assert "python train.py" not in slurmwrap("why", "81").stdout
