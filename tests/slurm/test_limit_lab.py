"""Time limits of waiting jobs on a real Slurm: lowered, restored at the start, and restored by the watchdog."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, command_environment
from site_records import report_submissions, site, site_rows
from waiting import wait_for, wait_until

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.store.database import Database

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]
ALICE, BOB = USERS
SLEEP = "#!/bin/bash\nsleep 86400\n"
FULL = ("--gres=gpu:8", "--cpus-per-task=1", "--mem=100", "--time=1440")
# What the jobs here ask for, as squeue prints it. Any other limit is a lower one.
ASKED = ("7-00:00:00", "1:40:00")
OWN, LOWER = "own", "lower"


@pytest.fixture
def quiet_lab(lab: Lab, key: str) -> Iterator[Lab]:
    """The session's lab without jobs, a watchdog that has just run, and earlier runs of alice's jobs."""
    lab.reset()
    watchdog(lab)
    store_runs(lab, key, 600)
    yield lab
    lab.reset()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """The profile key of this test's jobs: runs that are cancelled at the end of a test count as evidence."""
    return f"{request.node.name}.py"


def watchdog(lab: Lab) -> subprocess.CompletedProcess[str]:
    """Runs the watchdog once, as its timer does. Its exit code depends on the night report."""
    return lab.slurmwrap("hooks", "watchdog", user=lab.slurm_user)


def store_runs(lab: Lab, key: str, run_s: float, runs: int = 14) -> None:
    """Adds completed runs of alice's jobs to the site's database. The reconciler does not run."""
    first = zlib.crc32(key.encode())
    lab.reconcile_once()
    uid = pwd.getpwnam(ALICE).pw_uid
    with Database.open(Path(site(lab)["state_dir"]) / "site.db") as store:
        for number in range(runs):
            store.save_run_time(
                RunTimeRecord(
                    attempt=RunKey(cluster=lab.cluster, job_id=first + number, submit_time=1_700_000_000),
                    uid=uid,
                    end_time=1_700_000_000 + number,
                    job=RunTimeQuery(user=str(uid), key=key, gpus=1, partition="gpu"),
                    sample=RunTimeSample(run_s=run_s),
                )
            )


def submit(lab: Lab, key: str, *options: str) -> str:
    """Submits a job of alice for seven days that waits, and what gsub reports of it."""
    job = lab.submit(
        "--gres=gpu:1", "--mem=100", "--cpus-per-task=1", "--time=7-0", "--output=/dev/null", *options,
        user=ALICE, script=SLEEP,
    )  # fmt: skip
    report = Submission(
        cluster=lab.cluster, job_id=int(job), uid=pwd.getpwnam(ALICE).pw_uid, user=ALICE, at=time.time(),
        profile_key=key, time=TimeRequest(),
    )  # fmt: skip
    report_submissions(lab, [report], ALICE)
    return job


def occupy(lab: Lab) -> str:
    """Starts a job of bob that has all GPUs of the lab."""
    job = lab.submit(*FULL, "--nodes=8", user=BOB, script=SLEEP)
    lab.wait_job(job, ("RUNNING",))
    return job


def limits(lab: Lab, job: str) -> dict[str, str]:
    """State of the tasks of a job -> whether they have their own time limit or a lower one."""
    shown = lab.run(["squeue", "-h", "-o", "%T %l", "-j", job]).stdout
    rows = [line.split() for line in shown.splitlines()]
    return {state: OWN if limit in ASKED else LOWER for state, limit in rows}


def show_comment(lab: Lab, job: str) -> str:
    return lab.run(["squeue", "-h", "-o", "%k", "-j", job]).stdout.strip()


def start_reconciler(lab: Lab, mode: str = "act", **settings: str) -> subprocess.Popen[bytes]:
    """Starts `reconcile --watch`, as the service does."""
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll=1"]
    names = {"RULES_LIMIT": mode, "RULES_ORDER": "observe", **settings}
    environ = {**command_environment(None), **lab.env, **{f"SLURMWRAP_{name}": one for name, one in names.items()}}
    return subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_limit(lab: Lab, job: str, wanted: dict[str, str]) -> None:
    assert wait_for(lambda: limits(lab, job), lambda now: now == wanted, timeout=60, pause=0.3) == wanted


def actions(lab: Lab, job: str) -> list[tuple[object, object]]:
    """Mode and key of each action of the rule on this job."""
    rows = site_rows(lab, "SELECT mode, key FROM actions WHERE job_id = ? AND rule = 'limit'", int(job))
    return [(row["mode"], row["key"]) for row in rows]


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    process.send_signal(number)
    process.wait(60)


def test_a_waiting_job_has_a_limit_that_fits_until_it_starts(quiet_lab: Lab, key: str) -> None:
    lab, other = quiet_lab, occupy(quiet_lab)
    job, array = submit(lab, key), submit(lab, key, "--array=0-2")
    service = start_reconciler(lab)
    try:
        for one in (job, array):
            wait_limit(lab, one, {"PENDING": LOWER})
        wait_until(lambda: show_comment(lab, job).startswith("slurmwrap"), "the Comment is set")
        assert re.fullmatch(r"slurmwrap: time limit [0-9:]+ until it starts, then 7-00:00:00", show_comment(lab, job))
        lab.run(["scancel", other])
        for one in (job, array):
            wait_limit(lab, one, {"RUNNING": OWN})
        assert show_comment(lab, job) in ("", "(null)")
    finally:
        stop(service)


def test_the_watchdog_restores_the_limits_after_the_reconciler_was_killed(quiet_lab: Lab, key: str) -> None:
    lab, other = quiet_lab, occupy(quiet_lab)
    first, waiting = submit(lab, key, "--nodelist=n0"), submit(lab, key, "--nodelist=n0", "--gres=gpu:8")
    service = start_reconciler(lab)
    try:
        for one in (first, waiting):
            wait_limit(lab, one, {"PENDING": LOWER})
    finally:
        stop(service, signal.SIGKILL)
    lab.run(["scancel", other])
    wait_limit(lab, first, {"RUNNING": LOWER})
    watchdog(lab)
    assert limits(lab, first) == {"RUNNING": LOWER}, "its heartbeat is fresh: systemd is about to restart it"
    heartbeat = Path(site(lab)["state_dir"]) / "heartbeat"
    os.utime(heartbeat, (time.time() - 400, time.time() - 400))
    done = watchdog(lab)
    assert limits(lab, first) == {"RUNNING": OWN} and limits(lab, waiting) == {"PENDING": OWN}
    assert f"job {first} has its time limit of 10080 minutes again" in done.stdout


def test_a_restarted_reconciler_and_one_that_stops_restore_the_limits(quiet_lab: Lab, key: str) -> None:
    lab, other = quiet_lab, occupy(quiet_lab)
    first, waiting = submit(lab, key, "--nodelist=n0"), submit(lab, key, "--nodelist=n0", "--gres=gpu:8")
    service = start_reconciler(lab)
    try:
        for one in (first, waiting):
            wait_limit(lab, one, {"PENDING": LOWER})
    finally:
        stop(service, signal.SIGKILL)
    lab.run(["scancel", other])
    wait_limit(lab, first, {"RUNNING": LOWER})
    service = start_reconciler(lab)
    try:
        wait_limit(lab, first, {"RUNNING": OWN})
        assert limits(lab, waiting) == {"PENDING": LOWER}
    finally:
        stop(service)
    assert limits(lab, waiting) == {"PENDING": OWN}


def test_advice_changes_nothing(quiet_lab: Lab, key: str) -> None:
    lab = quiet_lab
    occupy(lab)
    job = submit(lab, key)
    service = start_reconciler(lab, "advise")
    try:
        wait_until(lambda: actions(lab, job) == [("advise", "TimeLimit")], "the advice is recorded")
    finally:
        stop(service)
    assert limits(lab, job) == {"PENDING": OWN}


def test_a_job_that_would_reach_into_maintenance_keeps_its_limit(quiet_lab: Lab, key: str) -> None:
    lab = quiet_lab
    done = lab.run(
        ["scontrol", "create", "reservation", "ReservationName=maint", "StartTime=now+2hours", "Duration=60",
         "Nodes=n[0-7]", "Flags=MAINT", "User=root"]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lab.submit(*FULL[:3], "--nodes=8", "--time=60", user=BOB, script=SLEEP)
    # The second job fits before the maintenance, so that its limit shows that the reconciler has looked.
    job, other = submit(lab, key), submit(lab, key, "--time=100")
    service = start_reconciler(lab)
    try:
        wait_limit(lab, other, {"PENDING": LOWER})
    finally:
        stop(service)
    assert limits(lab, job) == {"PENDING": OWN} and actions(lab, job) == []
