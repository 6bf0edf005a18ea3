"""A job sees the files that its pre-run downloaded into a cache, but no other files that the pre-run wrote."""

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
python3 get.py
"""
PROGRAM = """\
import os
blob = os.path.expanduser("~/.cache/huggingface/hub/models--gpt2/blobs/b1")
if os.path.exists(blob):
    print("found in the cache, beside it:", os.path.exists("results.txt"))
else:
    os.makedirs(os.path.dirname(blob))
    open(blob + ".incomplete", "w").close()
    os.rename(blob + ".incomplete", blob)
    print("downloaded")
open("results.txt", "w").close()
"""


def test_a_job_finds_what_its_pre_run_downloaded(lab: Lab) -> None:
    top = Path(pwd.getpwnam(ALICE).pw_dir)
    home = top / "downloads"
    lab.run(["mkdir", "-p", str(home)], user=ALICE)
    lab.run(["rm", "-rf", str(top / ".cache/huggingface")], user=ALICE)
    (home / "get.py").write_text(PROGRAM)
    (home / "job.sbatch").write_text(SCRIPT)
    done = lab.run(["gsub", "--prerun=wait", "job.sbatch"], user=ALICE, cwd=home)
    assert done.returncode == 0, done.stderr
    job = int(done.stdout.split()[-1])
    lab.wait_job(job, {"COMPLETED"}, timeout=120)
    assert (home / f"slurm-{job}.out").read_text() == "found in the cache, beside it: False\n"
