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
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeClock
from realslurm import USERS, Lab, command_environment
from site_records import report_submissions, site, site_rows
from waiting import wait_for, wait_until

from slurmwrap.config.load_config import Limit, load
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import TimeRequest
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.reconcile.limit_running import limit_running
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, SlurmJobs
from slurmwrap.reconcile.wire_adapters import make_site_services
from slurmwrap.slurm.commands import SlurmCommands
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


def submit(lab: Lab, key: str, *options: str, retry: bool = False, held: bool = False) -> str:
    """Submits a job of alice for seven days that waits, and what gsub reports of it. `held`: for its pre-run."""
    job = lab.submit(
        "--gres=gpu:1", "--mem=100", "--cpus-per-task=1", "--time=7-0", "--output=/dev/null", *options,
        user=ALICE, script=SLEEP,
    )  # fmt: skip
    report = Submission(
        cluster=lab.cluster, job_id=int(job), uid=pwd.getpwnam(ALICE).pw_uid, user=ALICE, at=time.time(),
        profile_key=key, time=TimeRequest(), retry=retry,
        changes=({"option": "begin", "old": None, "new": "now+600"},) if held else (),
    )  # fmt: skip
    report_submissions(lab, [report], ALICE)
    return job


def requeue(lab: Lab, job: str) -> None:
    """Requeues a running job as slurmwrap does it: held, and with a start in three seconds when it is released."""
    lab.wait_job(job, ("RUNNING",))
    for words in (["requeuehold", job], ["update", f"JobId={job}", "StartTime=now+3"]):
        if words[0] == "update":
            lab.wait_job(job, ("PENDING",))
        done = lab.run(["scontrol", *words])
        assert done.returncode == 0, done.stderr


def release(lab: Lab, job: str) -> None:
    done = lab.run(["scontrol", "release", job])
    assert done.returncode == 0, done.stderr


def find_job(lab: Lab, job: str) -> JobRecord:
    found = SlurmCommands(lab.env, timeout_s=60).job(job)
    assert found is not None
    return found


def occupy(lab: Lab) -> str:
    """Starts a job of bob that has all GPUs of the lab."""
    return lab.occupy(*FULL, "--nodes=8", user=BOB)


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


def test_off_restores_limits_releases_jobs_and_lets_gsub_pass_until_on(quiet_lab: Lab, key: str) -> None:
    lab = quiet_lab
    occupy(lab)
    job, held = submit(lab, key), submit(lab, key, "--begin=now+600", held=True)
    own = submit(lab, key, "--begin=now+600")
    service = start_reconciler(lab)
    try:
        wait_limit(lab, job, {"PENDING": LOWER})
        assert lab.slurmwrap("off", user=ALICE).returncode != 0
        done = lab.slurmwrap("off", "--note=upgrade", user=lab.slurm_user)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the reconciler has put back what it had changed")
        assert limits(lab, job) == {"PENDING": OWN}
        wait_until(lambda: show_begin(lab, held) <= time.time(), "the job does not wait for its pre-run")
        assert show_begin(lab, own) > time.time(), "its user wants it to begin later"
        script = "#!/bin/bash\n#SBATCH --gres=gpu:1\npython train.py\n"
        passed = lab.run(["gsub", "--explain", "--hold", "--output=/dev/null"], ALICE, stdin=script)
        assert f"switched off at this site ({lab.slurm_user}: upgrade)" in passed.stderr
        assert passed.stdout.startswith("Submitted batch job")
        assert lab.slurmwrap("on", user=lab.slurm_user).returncode == 0
        wait_limit(lab, submit(lab, key), {"PENDING": LOWER})
    finally:
        lab.slurmwrap("on", user=lab.slurm_user)
        stop(service)


def show_begin(lab: Lab, job: str) -> float:
    """The time from which Slurm may start a job, Unix seconds."""
    return find_job(lab, job).eligible_time or 0.0


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


def test_a_job_that_resumes_starts_in_a_gap_and_gets_its_limit_back_when_the_service_stops(
    quiet_lab: Lab, key: str
) -> None:
    lab = quiet_lab
    job = submit(lab, key, retry=True)
    requeue(lab, job)
    waiting = find_job(lab, job)
    with Database.open(Path(site(lab)["state_dir"]) / "site.db") as store:
        first = replace(record_of(waiting, lab.cluster), restarts=0, state="TIMEOUT", saved_after_s=600.0)
        key_of_first = replace(first.attempt, submit_time=waiting.submit_time - 5)
        store.save_attempt(replace(first, attempt=key_of_first, reconciled=True))
    # All nodes are reserved for a job that starts in an hour. Slurm starts nothing that may take longer.
    lab.occupy(*FULL[:3], "--time=60", "--nodelist=n0", user=BOB)
    lab.submit(*FULL[:3], "--time=60", "--nodes=8", user=BOB, script=SLEEP)
    release(lab, job)
    service = start_reconciler(lab)
    try:
        wait_limit(lab, job, {"RUNNING": LOWER})
        # Half an hour is the least; Slurm 22.05.8 gives no more (measured).
        assert 1800 <= (find_job(lab, job).time_limit_s or 0) <= 3600
        assert ("act", "TimeMin") in actions(lab, job)
    finally:
        stop(service)
    assert limits(lab, job) == {"RUNNING": OWN}


@pytest.mark.parametrize("extend_s", [0, 3600])
def test_a_running_job_that_resumes_ends_after_its_last_checkpoint_or_is_extended(
    quiet_lab: Lab, key: str, extend_s: int
) -> None:
    """Slurm's part is real; the reconciler's clock says how long the job has run."""
    lab, output = quiet_lab, f"{pwd.getpwnam(ALICE).pw_dir}/{key}.out"
    job = submit(lab, key, "--time=60", f"--output={output}", retry=True)
    requeue(lab, job)
    release(lab, job)
    lab.wait_job(job, ("RUNNING",))
    lab.reconcile_once()
    start = find_job(lab, job).start_time or 0
    # It makes a step per second, and saves every ten minutes.
    rows, clock = ["Resuming from checkpoint-5000"], FakeClock()
    with Database.open(Path(site(lab)["state_dir"]) / "site.db") as store:
        config = replace(load(lab.env), rules={"limit": "act"}, limit=Limit(extend_s=extend_s))
        slurm = SlurmCommands(lab.env, timeout_s=60)
        services = replace(make_site_services(config, slurm, store, lambda line: None), clock=clock)
        book = ReconcilerState(cluster=lab.cluster)
        for minute in (10, 20, 32, 40, 50, 52):
            clock.time = float(start + 60 * minute)
            rows += [f"Saved checkpoint at step {5000 + 60 * minute}"] * (minute % 10 == 0)
            rows.append(f"step {5000 + 60 * minute}/1000000 loss 1.5")
            lab.run(["tee", output], ALICE, stdin="\n".join(rows) + "\n")
            words = SlurmJobs(ask=slurm.jobs)
            limit_running(
                ReconcilePass(services=services, book=book, words=words, summary=PassSummary(), now=clock.now())
            )
    limit_s = find_job(lab, job).time_limit_s or 0
    if extend_s:
        assert 3600 < limit_s <= 3600 + extend_s, "an extension by root"
    else:
        assert 50 * 60 < limit_s < 55 * 60, "as its owner, right after the checkpoint at 50 minutes"
    assert actions(lab, job) == [("act", "TimeLimit")]
    saved = site_rows(lab, "SELECT json_extract(more, '$.saved_after_s') AS s FROM attempts WHERE job_id = ?", int(job))
    assert 600 <= max(float(str(row["s"] or 0)) for row in saved) <= 720


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
