"""Runs from slurmdbd on a real Slurm: sacct, the reconciler and `why` (`make accounting`)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from realslurm import USERS, Lab, need_accounting, started
from waiting import wait_for

from slurmwrap.errors import SlurmError
from slurmwrap.model.job_record import JobRecord
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import Sacct

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]
ALICE, BOB = USERS
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """Two nodes. slurmctld forgets a job some seconds after its end, at the latest after a minute."""
    need_accounting()
    options = ("--accounting", "--no-hooks", "--nodes", "2", "--switches", "1")
    with started(lab_scratch / "history", *options) as running:
        conf = Path(running.env["SLURM_CONF"])
        conf.write_text(conf.read_text().replace("MinJobAge=300", "MinJobAge=10"))
        done = running.run(["scontrol", "reconfigure"])
        assert done.returncode == 0, done.stderr
        assert "MinJobAge=10" in conf.read_text()
        yield running


@pytest.fixture
def sacct(lab: Lab) -> Sacct:
    return Sacct({**os.environ, **lab.env})


@pytest.fixture
def slurm(lab: Lab) -> SlurmCommands:
    return SlurmCommands({**os.environ, **lab.env})


def wait_for_slurmdbd_runs(sacct: Sacct, job: str) -> tuple[JobRecord, ...]:
    """Waits for the complete slurmdbd records of a job of alice: at first a row may exist without its owner."""
    return wait_for(
        lambda: sacct.runs([int(job)]),
        lambda seen: bool(seen) and seen[-1].ended and {r.user for r in seen} == {ALICE} and not _nameless(seen),
        60,
    )


def _nameless(runs: Sequence[JobRecord]) -> bool:
    return any(run.name == "allocation" for run in runs)


def wait_until_forgotten(slurm: SlurmCommands, job: str) -> None:
    assert wait_for(lambda: slurm.job(job), lambda record: record is None, 120, 1.0) is None


def test_the_sacct_record_of_a_run_equals_the_scontrol_record(lab: Lab, sacct: Sacct, slurm: SlurmCommands) -> None:
    name = "x|FAILED\n7|COMPLETED\x1f"
    job = lab.submit(
        *("--mem=100", "--gres=gpu:2", "--nodes=2", "--time=3", f"--job-name={name}"),
        user=ALICE,
        script="#!/bin/sh\nsrun false\nexit 3\n",
    )
    lab.wait_job(job, ("FAILED",))
    record = slurm.job(job)
    assert record is not None
    (run,) = wait_for_slurmdbd_runs(sacct, job)
    names = ("job_id", "name", "user", "uid", "account", "partition", "qos", "state", "restarts", "exit_code", "signal")
    names += ("derived_exit_code", "submit_time", "eligible_time", "start_time", "end_time", "time_limit_s", "nodes")
    names += ("num_nodes", "cpus", "gpus", "work_dir")
    assert {key: getattr(run, key) for key in names} == {key: getattr(record, key) for key in names}
    assert (run.name, run.state, run.exit_code, run.derived_exit_code, run.gpus) == (name, "FAILED", 3, 1, 4)


def test_sacct_returns_every_run_of_a_requeued_job(lab: Lab, sacct: Sacct) -> None:
    job = lab.submit("--requeue", "--mem=100", user=ALICE, script="#!/bin/sh\nsleep 300\n")
    lab.wait_job(job, ("RUNNING",))
    assert lab.run(["scontrol", "requeuehold", job]).returncode == 0
    wait_for(lambda: lab.states(job), lambda now: now == ["PENDING"], 60)
    lab.run(["scancel", job])
    runs = wait_for_slurmdbd_runs(sacct, job)
    assert [(run.state, run.restarts, len(run.nodes)) for run in runs] == [("REQUEUED", 0, 1), ("CANCELLED", 1, 0)]
    assert runs[0].submit_time < runs[1].submit_time


def test_sacct_returns_array_tasks_with_their_addresses(lab: Lab, sacct: Sacct) -> None:
    array = lab.submit("--array=0-2", "--mem=100", user=ALICE, script="#!/bin/sh\nexit $SLURM_ARRAY_TASK_ID\n")
    lab.wait_job(array, FINAL)
    runs = wait_for(lambda: sacct.runs([int(array)]), lambda seen: len(seen) == 3 and all(r.ended for r in seen), 60)
    assert sorted((run.address, run.state, run.exit_code) for run in runs) == [
        (f"{array}_0", "COMPLETED", 0),
        (f"{array}_1", "FAILED", 1),
        (f"{array}_2", "FAILED", 2),
    ]
    assert [run.exit_code for run in sacct.address(f"{array}_2")] == [2]


def test_sacct_returns_nothing_for_an_unknown_job(sacct: Sacct) -> None:
    assert sacct.runs([999_999]) == ()
    assert sacct.runs([]) == ()
    with pytest.raises(SlurmError):
        sacct.address("1; rm")


@pytest.mark.parametrize(
    ("script", "options", "wanted"),
    [
        ("sleep 300", ("--time=1",), ("TIMEOUT", "time_limit")),
        ("exit 0", (), ("COMPLETED", "success")),
        ("sleep 300", (), ("CANCELLED", "cancelled")),
    ],
    ids=["time-limit", "success", "cancelled"],
)
def test_a_run_that_slurmctld_forgot_is_diagnosed_from_slurmdbd(
    lab: Lab, slurm: SlurmCommands, script: str, options: tuple[str, ...], wanted: tuple[str, str]
) -> None:
    """User mode without hooks: bob runs the reconciler after slurmctld has forgotten the job."""
    gsub = [Path(sys.executable).parent / "gsub", "--prerun=off", "--mem=100", "--gres=gpu:1", *options]
    done = lab.run(gsub, BOB, stdin=f"#!/bin/sh\n{script}\n")
    assert done.returncode == 0, done.stdout + done.stderr
    job = done.stdout.split()[-1]
    lab.wait_job(job, ("RUNNING", *FINAL))
    if wanted[0] == "CANCELLED":
        lab.run(["scancel", job], BOB)
    lab.wait_job(job, (wanted[0],), timeout=150)
    wait_until_forgotten(slurm, job)
    result = lab.slurmwrap("reconcile", "--once", "--user", user=BOB)
    assert result.returncode == 0, result.stderr
    assert f"job {job} of {BOB}: {wanted[1]}" in result.stderr
    (run,) = json.loads(lab.slurmwrap("why", job, "--json", user=BOB).stdout)["attempts"]
    assert (run["state"], run["diagnosis"]["category"]) == wanted
    assert run["nodes"] and run["end_time"] <= time.time()


def test_why_explains_a_job_without_an_earlier_record(lab: Lab, slurm: SlurmCommands) -> None:
    """`why` first runs a pass of the user's reconciler, which reads the job from Slurm and records it."""
    job = lab.submit("--mem=100", user=ALICE, script="#!/bin/sh\nexit 7\n")
    lab.wait_job(job, ("FAILED",))
    while_known = lab.slurmwrap("why", job, "--json", user=ALICE)
    wait_until_forgotten(slurm, job)
    after = lab.slurmwrap("why", job, "--json", user=ALICE)
    for result in (while_known, after):
        assert result.returncode == 0, result.stderr
        (run,) = json.loads(result.stdout)["attempts"]
        assert (run["state"], run["exit_code"], run["user"]) == ("FAILED", 7, ALICE)
    assert lab.slurmwrap("why", "999999", user=ALICE).returncode != 0


def test_forgotten_runs_are_read_once_slurmdbd_answers_again(lab: Lab, slurm: SlurmCommands) -> None:
    gsub = [Path(sys.executable).parent / "gsub", "--prerun=off", "--mem=100", "--gres=gpu:1"]
    old, new = "", ""
    for code in (4, 5):
        old, new = new, lab.run(gsub, ALICE, stdin=f"#!/bin/sh\nexit {code}\n").stdout.split()[-1]
        lab.wait_job(new, ("FAILED",))
        if code == 4:
            wait_until_forgotten(slurm, new)
    slurmdbd = int((lab.dir / "accounting" / "slurmdbd.pid").read_text())
    os.kill(slurmdbd, signal.SIGSTOP)
    try:
        stderr = read_reconcile_output(lab, "reconcile", "--once", "--user")
    finally:
        os.kill(slurmdbd, signal.SIGCONT)
    assert f"job {new} of {ALICE}" in stderr  # slurmctld still shows this job
    assert f"job {old} of {ALICE}" not in stderr
    assert "runs that ended unseen are looked for later: sacct: no answer within 2 s" in stderr
    assert f"job {old} of {ALICE}" in read_reconcile_output(lab, "reconcile", "--once", "--user")


def read_reconcile_output(lab: Lab, *words: str) -> str:
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words]
    return lab.run(argv, ALICE, env={"SLURMWRAP_SLURM_TIMEOUT_S": "2"}).stderr
