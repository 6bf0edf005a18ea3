"""The site's reconciler tunes waiting jobs on a real Slurm: they start with the new CPUs and memory, and srun works."""

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
    """The partition is down, so that jobs wait. After the test it is up again."""
    _set_partition_state(lab, "DOWN")
    try:
        yield lab
    finally:
        _set_partition_state(lab, "UP")


def test_jobs_start_with_the_cpus_and_memory_that_the_reconciler_set(partition_down: Lab, tmp_path: Path) -> None:
    lab = partition_down
    _import_profiles(lab)
    home = lab.run(["sh", "-c", "echo $HOME"], ALICE).stdout.strip()
    jobs = {name: _submit(lab, name, home) for name in CURVES}

    lab.reconcile_once()  # reads the submissions
    lab.reconcile_once()
    _set_partition_state(lab, "UP")
    for job_id in jobs.values():
        lab.wait_job(job_id)

    outputs = {name: Path(f"{home}/tune-{job_id}.out").read_text().split() for name, job_id in jobs.items()}
    # requested were 32000 MiB; the peak of 30000 MiB with its margin is 36000 MiB
    assert outputs == {"tuned-hungry": ["16", "16", "36000", "ran"], "tuned-content": ["1", "1", "36000", "ran"]}


def _set_partition_state(lab: Lab, state: str) -> None:
    done = lab.run(["scontrol", "update", "PartitionName=gpu", f"State={state}"])
    assert done.returncode == 0, done.stderr


def _submit(lab: Lab, profile: str, home: str) -> str:
    argv = [*GSUB, "--prerun=off", f"--resource-profile={profile}", "--parsable", f"--output={home}/tune-%j.out"]
    done = lab.run(argv, ALICE, stdin=SCRIPT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _import_profiles(lab: Lab) -> None:
    """Imports profiles of complete runs into the site's database."""
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
