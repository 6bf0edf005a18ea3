"""Waiting jobs tuned by the site's reconciler on a real Slurm: they start with what it gave them, and srun works."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab

pytestmark = pytest.mark.lab

ALICE = USERS[0]
GSUB = [sys.executable, "-m", "slurmwrap.gsub.gsub_main"]
SCRIPT = """\
#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32000
#SBATCH --time=5
echo "$SLURM_CPUS_PER_TASK $SLURM_CPUS_ON_NODE $SLURM_MEM_PER_NODE $(srun -Q -c "$SLURM_CPUS_PER_TASK" echo ran)"
"""
CURVES = {"tuned-hungry": ((1, 0.3), (4, 1.0), (8, 2.0), (16, 3.5)), "tuned-content": ((1, 1.0), (4, 1.0), (8, 1.0))}


@pytest.fixture
def partition_down(lab: Lab) -> Iterator[Lab]:
    """Jobs wait as long as the partition is down; it is up again afterwards."""
    _partition(lab, "DOWN")
    try:
        yield lab
    finally:
        _partition(lab, "UP")


def test_jobs_start_with_the_cpus_that_they_were_given_while_they_waited(partition_down: Lab, tmp_path: Path) -> None:
    lab = partition_down
    _teach(lab)
    home = lab.run(["sh", "-c", "echo $HOME"], ALICE).stdout.strip()
    jobs = {name: _submit(lab, name, home) for name in CURVES}

    lab.reconcile_once()  # takes the submissions in
    lab.reconcile_once()
    _partition(lab, "UP")
    for job_id in jobs.values():
        lab.wait_job(job_id)

    said = {name: Path(f"{home}/tune-{job_id}.out").read_text().split() for name, job_id in jobs.items()}
    # 32000 MiB were asked; the peak of 30000 MiB with its margin is what they must have
    assert said == {"tuned-hungry": ["16", "16", "36000", "ran"], "tuned-content": ["1", "1", "36000", "ran"]}


def _partition(lab: Lab, state: str) -> None:
    done = lab.run(["scontrol", "update", "PartitionName=gpu", f"State={state}"])
    assert done.returncode == 0, done.stderr


def _submit(lab: Lab, profile: str, home: str) -> str:
    argv = [*GSUB, "--prerun=off", f"--resource-profile={profile}", "--parsable", f"--output={home}/tune-%j.out"]
    done = lab.run(argv, ALICE, stdin=SCRIPT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _teach(lab: Lab) -> None:
    """Profiles of complete runs, in the site's database."""
    known = [
        {
            "key": key,
            "runs": 3,
            "confidence": 0.9,
            "source": "epilog",
            "mem_mib_per_gpu": 30_000,
            "cpu_curve": [{"cpus": cpus, "steps_per_s": speed} for cpus, speed in curve],
        }
        for key, curve in CURVES.items()
    ]
    text = json.dumps({"slurmwrap_profiles": 1, "profiles": known})
    words = ("profile", "import", "--replace", "--site", "--user", ALICE, "-")
    done = lab.slurmwrap(*words, user=lab.slurm_user, stdin=text)
    assert done.returncode == 0, done.stderr
