"""What a user hears of jobs that ended in odd ways, without having asked and when asking. On a real Slurm."""

from __future__ import annotations

import pwd
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import wait_for

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A fresh directory of alice's; her jobs of a test before are gone."""
    lab.clear(ALICE)
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def as_alice(lab: Lab, home: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command with what this test's gsub remembers."""
    environ = {"XDG_STATE_HOME": str(home / ".state"), **more.pop("env", {})}
    return lab.run(words, user=ALICE, cwd=home, env=environ, **more)


def add_slurmdbd_record(
    lab: Lab, home: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`slurmwrap ...` as alice, with the same."""
    return lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": str(home / ".state"), **(env or {})})


def submitted(done: subprocess.CompletedProcess[str]) -> int:
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return int(found[1])


BAD = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4 --cpus-per-task=1 --mem=500 --time=5
python3 -c 'print({}["lr"])'
"""


def test_a_job_that_its_pre_run_cancelled_leaves_its_reason_where_its_user_looks(lab: Lab, home: Path) -> None:
    (home / "bad.sh").write_text(BAD)
    as_alice(lab, home, "sh", "-c", "echo kept > %x-4.out")
    job = submitted(as_alice(lab, home, "gsub", "--array=4-6", "--output=%x-%a.out", "--job-name=%x", "bad.sh"))
    lab.wait_job(job, {"CANCELLED"})
    output = home / "%x-4.out"
    told = wait_for(output.read_text, lambda text: text.count("\n") > 3, 60)
    assert told.startswith(f"kept\nslurmwrap: all tasks of job {job} were cancelled by the pre-run (job "), told
    assert re.search(r"KeyError: 'lr'.*\n.*slurmwrap why \d+\n.*gsub --prerun=off .*bad\.sh\n$", told), told
    assert output.stat().st_uid == home.stat().st_uid

    one_gpu = ("--gres=gpu:1", "--prerun=off", "--mem=100", "--wrap=true")
    calls = [as_alice(lab, home, "gsub", *words, *one_gpu).stderr for words in (["--parsable"], [], [])]
    news = f"gsub: since your last call: job {job} (%x) was cancelled by its pre-run: "
    assert [text.count(news) for text in calls] == [0, 1, 0], calls


NO_SITE = {"SLURMWRAP_CONFIG": "/dev/null"}


def test_why_and_history_look_before_they_say_none(lab: Lab, home: Path) -> None:
    def ask(*words: str, **environ: str) -> tuple[str, str]:
        done = add_slurmdbd_record(lab, home, *words, env={**NO_SITE, **environ})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def ask_in_time(words: str) -> str:
        """On a busy machine a command may give up its look at Slurm and says so: it is asked again."""
        return wait_for(lambda: ask(words), lambda told: "is shown" not in told[1], timeout=60)[0]

    (home / "late.py").write_text('print({}["lr"])\n')
    job = lab.submit("--mem=100", "--wrap=python3 late.py", user=ALICE, cwd=home)
    lab.wait_job(job, {"FAILED"})
    assert ask_in_time("why").startswith(f"Job {job} wrap\n")
    row = re.compile(rf"^{job} +wrap .* error in the pr", re.MULTILINE)
    history = ask_in_time("history")  # other tests' jobs make the columns before it wide
    assert row.search(history), history

    away = {"SLURM_CONF": "/nonexistent/slurm.conf"}
    stored, noted = ask("history", **away)
    assert f"{job} " in stored and "Slurm could not be asked" in noted
    assert "is not known" in ask("history", XDG_STATE_HOME=str(home / "new"), **away)[0]


REQUEUES_ITSELF = """\
#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100 --time=5 --requeue --open-mode=append
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'scontrol requeue $SLURM_JOB_ID; exit 0' USR1
echo ready
while :; do sleep 0.1; done
"""


def test_a_job_that_requeues_itself_waits_and_did_not_fail(lab: Lab, home: Path) -> None:
    (home / "again.sh").write_text(REQUEUES_ITSELF)
    job = submitted(as_alice(lab, home, "gsub", "--prerun=off", "again.sh"))
    output = home / f"slurm-{job}.out"
    assert wait_for(lambda: output.is_file() and "ready" in output.read_text(), bool, 60)
    lab.reconcile_once()
    lab.run(["scancel", "--batch", "--signal=USR1", str(job)], user=ALICE)
    lab.wait_job(job, {"PENDING"})
    lab.reconcile_once()
    told = add_slurmdbd_record(lab, home, "why", str(job)).stdout
    for words in ("RUN 1 REQUEUED", "requeued and runs again by itself", "PENDING (BeginTime, not before "):
        assert words in told, told
    assert "RETRIES" not in told and "cancelled" not in told
    row = add_slurmdbd_record(lab, home, "history").stdout.splitlines()[1]
    assert row.split()[0] == str(job) and row.split()[-1] == "requeued"


def test_a_submission_that_slurm_refused_is_no_run(lab: Lab, home: Path) -> None:
    done = as_alice(lab, home, "gsub", "--prerun=off", "--gres=gpu:9", "--wrap=true")
    assert done.returncode == 1 and "Requested node configuration is not available" in done.stderr
    refused = lab.run(["squeue", "-h", "-t", "FAILED", "-o", "%i", f"--user={ALICE}"]).stdout.split()
    number = max((one for one in refused if one.isdecimal()), key=int)  # int() would read 161_2 as 1612
    lab.reconcile_once()
    rows = add_slurmdbd_record(lab, home, "history").stdout.splitlines()
    assert number not in [row.split()[0] for row in rows if row]
    told = add_slurmdbd_record(lab, home, "why", number)
    assert told.returncode == 1 and f"there is no job {number}: Slurm refused it" in told.stderr
