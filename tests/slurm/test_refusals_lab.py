"""The third submission of a script that failed twice: refused while nothing changed, accepted once the file exists."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest
from realslurm import USERS, Lab

ALICE = USERS[0]
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(300)]

SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --time=5
python3 read.py
"""


def test_a_script_that_failed_twice_is_refused_until_the_missing_file_exists(lab: Lab) -> None:
    home = Path(pwd.getpwnam(ALICE).pw_dir) / "refusals"
    lab.run(["mkdir", "-p", str(home)], user=ALICE)
    (home / "read.py").write_text("print(open('data/train.csv').read())\n")
    (home / "job.sbatch").write_text(SCRIPT)
    for _ in range(2):
        done = lab.run(["gsub", "--prerun=auto", "job.sbatch"], user=ALICE, cwd=home)
        assert done.returncode == 0, done.stderr
        lab.wait_job(int(done.stdout.split()[-1]), {"CANCELLED"}, timeout=120)
    refused = lab.run(["gsub", "job.sbatch"], user=ALICE, cwd=home)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "this script failed twice, unchanged, with: " in refused.stderr
    (reason,) = [line for line in refused.stderr.splitlines() if "failed twice" in line]
    assert reason.count("No such file") == 1
    (home / "data").mkdir()
    (home / "data/train.csv").write_text("1,2\n")
    taken = lab.run(["gsub", "job.sbatch"], user=ALICE, cwd=home)
    assert taken.returncode == 0, taken.stderr
    lab.wait_job(int(taken.stdout.split()[-1]), {"COMPLETED"}, timeout=120)
