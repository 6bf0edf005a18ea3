"""The queue order on a real Slurm: what Slurm does with SiteFactor and Nice, and what the rule `order` makes of it.

The facts part is the table in docs/scheduling.md, "Queue order"; it checks the installed release.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, exists, restart_controller, started
from waiting import wait_for, wait_until

pytestmark = pytest.mark.lab
ALICE, BOB = USERS
SLEEP = "#!/bin/bash\nsleep 86400\n"
SITE, NICE = 500, -40


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
    elif event == "reconfigure":
        lab.run(["scontrol", "reconfigure"])
    elif event == "restart":
        restart_controller(lab)
        wait_until(lambda: "UP" in lab.run(["scontrol", "ping"]).stdout, "slurmctld answers")
        # The state of a partition is not kept.
        set_partition(lab, "DOWN")
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
