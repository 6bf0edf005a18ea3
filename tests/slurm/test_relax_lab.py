"""Relaxing on a real Slurm: jobs whose requests cannot be met are relaxed in order, start, and srun works in them."""

from __future__ import annotations

import os
import pwd
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from realslurm import USERS, Lab, need_accounting, started
from site_records import report_submissions, site_rows
from waiting import wait_for

from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.submission import Submission
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, OptionChange, ResourceShape
from slurmwrap.slurm.commands import SlurmCommands

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
PROBE = """#!/bin/bash
echo "job $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE $SLURM_JOB_CPUS_PER_NODE $SLURM_JOB_NUM_NODES"
srun -Q true
echo "srun $?"
srun -Q -n1 -N1 -c1 true
echo "small $?"
"""
SHAPE = ResourceShape(
    nodes=1, max_nodes=1, tasks_per_node=2, gpus=2, gpus_per_node=2, gpu_unit=GpuUnit.GRES,
    cpus=2, cpu_unit=CpuUnit.PER_TASK, mem_mib=2000, mem_unit=MemUnit.PER_NODE,
)  # fmt: skip
SIZES = ("--nodes=1", "--ntasks-per-node=2", "--gres=gpu:2", "--cpus-per-task=4", "--mem=3000", "--time=5")
FULL = ("--gres=gpu:8", "--cpus-per-task=1", "--mem=100", "--time=1440")


@pytest.fixture
def work(lab: Lab, lab_without_hooks: None) -> Iterator[Path]:
    """A directory that every user may write, on a lab without jobs and with all nodes up."""
    lab.reset()
    path = lab.dir / f"relax-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    path.chmod(0o777)
    yield path
    lab.reset()


def occupy_gpus(lab: Lab, nodes: str, count: int) -> str:
    """Starts a job of bob that has all GPUs of `nodes`."""
    return lab.occupy(*FULL, f"--nodelist={nodes}", f"--nodes={count}", user=BOB)


def submit(lab: Lab, directory: Path, *options: str, user: str = ALICE) -> str:
    return lab.submit(*options, f"--output={directory}/%j.out", user=user, script=PROBE)


def report_plans(lab: Lab, jobs: dict[str, PlacementPlan], shape: ResourceShape = SHAPE, user: str = ALICE) -> None:
    """Writes what gsub reports of these jobs, sealed by their user."""
    uid = pwd.getpwnam(user).pw_uid
    common = {"uid": uid, "user": user, "at": time.time(), "shape": shape, "tune": True, "place": True}
    plans = [
        Submission(cluster=lab.cluster, job_id=int(job), plan=asdict(plan), **common) for job, plan in jobs.items()
    ]
    report_submissions(lab, plans, user)


def reconcile(lab: Lab, **settings: object) -> None:
    """One pass of the reconciler that relaxes and does not tune."""
    names = {"RULES_TUNE": "observe", **{name.upper(): value for name, value in settings.items()}}
    env = {f"SLURMWRAP_{name}": str(value) for name, value in names.items()}
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--once"]
    done = lab.run(argv, lab.slurm_user, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def reconcile_until_ended(lab: Lab, *jobs: str) -> None:
    """Reconciles until all jobs have ended."""

    def look() -> set[str]:
        reconcile(lab)
        return {state for job in jobs for state in lab.states(job)}

    wait_for(look, lambda states: states <= {"COMPLETED", "FAILED"}, timeout=120, pause=0.5)
    for job in jobs:
        lab.wait_job(job)


def read_actions(lab: Lab, job: str) -> list[dict[str, object]]:
    sql = "SELECT key, value, done_at, error, reason FROM actions WHERE job_id = ? AND rule = 'relax' ORDER BY done_at"
    return site_rows(lab, sql, int(job))


def plan(levels: tuple[Level, ...], **wishes: str) -> PlacementPlan:
    lines = (OptionChange(option=name.replace("_", "-"), value=value, reason="test") for name, value in wishes.items())
    return PlacementPlan(lines=tuple(lines), levels=levels)


def test_jobs_of_two_users_are_relaxed_level_by_level_and_run(lab: Lab, work: Path) -> None:
    others = occupy_gpus(lab, "n0", 1)
    tuned = submit(lab, work, *SIZES, "--exclude=n[1-7]")
    levels = (
        Level(name="as planned", wait_s=2),
        Level(
            name="its share", wait_s=4, updates=(("MinMemoryNode", "2500"), ("CPUsPerTask", "3"), ("MinCPUsNode", "6"))
        ),
        Level(name="any", wait_s=0, updates=(("ExcNodeList", ""),)),
    )
    report_plans(lab, {tuned: plan(levels, exclude="n[1-7]", mem="3000M", cpus_per_task="4")})
    pinned = submit(lab, work, *SIZES, "--nodelist=n0", user=BOB)
    report_plans(
        lab, {pinned: plan((Level(name="pinned", wait_s=600), Level(name="any", wait_s=0)), nodelist="n0")}, user=BOB
    )
    # no node has nine GPUs: Slurm accepts the job while it is held, and then it waits for ever
    nine = ("--ntasks=9", "--gpus-per-task=1", "--cpus-per-task=1", "--mem=1000")
    wide = submit(lab, work, "--hold", "--nodes=1", *nine)
    lab.run(["scontrol", "release", wide], ALICE)
    shape = ResourceShape(tasks=9, gpus=9, gpu_unit=GpuUnit.PER_TASK, cpus=1, cpu_unit=CpuUnit.PER_TASK)
    fewest = (Level(name="fewest nodes", wait_s=600), Level(name="any", wait_s=0, updates=(("NumNodes", "1-8"),)))
    report_plans(lab, {wide: plan(fewest, nodes="1")}, replace(shape, mem_mib=1000, mem_unit=MemUnit.PER_NODE))
    reconcile_until_ended(lab, tuned, pinned, wide)
    lab.check_occupied(others)
    # in any order: on a slow machine both levels are over before the next pass
    assert {(row["key"], row["value"], row["error"]) for row in read_actions(lab, tuned)} == {
        ("MinMemoryNode", "2500", ""),
        ("CPUsPerTask", "3", ""),
        ("MinCPUsNode", "6", ""),
        ("ExcNodeList", "", ""),
    }
    assert [(row["key"], row["value"]) for row in read_actions(lab, pinned)] == [("ReqNodeList", "")]
    assert [(row["key"], row["value"]) for row in read_actions(lab, wide)] == [("NumNodes", "1-8")]
    success = ["srun 0", "small 0"]
    assert (work / f"{tuned}.out").read_text().splitlines() == ["job 3 2500 6 1", *success]
    assert (work / f"{pinned}.out").read_text().splitlines() == ["job 4 3000 8 1", *success]
    first, *rest = (work / f"{wide}.out").read_text().splitlines()
    assert int(first.split()[-1]) > 1 and rest == success
    waited = site_rows(lab, "SELECT * FROM delays WHERE job_id = ?", int(tuned))
    assert [(row["user"], row["gpus"], row["over"]) for row in waited] == [(ALICE, 2, 1)]
    assert waited[0]["fair_share_s"] + waited[0]["fragmentation_s"] > 0


def test_only_the_first_jobs_of_the_queue_are_relaxed(lab: Lab, work: Path) -> None:
    others = occupy_gpus(lab, "n[0-1]", 2)
    jobs = [submit(lab, work, *SIZES, "--exclude=n[1-7]") for _ in range(16)]
    levels = (Level(name="here", wait_s=0), Level(name="there", wait_s=0, updates=(("ExcNodeList", "n[2-7]"),)))
    report_plans(lab, dict.fromkeys(jobs, plan(levels, exclude="n[1-7]")))
    head = 12
    for _ in range(2):  # each pass has a rate limit bucket of ten
        reconcile(lab, placement_relax_jobs=head, placement_relax_updates_per_s=10)
    lab.check_occupied(others)
    shown = lab.run(["squeue", "-h", "-o", "%A %x", f"--user={ALICE}"]).stdout.split("\n")
    lists = dict(line.split() for line in shown if line)
    assert [lists[job] for job in jobs] == ["n[2-7]"] * head + ["n[1-7]"] * (len(jobs) - head)
    assert [len(read_actions(lab, job)) for job in jobs] == [1] * head + [0] * (len(jobs) - head)


def test_running_tasks_of_an_array_are_not_changed(lab: Lab, work: Path) -> None:
    others = occupy_gpus(lab, "n[1-7]", 7)
    script = "#!/bin/bash\nsleep 86400\n"
    array = lab.submit(
        "--array=0-3", "--nodes=1", "--gres=gpu:5", "--cpus-per-task=1", "--mem=100", "--exclude=n[6-7]",
        f"--output={work}/%A_%a.out", user=ALICE, script=script,
    )  # fmt: skip
    assert wait_for(lambda: lab.states(array), lambda states: "RUNNING" in states, timeout=60).count("RUNNING") == 1
    levels = (Level(name="here", wait_s=0), Level(name="any", wait_s=0, updates=(("ExcNodeList", ""),)))
    report_plans(lab, {array: plan(levels, exclude="n[6-7]")})
    reconcile(lab)
    lab.check_occupied(others)
    shown = lab.run(["squeue", "-h", "-r", "-o", "%T %x", "-j", array]).stdout.splitlines()
    assert sorted(line.strip() for line in shown) == ["PENDING"] * 3 + ["RUNNING n[6-7]"]
    assert [(row["key"], row["error"]) for row in read_actions(lab, array)] == [("ExcNodeList", "")]


def test_slurms_own_switch_timeout_lets_a_job_span_two_switches_in_user_mode(lab: Lab, work: Path) -> None:
    others = occupy_gpus(lab, "n[0-2,4-6]", 6)
    job = submit(lab, work, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:8", "--mem=1000", "--switches=1@00:00:03")
    lab.wait_job(job)  # squeue shows only the nodes on which a COMPLETING job is not finished
    lab.check_occupied(others)
    assert lab.run(["squeue", "-h", "-t", "all", "-o", "%N", "-j", job]).stdout.strip() == "n[3,7]"
    assert read_actions(lab, job) == []


@pytest.mark.slow
def test_a_reconciler_that_is_not_root_relaxes_jobs(lab_as_slurm: Lab) -> None:
    lab = lab_as_slurm
    path = lab.dir / "relax"
    path.mkdir()
    path.chmod(0o777)
    occupy_gpus(lab, "n0", 1)
    job = submit(lab, path, *SIZES, "--exclude=n[1-7]")
    share = Level(name="any", wait_s=0, updates=(("MinMemoryNode", "2500"), ("ExcNodeList", "")))
    report_plans(lab, {job: plan((Level(name="here", wait_s=0), share), exclude="n[1-7]", mem="3000M")})
    reconcile_until_ended(lab, job)
    assert [(row["key"], row["error"]) for row in read_actions(lab, job)] == [
        ("MinMemoryNode", ""),
        ("ExcNodeList", ""),
    ]
    assert (path / f"{job}.out").read_text().splitlines() == ["job 4 2500 8 1", "srun 0", "small 0"]
    lab.reset()


@pytest.mark.slow
def test_limits_apply_to_updates_in_the_owners_name_but_not_to_updates_by_root(lab_scratch: Path) -> None:
    need_accounting()
    with started(lab_scratch / "relax-limits", "--accounting", "--no-hooks", "--nodes=2") as lab:
        result = lab.run(["sacctmgr", "-i", "modify", "user", ALICE, "set", "GrpTRES=mem=3000"])
        assert result.returncode == 0, result.stderr
        options = ("--gres=gpu:1", "--mem=5000", "--output=/dev/null")
        job = lab.submit(*options, user=ALICE, script="#!/bin/bash\nsleep 86400\n")
        slurm = SlurmCommands({**os.environ, **lab.env})
        less = SlurmAction(verb=Verb.UPDATE_JOB, target=job, key="MinMemoryNode", value="4000")

        def reason() -> str:
            return lab.run(["squeue", "-h", "-o", "%T %r %m", "-j", job]).stdout.strip()

        assert wait_for(reason, lambda now: "AssocGrpMemLimit" in now, timeout=60) == "PENDING AssocGrpMemLimit 5000M"
        slurm.apply(less, owner=pwd.getpwnam(ALICE).pw_uid)
        assert not wait_for(reason, lambda now: now.startswith("RUNNING"), timeout=5).startswith("RUNNING")
        slurm.apply(replace(less, value="4500"))  # as root, although the value is above the limit
        lab.wait_job(job, ("RUNNING",))
