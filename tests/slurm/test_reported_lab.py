"""What a user reads about jobs that ended unusually: in the output, the next call, `why` and `history`."""

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
    """A new directory of alice. Her jobs from earlier tests are gone."""
    lab.clear(ALICE)
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def run_as_alice(lab: Lab, home: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command as alice, with the state directory of this test."""
    environ = {"XDG_STATE_HOME": str(home / ".state"), **more.pop("env", {})}
    return lab.run(words, user=ALICE, cwd=home, env=environ, **more)


def run_slurmwrap(
    lab: Lab, home: Path, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `slurmwrap ...` as alice, with the state directory of this test."""
    return lab.slurmwrap(*words, user=ALICE, cwd=home, env={"XDG_STATE_HOME": str(home / ".state"), **(env or {})})


def parse_job_id(done: subprocess.CompletedProcess[str]) -> int:
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return int(found[1])


BAD = """\
#!/bin/bash
#SBATCH --nodes=2 --gres=gpu:4 --cpus-per-task=1 --mem=500 --time=5
python3 -c 'print({}["lr"])'
"""


def test_the_reason_of_a_cancelled_job_is_in_its_output_and_in_the_next_call(lab: Lab, home: Path) -> None:
    (home / "bad.sh").write_text(BAD)
    run_as_alice(lab, home, "sh", "-c", "echo kept > %x-4.out")
    job = parse_job_id(run_as_alice(lab, home, "gsub", "--array=4-6", "--output=%x-%a.out", "--job-name=%x", "bad.sh"))
    lab.wait_job(job, {"CANCELLED"})
    output = home / "%x-4.out"
    text = wait_for(output.read_text, lambda text: text.count("\n") > 3, 60)
    assert text.startswith(f"kept\nslurmwrap: all tasks of job {job} were cancelled by the pre-run (job "), text
    assert re.search(r"KeyError: 'lr'.*\n.*slurmwrap why \d+\n.*gsub --prerun=off .*bad\.sh\n$", text), text
    assert output.stat().st_uid == home.stat().st_uid

    one_gpu = ("--gres=gpu:1", "--prerun=off", "--mem=100", "--wrap=true")
    calls = [run_as_alice(lab, home, "gsub", *words, *one_gpu).stderr for words in (["--parsable"], [], [])]
    message = f"gsub: since your last call: job {job} (%x) was cancelled by its pre-run: "
    assert [text.count(message) for text in calls] == [0, 1, 0], calls


NO_SITE = {"SLURMWRAP_CONFIG": "/dev/null"}


def test_why_and_history_read_slurm_before_they_report_no_job(lab: Lab, home: Path) -> None:
    def run_without_site(*words: str, **environ: str) -> tuple[str, str]:
        done = run_slurmwrap(lab, home, *words, env={**NO_SITE, **environ})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def run_until_slurm_answers(words: str) -> str:
        """On a busy machine a command may not wait for Slurm and reports that. Then it is repeated."""
        return wait_for(lambda: run_without_site(words), lambda answer: "is shown" not in answer[1], timeout=60)[0]

    (home / "late.py").write_text('print({}["lr"])\n')
    job = lab.submit("--mem=100", "--wrap=python3 late.py", user=ALICE, cwd=home)
    lab.wait_job(job, {"FAILED"})
    assert run_until_slurm_answers("why").startswith(f"Job {job} wrap\n")
    row = re.compile(rf"^{job} +wrap .* error in the pr", re.MULTILINE)
    history = run_until_slurm_answers("history")  # jobs of other tests make the columns before it wide
    assert row.search(history), history

    away = {"SLURM_CONF": "/nonexistent/slurm.conf"}
    stored, noted = run_without_site("history", **away)
    assert f"{job} " in stored and "Slurm could not be asked" in noted
    assert "is not known" in run_without_site("history", XDG_STATE_HOME=str(home / "new"), **away)[0]


REQUEUES_ITSELF = """\
#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=1 --mem=100 --time=5 --requeue --open-mode=append
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'scontrol requeue $SLURM_JOB_ID; exit 0' USR1
echo ready
while :; do sleep 0.1; done
"""


def test_a_job_that_requeues_itself_is_reported_as_requeued_and_pending(lab: Lab, home: Path) -> None:
    (home / "again.sh").write_text(REQUEUES_ITSELF)
    job = parse_job_id(run_as_alice(lab, home, "gsub", "--prerun=off", "again.sh"))
    output = home / f"slurm-{job}.out"
    assert wait_for(lambda: output.is_file() and "ready" in output.read_text(), bool, 60)
    lab.reconcile_once()
    lab.run(["scancel", "--batch", "--signal=USR1", str(job)], user=ALICE)
    lab.wait_job(job, {"PENDING"})
    lab.reconcile_once()
    why = run_slurmwrap(lab, home, "why", str(job)).stdout
    for words in ("RUN 1 REQUEUED", "requeued and runs again by itself", "PENDING (BeginTime, not before "):
        assert words in why, why
    assert "RETRIES" not in why and "cancelled" not in why
    row = run_slurmwrap(lab, home, "history").stdout.splitlines()[1]
    assert row.split()[0] == str(job) and row.split()[-1] == "requeued"


def test_a_submission_that_slurm_refused_is_not_a_run(lab: Lab, home: Path) -> None:
    done = run_as_alice(lab, home, "gsub", "--prerun=off", "--gres=gpu:9", "--wrap=true")
    assert done.returncode == 1 and "Requested node configuration is not available" in done.stderr
    refused = lab.run(["squeue", "-h", "-t", "FAILED", "-o", "%i", f"--user={ALICE}"]).stdout.split()
    number = max((one for one in refused if one.isdecimal()), key=int)  # int() reads 161_2 as 1612
    lab.reconcile_once()
    rows = run_slurmwrap(lab, home, "history").stdout.splitlines()
    assert number not in [row.split()[0] for row in rows if row]
    why = run_slurmwrap(lab, home, "why", number)
    assert why.returncode == 1 and f"there is no job {number}: Slurm refused it" in why.stderr
