"""gsub --partition=auto on a real Slurm: one partition is full, one forbidden, one free, and one can be preempted."""

from __future__ import annotations

import json
import pwd
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from realslurm import USERS, Lab, restart_controller, started
from waiting import wait_for, wait_until

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.slurm.response_cache import find_cache_folder

pytestmark = pytest.mark.lab
ALICE, _ = USERS
PARTITIONS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=gpu Nodes=n0 Default=YES MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF State=UP
PartitionName=forbidden Nodes=n1 PriorityTier=2 PreemptMode=OFF AllowGroups=root State=UP
PartitionName=free Nodes=n2 PriorityTier=2 PreemptMode=OFF State=UP
PartitionName=idle Nodes=n[0-3] PriorityTier=1 PreemptMode=REQUEUE State=UP
"""


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab of its own, with these partitions."""
    with started(lab_scratch / "partitions", "--nodes", "4") as running, running.without_hooks():
        conf = LabDirectories(running.dir).slurm_conf
        lines = [line for line in conf.read_text().splitlines() if not line.startswith("PartitionName=")]
        conf.write_text("\n".join([*lines, PARTITIONS]))
        restart_controller(running)
        names = ["sinfo", "-h", "-a", "-o", "%R %T"]
        wanted = {f"{name} idle" for name in ("gpu", "forbidden", "free", "idle")}
        wait_until(lambda: set(running.run(names).stdout.splitlines()) == wanted, "the partitions are up")
        _forget_answers()
        yield running


@pytest.fixture(autouse=True)
def _no_jobs(lab: Lab) -> Iterator[None]:
    yield
    lab.clear()


def _forget_answers() -> None:
    shutil.rmtree(find_cache_folder({}, pwd.getpwnam(ALICE).pw_uid), ignore_errors=True)


def gsub(lab: Lab, *words: str, stdin: str = "") -> CompletedProcess[str]:
    return lab.run([sys.executable, "-m", "slurmwrap.gsub.gsub_main", "--prerun=off", *words], ALICE, stdin=stdin)


def test_a_job_starts_in_the_partition_that_is_free_and_why_names_it(lab: Lab) -> None:
    full = lab.submit("-p", "gpu", "-G8", "--mem=100", "-t", "600", "--wrap", "sleep 600", user=ALICE)
    lab.wait_job(full, ("RUNNING",))
    script = "#!/bin/sh\n#SBATCH -p gpu\n#GSUB --partition=auto\n#SBATCH -G8 -t 10\nsleep 30\n"
    done = gsub(lab, "--json", stdin=script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    lab.wait_job(found["job_id"], ("RUNNING",))
    assert lab.run(["squeue", "-h", "-o", "%P", "-j", str(found["job_id"])]).stdout.split() == ["free"]
    (change,) = [one for one in found["changes"] if one["option"] == "partition"]
    assert (change["old"], change["new"]) == ("auto", "free,gpu")
    assert change["reason"].startswith("expected start: free now, gpu in about ")
    assert "forbidden (it is for the groups root)" in change["reason"]
    assert "idle (jobs there are stopped for others (PreemptMode=REQUEUE); --preemptible allows it)" in change["reason"]
    why = lab.slurmwrap("why", "-v", str(found["job_id"]), user=ALICE)
    assert "  --partition auto -> free,gpu" in why.stdout.splitlines()


def test_explain_names_a_partition_that_starts_the_job_earlier(lab: Lab) -> None:
    full = lab.submit("-p", "gpu", "-G8", "--mem=100", "-t", "600", "--wrap", "sleep 600", user=ALICE)
    lab.wait_job(full, ("RUNNING",))
    _forget_answers()
    explained = ("--explain", "--dry-run", "-G1", "-t10", "--wrap", "true")
    advice = "gsub: partition free would start it now, gpu in about "
    assert any(line.startswith(advice) for line in gsub(lab, *explained).stderr.splitlines())
    assert "would start it" not in gsub(lab, "-p", "gpu", *explained).stderr  # one was named
    agreed = gsub(lab, "-p", "auto", "--preemptible", *explained)
    assert "gsub: --partition=auto: free,idle,gpu" in agreed.stderr.splitlines()


def test_watch_names_a_partition_that_its_user_may_add(lab: Lab) -> None:
    full = lab.submit("-p", "gpu", "-G8", "--mem=100", "-t", "600", "--wrap", "sleep 600", user=ALICE)
    lab.wait_job(full, ("RUNNING",))
    job = lab.submit("-G1", "-t10", "--mem=100", "--wrap", "sleep 60", user=ALICE)

    def look() -> dict[str, Any] | None:
        found: dict[str, Any] | None = json.loads(lab.slurmwrap("watch", job, "--once", "--json", user=ALICE).stdout)[
            "earlier"
        ]
        return found

    # Slurm's own forecast of the start is made by its backfill scheduler.
    earlier = wait_for(look, bool, 30)
    assert earlier is not None
    assert earlier["partition"] == "free"
    row = next(
        one for one in json.loads(lab.slurmwrap("queue", "--json", user=ALICE).stdout)["rows"] if one["job"] == job
    )
    command = f"scontrol update JobId={job} Partition=gpu,free"
    assert row["way_out"].startswith(f"partition free would start it earlier: {command}; ")
    done = lab.run(["scontrol", "update", f"JobId={job}", "Partition=gpu,free"], ALICE)
    assert done.returncode == 0, done.stderr
    lab.wait_job(job, ("RUNNING",))


def test_a_job_that_no_partition_takes_is_refused_with_the_reasons(lab: Lab) -> None:
    refused = gsub(lab, "-p", "auto", "-N2", "-G16", "--wrap", "true")
    assert refused.returncode == 5
    assert refused.stderr.startswith("gsub: error: --partition=auto: no partition takes this job: gpu, free (Slurm: ")


def test_a_job_without_gpus_gets_the_list_too(lab: Lab) -> None:
    done = gsub(lab, "-p", "auto", "--hold", "--parsable", "--wrap", "true")
    assert done.returncode == 0, done.stderr
    assert lab.run(["squeue", "-h", "-o", "%P", "-j", done.stdout]).stdout.strip() == "gpu,free"


def test_a_partition_of_this_name_is_slurms(lab: Lab) -> None:
    made = lab.run(["scontrol", "create", "PartitionName=auto", "Nodes=n2", "State=UP"])
    assert made.returncode == 0, made.stderr
    _forget_answers()
    done = gsub(lab, "-p", "auto", "--hold", "--parsable", "-G1", "--wrap", "true")
    assert done.returncode == 0, done.stderr
    assert lab.run(["squeue", "-h", "-o", "%P", "-j", done.stdout]).stdout.strip() == "auto"
