"""The cgroup of a job as this release of Slurm makes it: hooks and pre-runs find it."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from test_hooks import wait_for_observations
from waiting import wait_until

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.node_hooks import job_cgroup, node_state

pytestmark = pytest.mark.lab
ALICE = USERS[0]

# Prints the cgroup of the shell and of an srun step, then uses 400 MiB in each, where 150 MiB are allowed.
SCRIPT = """#!/bin/bash
for step in batch 0; do
    if [ $step = 0 ]; then run=srun; else run=; fi
    $run cat /proc/self/cgroup > "$1.$step"
done
env > "$1.env"
$PYTHON -c 'bytearray(400 << 20)'
srun --overlap $PYTHON -c 'bytearray(400 << 20)'
while [ ! -e "$1.go" ]; do sleep 0.1; done
"""


@pytest.fixture
def constrained(lab: Lab) -> Lab:
    """A lab whose nodes enforce the memory of jobs."""
    enforced = json.loads(lab.run(["slurmwrap", "lab", "status", "--dir", str(lab.dir), "--json"]).stdout)["enforced"]
    if not enforced["memory"].startswith("yes"):
        pytest.skip(f"this lab has no memory cgroups: {enforced['memory']}")
    return lab


def count_kills(lab: Lab, job: int) -> int:
    """The OOM kills that the sampler on the job's node has written so far."""
    for state in LabDirectories(lab.dir).root.glob("nodes/*/state"):
        with contextlib.suppress(OSError, ValueError):
            kept = Path(node_state.usage_path(str(state), job)).read_text(encoding="utf-8")
            return int(json.loads(kept).get("oom_kills", 0))
    return 0


def test_the_cgroup_of_a_job_is_found_and_its_oom_kills_are_counted(constrained: Lab) -> None:
    lab, account = constrained, pwd.getpwnam(ALICE)
    prefix = Path(account.pw_dir) / f"cgroup{time.monotonic_ns()}"
    script = SCRIPT.replace("$1", str(prefix)).replace("$PYTHON", os.path.realpath("/usr/bin/python3"))
    job = int(lab.submit("--mem=150", "--output=/dev/null", user=ALICE, script=script))
    wait_until(lambda: count_kills(lab, job), "the sampler counts a kill")
    Path(f"{prefix}.go").touch()
    lab.wait_job(job, ("COMPLETED", "FAILED", "OUT_OF_MEMORY"), timeout=60)

    environ = dict(line.split("=", 1) for line in Path(f"{prefix}.env").read_text().splitlines() if "=" in line)
    sluid = environ.get("SLURM_JOB_SLUID", "")  # since 25.11
    second, first = job_cgroup.places(environ["SLURMD_NODENAME"], job, account.pw_uid, sluid)
    for step in ("batch", "0"):
        lines = Path(f"{prefix}.{step}").read_text().splitlines()
        (path,) = [line.split(":", 2)[2] for line in lines if ":memory:" in line or line.startswith("0::/system")]
        found = job_cgroup.job_directory(path, job, sluid)
        assert found is not None and found.strip("/") in (*second, *first), (path, second, first)
    (epilog,) = wait_for_observations(lab, job, nodes=1).epilog
    assert epilog.facts["oom_kills"] >= 1
    assert 100 <= epilog.facts["mem_high_mib"] <= 150
