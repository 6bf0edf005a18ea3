"""The queue order on a real Slurm: what Slurm does with SiteFactor and Nice, and what the rule `order` makes of it.

The facts part is the table in docs/scheduling.md, "Queue order"; it checks the installed release.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from realslurm import USERS, Lab, command_environment, exists, restart_controller, started
from site_records import report_submissions, site, site_rows
from waiting import allow, wait_for, wait_until

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.run_time import RunTimeQuery, RunTimeRecord
from slurmwrap.store.database import Database

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
SLEEP = "#!/bin/bash\nsleep 86400\n"
SITE, NICE = 500, -40
SERVICE_OUTPUT = "service.out"


@pytest.fixture(scope="module", params=["basic", "multifactor"])
def plain_lab(lab_scratch: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Lab, str]]:
    """A lab without hooks with each priority plugin; slurmctld runs as `slurm` if that user exists."""
    user = "slurm" if exists("slurm") else "root"
    options = ("--nodes=2", "--no-hooks", "--slurm-user", user, "--priority", request.param)
    with started(lab_scratch / f"order-{request.param}", *options, slurm_user=user) as running:
        yield running, request.param


def submit(lab: Lab, *options: str, user: str = ALICE, script: str = SLEEP) -> str:
    return lab.submit("--output=/dev/null", "--gres=gpu:8", *options, user=user, script=script)


def update(lab: Lab, job: str, *values: str, user: str | None = None) -> str:
    """Updates a job and returns what scontrol printed."""
    done = lab.run(["scontrol", "update", f"JobId={job}", *values], user)
    return (done.stdout + done.stderr).strip()


def control(lab: Lab, verb: str, job: str, user: str | None = None) -> None:
    done = lab.run(["scontrol", verb, job], user)
    assert done.returncode == 0, done.stderr


def read_row(lab: Lab, job: str) -> tuple[int, int]:
    """Priority and Nice of the pending part of a job."""
    shown = lab.run(["squeue", "-h", "-O", "PriorityLong:20,Nice:20", "-t", "PD", "-j", job]).stdout.splitlines()
    priority, nice = shown[0].split()
    return int(priority), int(nice)


def read_site_factor(lab: Lab, job: str) -> int | None:
    """SiteFactor, which only sprio shows, and only under priority/multifactor; None while it does not list the job."""
    shown = lab.run(["sprio", "-h", "-o", "%i %S", "-j", job]).stdout.split()
    return int(shown[1]) if shown[:1] == [job] else None


def set_partition(lab: Lab, state: str) -> None:
    """With the partition DOWN, jobs are eligible and wait."""
    assert lab.run(["scontrol", "update", "PartitionName=gpu", f"State={state}"]).returncode == 0


@pytest.fixture
def down_lab(plain_lab: tuple[Lab, str]) -> Iterator[tuple[Lab, str]]:
    lab, plugin = plain_lab
    set_partition(lab, "DOWN")
    yield lab, plugin
    lab.reset()


def test_who_may_set_site_factor_and_nice_and_what_they_do(down_lab: tuple[Lab, str]) -> None:
    lab, plugin = down_lab
    administrators = [None, *([lab.slurm_user] if lab.slurm_user != "root" else [])]
    job = submit(lab, "--nice=7")
    assert "denied" in update(lab, job, "SiteFactor=100", user=ALICE)
    assert "denied" in update(lab, job, "Nice=-1", user=ALICE)
    assert read_row(lab, job)[1] == 7
    assert update(lab, job, "Nice=8", user=ALICE) == ""
    for administrator in administrators:
        # A sum below 1 counts as 1 (multifactor), so the sum must be larger before a difference is visible.
        assert update(lab, job, "SiteFactor=1000", user=administrator) == ""
        before, nice = read_row(lab, job)
        assert nice == 8
        assert update(lab, job, "Nice=-40", user=administrator) == ""
        after, nice = read_row(lab, job)
        assert (after - before, nice) == (48, -40), "one for one, at once"
        assert update(lab, job, "SiteFactor=1500", user=administrator) == ""
        assert read_row(lab, job)[0] - after == (500 if plugin == "multifactor" else 0)
        assert update(lab, job, "SiteFactor=0", "Nice=8", user=administrator) == ""


def test_nice_releases_a_held_job_under_priority_basic(down_lab: tuple[Lab, str]) -> None:
    lab, plugin = down_lab
    job = submit(lab, "--hold")
    assert read_row(lab, job)[0] == 0
    update(lab, job, "SiteFactor=100")
    assert read_row(lab, job)[0] == 0
    update(lab, job, "Nice=5")
    assert (read_row(lab, job)[0] > 0) == (plugin == "basic")


EVENTS = (
    *("hold, release by owner", "hold, release by root", "release of a job that is not held", "reconfigure"),
    *("restart", "requeue", "requeuehold, release", "an array's task is split", "a task of an array is requeued"),
)
RESETS_NICE = {"release of a job that is not held"}


# A fact about Slurm's release, not about slurmwrap.
@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_what_survives(down_lab: tuple[Lab, str], event: str) -> None:
    lab, plugin = down_lab
    nice, site = _measure(lab, event)
    print(f"{plugin}: {event}: Nice {nice}, SiteFactor {site}")
    assert nice == (0 if event in RESETS_NICE else NICE)
    if plugin == "multifactor":
        assert site == SITE


def _measure(lab: Lab, event: str) -> tuple[int, int | None]:
    """Set SiteFactor and Nice of a job, let something happen to it, and return Nice and SiteFactor."""
    job = submit(lab, "--requeue", *(("--array=1-3",) if "array" in event else ()))
    assert update(lab, job, f"SiteFactor={SITE}", f"Nice={NICE}") == ""
    if event.startswith("hold"):
        user = ALICE if "owner" in event else None
        control(lab, "hold", job, user)
        control(lab, "release", job, user)
    elif event.startswith("release"):
        control(lab, "release", job)
    elif event in ("reconfigure", "restart"):
        # The state of a partition is not kept, that of a node is.
        assert lab.run(["scontrol", "update", "NodeName=n[0-1]", "State=DRAIN", "Reason=test"]).returncode == 0
        if event == "restart":
            restart_controller(lab)
        else:
            lab.run(["scontrol", "reconfigure"])
        wait_until(lambda: "UP" in lab.run(["scontrol", "ping"]).stdout, "slurmctld answers")
    elif "split" in event:
        update(lab, f"{job}_2", "Comment=x")
        job = find_raw_id(lab, f"{job}_2")
    else:
        task = f"{job}_1" if "array" in event else job
        set_partition(lab, "UP")
        lab.wait_job(task, ("RUNNING",))
        set_partition(lab, "DOWN")
        control(lab, "requeuehold" if "hold" in event else "requeue", task)
        lab.wait_job(task, ("PENDING",))
        job = find_raw_id(lab, task)
        if "hold" in event:
            wait_for(lambda: lab.run(["scontrol", "release", task]).returncode, lambda code: code == 0, timeout=60)
        update(lab, task, "StartTime=now")
    site = (
        wait_for(lambda: read_site_factor(lab, job), lambda found: found is not None, timeout=15)
        if _has_sprio(lab)
        else None
    )
    return read_row(lab, job)[1], site


def _has_sprio(lab: Lab) -> bool:
    return "multifactor" in lab.run(["scontrol", "show", "config"]).stdout


def find_raw_id(lab: Lab, task: str) -> str:
    """The raw job id of an array task or job."""
    return lab.run(["squeue", "-h", "-t", "all", "-O", "JobID:20", "-j", task]).stdout.split()[0]


# The rule.

# Profile key -> run time and number of runs of alice. With one GPU, the classes end at 60 to 3,000 GPU-seconds.
RUNS = {"short": (30.0, 2), "a": (60.0, 40), "medium": (300.0, 40), "b": (3000.0, 40), "long": (90_000.0, 2)}
PASSED = "SELECT json_extract(more, '$.passed') AS passed FROM attempts WHERE job_id = ?"
TERMS = {"basic": ("Nice", 1000), "multifactor": ("SiteFactor", 100)}


@pytest.fixture(scope="module", params=["basic", "multifactor"])
def ordered_lab(lab_scratch: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Lab, str]]:
    """A lab of one GPU with the rule `order` and a history of runs."""
    options = ("--nodes=1", "--gpus=1", "--switches=1", "--no-hooks", "--priority", request.param, "--act=order")
    with started(lab_scratch / f"rule-{request.param}", *options) as running:
        running.reconcile_once()
        teach(running)
        yield running, request.param


def teach(lab: Lab, user: str = ALICE, path: Path | None = None) -> None:
    """Stores runs of the user in the site's database, or in another one."""
    uid, now = pwd.getpwnam(user).pw_uid, int(time.time())
    with Database.open(path or Path(site(lab)["state_dir"]) / "site.db") as store:
        for place, (key, (run_s, count)) in enumerate(RUNS.items()):
            for number in range(count):
                at = now - 1000 + number
                store.save_run_time(
                    RunTimeRecord(
                        attempt=RunKey(cluster=lab.cluster, job_id=90_000 + 100 * place + number, submit_time=at - 10),
                        uid=uid,
                        end_time=at,
                        job=RunTimeQuery(user=str(uid), key=key, gpus=1, partition="gpu"),
                        sample=RunTimeSample(run_s=run_s),
                    )
                )


def gsub(lab: Lab, key: str, *options: str, user: str = ALICE, environ: dict[str, str] | None = None) -> str:
    """Submits a job with gsub under a profile key and returns its id."""
    argv = ["gsub", "--prerun=off", f"--resource-profile={key}", "--gres=gpu:1", "--output=/dev/null", *options]
    home = Path(pwd.getpwnam(user).pw_dir)
    script = home / "order.sbatch"
    lab.run(["tee", script], user, stdin=SLEEP)
    done = lab.run([*argv, str(script)], user, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"Submitted batch job (\d+)", done.stdout)[0]


def occupy(lab: Lab) -> str:
    job = lab.submit("--gres=gpu:1", "--output=/dev/null", user=BOB, script=SLEEP)
    lab.wait_job(job, ("RUNNING",))
    return job


def reconcile(lab: Lab, **settings: str) -> None:
    """One pass of the site's reconciler. A program that a killed one had started may hold its lock for a moment."""
    environ = {f"SLURMWRAP_{name.upper()}": value for name, value in settings.items()}
    done = wait_for(
        lambda: lab.slurmwrap("reconcile", "--once", env=environ),
        lambda found: "another reconciler is already running" not in found.stderr,
        timeout=30,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_term(lab: Lab, term: str, job: str) -> int | None:
    return read_row(lab, job)[1] if term == "Nice" else read_site_factor(lab, job)


def list_terms(lab: Lab, term: str, jobs: Sequence[str]) -> list[int | None]:
    """The term of each job, when Slurm shows it for all of them."""
    return wait_for(lambda: [read_term(lab, term, job) for job in jobs], lambda found: None not in found, timeout=20)


def reconcile_until(lab: Lab, term: str, expected: dict[str, int], **settings: str) -> None:
    """Reconciles until these jobs have these terms. sprio shows a job some time after it was submitted or changed."""

    def look() -> list[int | None]:
        reconcile(lab, **settings)
        return list_terms(lab, term, list(expected))

    assert wait_for(look, lambda found: found == [*expected.values()], timeout=20) == [*expected.values()]


def test_short_jobs_of_gsub_start_first_and_the_order_is_undone(ordered_lab: tuple[Lab, str]) -> None:
    lab, plugin = ordered_lab
    term, band = TERMS[plugin]
    sign = -1 if term == "Nice" else 1
    lab.reset()
    blocker = occupy(lab)
    long, other, short = gsub(lab, "long"), submit_plain(lab), gsub(lab, "short", "--nice=5")
    own = 5 if term == "Nice" else 0
    reconcile_until(lab, term, {long: 0, other: 0, short: own + sign * band})
    page = lab.slurmwrap("why", short, user=ALICE)
    assert re.search(r"Queue: in class 1 of \d+: usually runs 30 s", page.stdout), page.stdout + page.stderr
    # Switched off, and on again.
    reconcile_until(lab, term, {long: 0, other: 0, short: own}, rules_order="advise")
    reconcile_until(lab, term, {short: own + sign * band})
    # `release` resets Nice, also the user's own.
    control(lab, "release", short)
    reconcile_until(lab, term, {short: sign * band})
    lab.run(["scancel", blocker])
    lab.wait_job(short, ("RUNNING",))
    assert lab.states(other) == lab.states(long) == ["PENDING"]
    reconcile(lab)
    assert [row["passed"] for row in site_rows(lab, PASSED, int(short))] == [1]
    # Requeued, it gets its class again; Nice and SiteFactor survive, so nothing has to be changed.
    control(lab, "requeue", short)
    lab.wait_job(short, ("PENDING",))
    reconcile(lab)
    assert list_terms(lab, term, (other,)) == [0]
    changed = "SELECT DISTINCT job_id FROM actions WHERE rule = 'order' AND mode = 'act'"
    assert int(other) not in {row["job_id"] for row in site_rows(lab, changed)}


def submit_plain(lab: Lab) -> str:
    return lab.submit("--gres=gpu:1", "--output=/dev/null", user=BOB, script=SLEEP)


def test_a_job_held_by_its_user_stays_held_and_an_array_is_changed_as_a_whole(ordered_lab: tuple[Lab, str]) -> None:
    lab, plugin = ordered_lab
    term, band = TERMS[plugin]
    added = -band if term == "Nice" else band
    lab.reset()
    occupy(lab)
    held, array = gsub(lab, "short"), gsub(lab, "short", "--array=1-3")
    control(lab, "hold", held, ALICE)
    reconcile_until(lab, term, {array: added})
    assert read_row(lab, held) == (0, 0)
    control(lab, "release", held, ALICE)
    reconcile_until(lab, term, {held: added})


def test_the_watchdog_undoes_the_order_of_a_reconciler_that_is_gone(ordered_lab: tuple[Lab, str]) -> None:
    lab, plugin = ordered_lab
    term, band = TERMS[plugin]
    lab.reset()
    occupy(lab)
    short = gsub(lab, "short")
    reconcile_until(lab, term, {short: -band if term == "Nice" else band})
    heartbeat = Path(site(lab)["state_dir"]) / "heartbeat"
    heartbeat.touch()
    done = lab.slurmwrap("hooks", "watchdog")
    assert list_terms(lab, term, (short,)) != [0], done.stdout
    os.utime(heartbeat, (time.time() - 3600,) * 2)
    done = lab.slurmwrap("hooks", "watchdog")
    assert "1 pending jobs have their own priority again" in done.stdout, done.stdout + done.stderr
    assert list_terms(lab, term, (short,)) == [0]


OWN = {"SLURMWRAP_SITE_PUBLISHED": "", "SLURMWRAP_SITE_STATE_DIR": "", "SLURMWRAP_SITE_SPOOL": ""}


def test_a_user_without_a_site_orders_their_own_jobs_until_their_reconciler_ends(ordered_lab: tuple[Lab, str]) -> None:
    lab, _ = ordered_lab
    lab.reset()
    occupy(lab)
    state = Path(pwd.getpwnam(ALICE).pw_dir) / ".local/state/slurmwrap"
    environ = {**OWN, "SLURMWRAP_RULES_ORDER": "act", "SLURMWRAP_ORDER_BAND": "500"}
    long = gsub(lab, "long", "--nice=3", environ=environ)
    short, other = gsub(lab, "short", environ=environ), submit_plain(lab)
    lab.slurmwrap("reconcile", user=ALICE, env=environ)
    teach(lab, path=state / "user.db")
    lab.slurmwrap("reconcile", user=ALICE, env=environ)  # a single pass changes nothing, since no process would undo it
    assert [read_row(lab, job)[1] for job in (long, short, other)] == [3, 0, 0]
    account = pwd.getpwnam(ALICE)
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll=1"]
    process = subprocess.Popen(
        argv, env={**command_environment(ALICE), **lab.env, **environ}, cwd=account.pw_dir, user=account.pw_uid,
        group=account.pw_gid, extra_groups=[], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_until(lambda: read_row(lab, long)[1] == 503, "the longer job gets a higher Nice")
        assert [read_row(lab, job)[1] for job in (short, other)] == [0, 0]
    finally:
        process.terminate()
        process.wait(timeout=allow(60))
    assert [read_row(lab, job)[1] for job in (long, short, other)] == [3, 0, 0]


def test_a_service_that_ends_gives_priorities_back(ordered_lab: tuple[Lab, str]) -> None:
    lab, plugin = ordered_lab
    term, band = TERMS[plugin]
    lab.reset()
    occupy(lab)
    short = gsub(lab, "short")
    process = start_service(lab, {})
    try:
        # Where Slurm does not answer at once, the service waits longer and longer between two attempts.
        added = -band if term == "Nice" else band
        raised = wait_for(lambda: _count_with(lab, term, [short], added), bool, timeout=150)
        assert raised, (lab.dir / SERVICE_OUTPUT).read_text()
    finally:
        process.terminate()
        process.wait(timeout=allow(60))
    assert list_terms(lab, term, [short]) == [0]


def test_a_reconciler_that_is_killed_again_and_again_leaves_nothing_behind(ordered_lab: tuple[Lab, str]) -> None:
    lab, plugin = ordered_lab
    term, band = TERMS[plugin]
    added = -band if term == "Nice" else band
    lab.reset()
    occupy(lab)
    jobs = [lab.submit("--gres=gpu:1", "--nice=2", "--output=/dev/null", user=ALICE, script=SLEEP) for _ in range(10)]
    uid = pwd.getpwnam(ALICE).pw_uid
    common = {"cluster": lab.cluster, "uid": uid, "user": ALICE, "at": time.time(), "profile_key": "short"}
    report_submissions(lab, [Submission(job_id=int(job), **common) for job in jobs], ALICE)
    own = 2 if term == "Nice" else 0
    for mode, expected in (("act", own + added), ("advise", own)):
        settings = {"rules_order": mode, "placement_relax_updates_per_s": "50"}
        for share in (0.3, 0.6, 0.9):
            _kill_during_updates(lab, term, jobs, expected, share, settings)
        reconcile_until(lab, term, dict.fromkeys(jobs, expected), **settings)


def _kill_during_updates(
    lab: Lab, term: str, jobs: Sequence[str], expected: int, share: float, settings: dict[str, str]
) -> None:
    """Starts the service, and kills it when this share of the jobs has the expected term."""
    process = start_service(lab, settings)
    try:
        wait_until(lambda: _count_with(lab, term, jobs, expected) >= share * len(jobs), "some jobs are updated")
    finally:
        process.kill()
        process.wait()


def start_service(lab: Lab, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts the site's reconciler as a service."""
    environ = {f"SLURMWRAP_{name.upper()}": value for name, value in settings.items()}
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "reconcile", "--watch", "--poll=1"]
    with (lab.dir / SERVICE_OUTPUT).open("w") as output:
        return subprocess.Popen(
            argv, env={**command_environment(None), **lab.env, **environ}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output,
        )  # fmt: skip


def _count_with(lab: Lab, term: str, jobs: Sequence[str], value: int) -> int:
    columns = ["squeue", "-h", "-O", "JobID:20,Nice:20"] if term == "Nice" else ["sprio", "-h", "-o", "%i %S"]
    rows = [line.split() for line in lab.run(columns).stdout.splitlines()]
    return sum(row[0] in jobs and int(row[1]) == value for row in rows if len(row) == 2)
