"""Fifty calls at once from four users, the controller restarted among them; calls that are killed at any moment.

What Slurm has afterwards is what was told: no job lost, none submitted twice, none that waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import MORE_USERS, USERS, Lab, command_environment, make_user, started
from waiting import wait_for

from slurmwrap.lab import machine, processes
from slurmwrap.lab.layout import Layout
from slurmwrap.store.userstate import UserState

pytestmark = [pytest.mark.lab, pytest.mark.timeout(400)]
ALICE = USERS[0]
GRACE_S = 25
SCRIPT = "#!/bin/bash\n#SBATCH --mem=250 --time=5 --output=/dev/null\npython3 -c 'import sys; print(sys.argv)' $@\n"
SWEEP = ("--nodes=2", "--gres=gpu:4")  # all of a user's wait for the pre-run of the first
PLANNED = ("--prerun=off", "--gres=gpu:2")
PASSED = ("--ntasks=1",)
TOLD = re.compile(r"Submitted batch job (\d+)\n")


@dataclass(frozen=True, slots=True)
class Job:
    """One job as squeue shows it."""

    id: int
    name: str
    user: str
    state: str


@dataclass(frozen=True, slots=True)
class Call:
    """One gsub that runs, or ran."""

    name: str
    user: str
    process: subprocess.Popen[str]

    def ended(self, timeout: float) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        stdout, stderr = self.process.communicate(timeout=timeout)
        return self.process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def own_lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab whose controller may be restarted: others would miss theirs."""
    with started(lab_scratch / "many") as running:
        yield running


@pytest.fixture(scope="module")
def four(lab_users: tuple[str, str]) -> tuple[str, ...]:
    """Four ordinary accounts."""
    for user in MORE_USERS:
        make_user(user)
    return (*lab_users, *MORE_USERS)


def home_of(user: str) -> Path:
    return Path(pwd.getpwnam(user).pw_dir)


def folder(lab: Lab, user: str) -> Path:
    """A fresh directory of the user's with his script."""
    path = home_of(user) / f"many{time.monotonic_ns()}"
    make = f"mkdir {path} && cat > {path}/train.sh"
    assert lab.run(["bash", "-c", make], user=user, stdin=SCRIPT).returncode == 0
    return path


def call(lab: Lab, user: str, place: Path, name: str, *words: str, script: str = "train.sh") -> Call:
    account = pwd.getpwnam(user)
    environ = {**command_environment(user), **lab.env, "SLURMWRAP_PRERUN_GRACE_S": str(GRACE_S)}
    argv = ["gsub", f"--job-name={name}", *words, script, name]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        cwd=place, env=environ, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
    )  # fmt: skip
    return Call(name, user, process)


def jobs(lab: Lab) -> list[Job]:
    """All that Slurm knows."""
    rows = lab.run(["squeue", "-h", "--states=all", "-o", "%i %j %u %T"]).stdout.splitlines()
    return [Job(int(row[0]), row[1], row[2], row[3]) for row in map(str.split, rows)]


def restart_controller(lab: Lab) -> None:
    """As systemctl restart does it: SIGTERM, then a new one on the saved state.

    After SIGKILL slurmctld 22.05.8 itself knows nothing of the jobs of its last seconds, and gives their ids again.
    """
    layout = Layout(lab.dir)
    pid = int((lab.dir / "slurmctld" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    gone = wait_for(lambda: processes.started_at(pid), lambda at: at == 0, 60, pause=0.05)
    assert gone == 0
    argv = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)]
    _, process = processes.start("slurmctld", argv, layout)
    process.returncode = 0  # it lives on, and ends with its lab


def settled(lab: Lab, timeout: float) -> list[Job]:
    """All jobs, when none waits or runs any more."""
    done = {"COMPLETED", "CANCELLED", "FAILED"}
    return wait_for(lambda: jobs(lab), lambda found: bool(found) and {j.state for j in found} <= done, timeout, 0.5)


def recorded(lab: Lab, user: str) -> set[int]:
    """Jobs that `slurmwrap history` of this user knows of."""
    done = lab.slurmwrap("reconcile", "--once", user=user)
    assert done.returncode == 0, done.stderr
    database = UserState(home_of(user) / ".local/state/slurmwrap").database
    connection = sqlite3.connect(f"file:{database}?immutable=1", uri=True)  # no file of root's beside it
    with contextlib.closing(connection):
        return {row[0] for row in connection.execute("SELECT job_id FROM submissions")}


def test_fifty_calls_of_four_users_while_the_controller_is_restarted(own_lab: Lab, four: tuple[str, ...]) -> None:
    lab, places = own_lab, {user: folder(own_lab, user) for user in four}
    kinds = [SWEEP] * 5 + [PLANNED] * 3 + [PASSED] * 4
    wanted = [(user, kind) for user in four for kind in kinds] + [(four[0], PASSED), (four[1], SWEEP)]
    random.Random(7).shuffle(wanted)
    calls = [call(lab, user, places[user], f"m{at}", *kind) for at, (user, kind) in enumerate(wanted)]
    # some are through, some are at work, most have not begun
    wait_for(lambda: sum(one.process.poll() is not None for one in calls), lambda ended: ended >= 8, 60, pause=0.02)
    restart_controller(lab)
    answers = {one.name: one.ended(120) for one in calls}

    told = {name: int(found[1]) for name, (_, out, _) in answers.items() if (found := TOLD.fullmatch(out))}
    for name, (code, out, err) in answers.items():
        assert (code == 0) == (name in told), (name, code, out, err)
        assert code == 0 or err, name  # who is told no id is told why
    assert len(told) >= 40 and len(set(told.values())) == len(told)

    found = settled(lab, 90)
    assert {job.state for job in found} == {"COMPLETED"}, found
    real = [job for job in found if not job.name.endswith(".prerun")]
    trials = [job for job in found if job.name.endswith(".prerun")]
    assert {job.name: job.id for job in real} == told
    assert len(real) == len(told)
    assert {job.name: job.user for job in real} == {one.name: one.user for one in calls if one.name in told}
    sweeps = {f"m{at}.prerun": user for at, (user, kind) in enumerate(wanted) if kind is SWEEP}
    assert {job.name: job.user for job in trials}.items() <= sweeps.items()
    assert max(Counter(job.name for job in trials).values(), default=0) <= 1

    planned = {f"m{at}" for at, (_, kind) in enumerate(wanted) if kind is not PASSED}
    plain = {name for name, (_, _, err) in answers.items() if "submitted unchanged" in err}
    for user in four:
        theirs = {told[one.name] for one in calls if one.user == user and one.name in planned & told.keys() - plain}
        assert recorded(lab, user) >= theirs


SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("mode", ["auto", "gate"])
@pytest.mark.parametrize("number", SIGNALS, ids=[one.name for one in SIGNALS])
def test_a_call_that_is_killed_makes_one_job_at_most_and_none_that_waits_for_ever(
    own_lab: Lab, mode: str, number: signal.Signals
) -> None:
    lab, dice = own_lab, random.Random(int(number))
    place = folder(lab, ALICE)
    calls = []
    for at in range(6):
        text = SCRIPT + f"# {mode} {number} {at}\n"  # each is a pre-run of its own
        lab.run(["bash", "-c", f"cat > {place}/{at}.sh"], user=ALICE, stdin=text)
        one = call(lab, ALICE, place, f"{mode}{number}-{at}", *SWEEP, f"--prerun={mode}", script=f"{at}.sh")
        time.sleep(dice.uniform(0.1, 0.6))
        with contextlib.suppress(ProcessLookupError):
            one.process.send_signal(number)
        calls.append(one)
    answers = {one.name: one.ended(60) for one in calls}
    mine = {name for one in answers for name in (one, f"{one}.prerun")}
    ended = ("COMPLETED", "CANCELLED")
    found = wait_for(
        lambda: [job for job in jobs(lab) if job.name in mine],
        lambda seen: {job.state for job in seen} <= set(ended),
        GRACE_S + 60,
        pause=0.5,
    )
    assert {job.state for job in found} <= set(ended), found
    assert max(Counter(job.name for job in found).values(), default=0) <= 1
    for name, (code, out, err) in answers.items():
        early = code == 1 and not out and "Fatal Python error: init" in err  # Python itself had not started yet
        assert code in (0, -number) or early, (name, code, out, err)
        if told := TOLD.fullmatch(out):
            assert [job.id for job in found if job.name == name] == [int(told[1])]
