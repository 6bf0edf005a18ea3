"""What a user hears of jobs that ended in odd ways, without having asked and when asking. On a real Slurm."""

from __future__ import annotations

import pwd
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab, wait_for

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
