"""A job's cgroup as this release of Slurm really makes it: found by hooks and by pre-runs."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path

import pytest
from realslurm import USERS, Lab
from test_hooks import observed

from slurmwrap.node_hooks import job_cgroup

pytestmark = pytest.mark.lab
ALICE = USERS[0]

# The shell, and a step of srun's; then 400 MiB in each, where 150 are allowed.
TELLS = """#!/bin/bash
for step in batch 0; do
    if [ $step = 0 ]; then run=srun; else run=; fi
    $run cat /proc/self/cgroup > "$1.$step"
done
env > "$1.env"
$PYTHON -c 'bytearray(400 << 20)'
srun --overlap $PYTHON -c 'bytearray(400 << 20)'
sleep 3
"""


@pytest.fixture
def constrained(lab: Lab) -> Lab:
    """A lab whose nodes hold jobs to their memory."""
    said = json.loads(lab.run(["slurmwrap", "lab", "status", "--dir", str(lab.dir), "--json"]).stdout)["enforced"]
    if not said["memory"].startswith("yes"):
        pytest.skip(f"this lab has no memory cgroups: {said['memory']}")
    return lab


def test_the_jobs_cgroup_is_where_we_look_and_its_kills_are_counted(constrained: Lab) -> None:
    lab, account = constrained, pwd.getpwnam(ALICE)
    told = Path(account.pw_dir) / f"cgroup{time.monotonic_ns()}"
    script = TELLS.replace("$1", str(told)).replace("$PYTHON", os.path.realpath("/usr/bin/python3"))
    job = int(lab.submit("--mem=150", "--output=/dev/null", user=ALICE, script=script))
    lab.wait_job(job, ("COMPLETED", "FAILED", "OUT_OF_MEMORY"), timeout=60)

    environ = dict(line.split("=", 1) for line in Path(f"{told}.env").read_text().splitlines() if "=" in line)
    sluid = environ.get("SLURM_JOB_SLUID", "")  # 25.11 and later
    second, first = job_cgroup.places(environ["SLURMD_NODENAME"], job, account.pw_uid, sluid)
    for step in ("batch", "0"):
        lines = Path(f"{told}.{step}").read_text().splitlines()
        (path,) = [line.split(":", 2)[2] for line in lines if ":memory:" in line or line.startswith("0::/system")]
        found = job_cgroup.job_directory(path, job, sluid)
        assert found is not None and found.strip("/") in (*second, *first), (path, second, first)
    (epilog,) = observed(lab, job, nodes=1).epilog
    assert epilog.facts["oom_kills"] >= 1
    assert 100 <= epilog.facts["mem_high_mib"] <= 150
