"""Limits of QOS and associations on a real Slurm with slurmdbd: tuning does not exceed them (`make accounting`)."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_requests import find_broken_plans, make_trials
from realslurm import USERS, Lab, need_accounting, run_as, started
from waiting import allow, wait_for

from slurmwrap.cli.profile.profile_files import export_profiles
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.limits import Quotas
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.slurm.assoc_mgr_parser import parse_limits
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.snapshot import make_assoc_mgr_request

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(allow(900))]
ALICE, BOB = USERS
PARTITIONS = (
    "PartitionName=small Nodes=n[0-3] MaxNodes=2 MaxTime=60 State=UP",
    "PartitionName=lean Nodes=n[2-7] MaxMemPerNode=90000 QOS=lean State=UP",
    "PartitionName=alone Nodes=n[4-7] OverSubscribe=EXCLUSIVE State=UP",
)
JOB = """\
#!/bin/sh
#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=4000 --output=/dev/null
#GSUB --resource-profile hungry --prerun off
sleep 300
"""


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """Eight nodes; alice and bob in the account "lab"."""
    need_accounting()
    with started(lab_scratch / "accounting", "--accounting", "--no-hooks") as running:
        for name in ("lean", "tight"):
            run_sacctmgr(running, "add", "qos", name)
        run_sacctmgr(running, "modify", "user", f"{ALICE},{BOB}", "set", "qos=normal,lean,tight")
        for partition in PARTITIONS:
            done = running.run(["scontrol", "create", *partition.split()])
            assert done.returncode == 0, done.stdout + done.stderr
        for user in USERS:
            hungry = ResourceProfile(key="hungry", cpus_per_gpu=4.0, mem_mib_per_gpu=20_000, runs=5, source="epilog")
            words = ["-m", "slurmwrap.cli.slurmwrap", "profile", "import", "--replace", "-"]
            done = running.run([sys.executable, *words], user, stdin=export_profiles([hungry]))
            assert done.returncode == 0, done.stdout + done.stderr
        yield running


def run_sacctmgr(lab: Lab, *words: str) -> None:
    done = lab.run(["sacctmgr", "-i", *words])
    assert done.returncode == 0 or "Nothing" in done.stdout, done.stdout + done.stderr


def set_limits(lab: Lab, qos: str, **limits: str) -> None:
    """Sets limits of a QOS and waits until slurmctld has them; "-1" removes a limit. It does not wait for limits per
    user, which slurmctld shows only for users who have jobs."""
    run_sacctmgr(lab, "modify", "qos", qos, "set", *(f"{key}={value}" for key, value in limits.items()))
    job = [value for key, value in limits.items() if key in ("MaxTRESPerJob", "MaxTRESPerNode") and "-1" not in value]
    wanted = [pair for value in job for pair in value.split(",") if pair.startswith("cpu=")]

    def known() -> str:
        shown = lab.run(["scontrol", "-o", "show", "assoc_mgr", "flags=qos", f"qos={qos}"]).stdout
        return shown if all(pair in shown for pair in wanted) else ""

    assert wait_for(known, bool, 60), f"slurmctld does not know the limits of {qos}"


def gsub(lab: Lab, user: str, *options: str) -> str:
    """Submits JOB with gsub. Returns the job id."""
    done = lab.run([Path(sys.executable).parent / "gsub", *options], user, stdin=JOB)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()[-1]


def read_cpus_and_memory(lab: Lab, job: str) -> tuple[str, str]:
    """(CPUs, memory) of a job."""
    return tuple(lab.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%C %m"]).stdout.split())  # type: ignore[return-value]


def wait_for_reason(lab: Lab, job: str, wanted: str) -> str:
    return wait_for(
        lambda: lab.run(["squeue", "-h", "-j", job, "-o", "%r"]).stdout.strip(), lambda now: now == wanted, 60
    )


def cancel_all_jobs(lab: Lab) -> None:
    for user in USERS:
        lab.run(["scancel", "-u", user])
        wait_for(lambda user=user: lab.run(["squeue", "-h", "-u", user]).stdout, lambda now: not now, 60)  # type: ignore[misc]


def test_an_increase_that_the_qos_forbids_is_not_requested(lab: Lab) -> None:
    free = gsub(lab, ALICE)
    assert read_cpus_and_memory(lab, free) == ("4", "24000M")  # the values of the profile, with the margin for memory
    cancel_all_jobs(lab)
    set_limits(lab, "normal", MaxTRESPerJob="cpu=3,mem=4000M")
    raised = lab.submit("--gres=gpu:1", "-c4", "--mem=24000", "--output=/dev/null", user=ALICE, script=JOB)
    assert wait_for_reason(lab, raised, "QOSMaxCpuPerJobLimit") == "QOSMaxCpuPerJobLimit"
    job = gsub(lab, ALICE)
    assert read_cpus_and_memory(lab, job) == ("3", "4000M")
    assert lab.wait_job(job, ("RUNNING",)) == "RUNNING"
    cancel_all_jobs(lab)
    set_limits(lab, "normal", MaxTRESPerJob="cpu=-1,mem=-1")


def test_an_increase_over_the_users_remaining_quota_is_not_requested(lab: Lab) -> None:
    set_limits(lab, "normal", MaxTRESPerUser="cpu=8")
    for _ in range(3):
        holding = lab.submit("--gres=gpu:1", "-c2", "--mem=1000", "--output=/dev/null", user=BOB, script=JOB)
        lab.wait_job(holding, ("RUNNING",))
    raised = lab.submit("--gres=gpu:1", "-c4", "--mem=1000", "--output=/dev/null", user=BOB, script=JOB)
    assert wait_for_reason(lab, raised, "QOSMaxCpuPerUserLimit") == "QOSMaxCpuPerUserLimit"
    job = gsub(lab, BOB)
    assert read_cpus_and_memory(lab, job)[0] == "2"
    assert lab.wait_job(job, ("RUNNING",)) == "RUNNING"
    cancel_all_jobs(lab)
    set_limits(lab, "normal", MaxTRESPerUser="cpu=-1")


def test_only_the_limits_of_the_jobs_own_qos_apply(lab: Lab) -> None:
    set_limits(lab, "tight", MaxTRESPerJob="cpu=2")
    assert read_cpus_and_memory(lab, gsub(lab, ALICE, "--qos=tight"))[0] == "2"
    assert read_cpus_and_memory(lab, gsub(lab, ALICE, "--qos=normal"))[0] == "4"
    cancel_all_jobs(lab)
    set_limits(lab, "tight", MaxTRESPerJob="cpu=-1")


def read_quotas(lab: Lab, user: str) -> Quotas:
    output = lab.run(["scontrol", "-o", *make_assoc_mgr_request(user).split()], user).stdout
    return parse_limits(output, user, pwd.getpwnam(user).pw_uid)


def test_a_snapshot_holds_the_users_own_limits(lab: Lab) -> None:
    set_limits(lab, "tight", MaxTRESPerJob="cpu=7")
    program = "from slurmwrap.slurm.commands import SlurmCommands as S; print(repr(S().snapshot().quotas))"
    done = lab.run([sys.executable, "-c", program], ALICE)
    assert done.stdout.strip() == repr(read_quotas(lab, ALICE)), done.stderr
    assert [a.account for a in read_quotas(lab, ALICE).associations] == ["lab"]
    assert {qos.name: qos.limits.cpus_per_job for qos in read_quotas(lab, ALICE).qos}["tight"] == 7
    set_limits(lab, "tight", MaxTRESPerJob="cpu=-1")


def test_placement_plans_keep_thousands_of_requests_within_the_limits(lab: Lab) -> None:
    """With DenyOnLimit Slurm refuses a request above a limit at once; otherwise the job would wait for ever."""
    denied = {"Flags": "DenyOnLimit"}
    set_limits(lab, "normal", **denied, MaxTRESPerJob="cpu=40,mem=300G", MinTRESPerJob="cpu=2", MaxTRESPerUser="cpu=80")
    run_sacctmgr(lab, "modify", "user", ALICE, "set", "MaxTRESPerJob=cpu=36")
    run_sacctmgr(lab, "modify", "account", "lab", "set", "GrpTRES=mem=280G")
    set_limits(lab, "lean", **denied, MaxTRESPerJob="cpu=17,node=2", MaxTRESPerNode="cpu=12")
    for partition in ("gpu", "lean"):
        one = lab.submit("--gres=gpu:1", "-c2", "--mem=4000", "-p", partition, user=ALICE, script=JOB)
        lab.wait_job(one, ("RUNNING",))
    user = pwd.getpwnam(ALICE)
    account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    environ = {**os.environ, **lab.env}
    seen = read_quotas(lab, ALICE)
    assert (seen.associations[0].limits.cpus_per_job, seen.associations[0].limits.mem_mib_left) == (36, 278_720)
    snapshot: Snapshot = replace(SlurmCommands(environ).snapshot(), quotas=seen)
    broken, changed = find_broken_plans(list(make_trials(snapshot, range(20_000, 23_000))), environ, account)
    refused = [text for text in broken if "\n  -> " in text]
    assert not refused, "\n".join(refused)
    assert changed >= 300


def test_what_a_job_used_is_read_from_slurms_accounting_where_no_sampler_measured_it(lab: Lab) -> None:
    job = lab.submit("-c2", "--mem=400", user=ALICE, script="#!/bin/sh\nsrun true\n")
    lab.wait_job(job, ("COMPLETED",))

    def read() -> Any:
        done = lab.run([Path(sys.executable).parent / "slurmwrap", "job", job, "--json"], ALICE)
        return json.loads(done.stdout)["runs"][0] if done.returncode == 0 else {}

    # slurmctld sends the records of the steps to slurmdbd some time after their end.
    found = wait_for(read, lambda run: run.get("cpu_s"), 60)
    assert (found["cpu_source"], found["cpu_nodes"], found["mem_asked_mib"]) == ("sacct", 1, 400)


def test_lab_down_leaves_no_file_and_no_process_of_an_accounting_lab(lab_scratch: Path) -> None:
    place = lab_scratch / "short"
    with started(place, "--accounting", "--nodes", "1", "--switches", "1", "--no-hooks") as running:
        assert "all users are in the account 'lab'" in running.slurmwrap("lab", "status", "--dir", str(place)).stdout
    assert not place.exists()
    assert str(place) not in run_as(None, ["ps", "-eo", "args"]).stdout
