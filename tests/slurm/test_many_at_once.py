"""Many calls at once from four users, the controller restarted among them; calls that are killed.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from interrupting import calls_of, interrupting
from realslurm import MORE_USERS, USERS, Lab, command_environment, living, make_user, started
from waiting import SLOWNESS, allow, wait_for, wait_until

from slurmwrap.lab import daemons, machine
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.store.user_state_files import UserState

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(400))]
ALICE = USERS[0]
GRACE_S = 10
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

    def ended(self) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        stdout, stderr = self.process.communicate(timeout=allow(120))
        return self.process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """One of its own: a slurmctld 22.05 that was restarted while jobs ran may believe for ever that GPUs are in use."""
    with started(lab_scratch / "many", "--nodes", "4") as running:
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


def call(lab: Lab, user: str, place: Path, name: str, *words: str, script: str = "train.sh", tools: str = "") -> Call:
    """gsub as `user`; `tools`: a directory before the others of PATH."""
    account, environ = pwd.getpwnam(user), command_environment(user)
    path = f"{tools}:{environ['PATH']}" if tools else environ["PATH"]
    environ = {**environ, **lab.env, "PATH": path, "SLURMWRAP_PRERUN_GRACE_S": str(GRACE_S)}
    argv = ["gsub", f"--job-name={name}", *words, script, name]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        cwd=place, env=environ, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
    )  # fmt: skip
    return Call(name, user, process)


def restart_controller(lab: Lab) -> None:
    """As systemctl restart does it: SIGTERM, then a new one on the saved state.

    After SIGKILL slurmctld 22.05.8 itself knows nothing of the jobs of its last seconds, and gives their ids again.
    """
    layout = LabDirectories(lab.dir)
    pid = int((lab.dir / "slurmctld" / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: daemons.started_at(pid) == 0, "slurmctld ends")
    argv = [machine.program("slurmctld"), "-D", "-f", str(layout.slurm_conf)]
    user = None if lab.slurm_user == "root" else lab.slurm_user
    _, process = daemons.start("slurmctld", argv, layout, user=user)
    process.returncode = 0  # it lives on, and ends with its lab


def settled(lab: Lab, prefix: str) -> list[Job]:
    """The jobs of that beginning of a name, when none of them waits or runs any more."""

    def look() -> list[Job] | None:
        shown = lab.run(["squeue", "-h", "--states=all", "-o", "%i %j %u %T"])
        if shown.returncode:  # the controller is on its way up
            return None
        rows = [line.split() for line in shown.stdout.splitlines()]
        return [Job(int(row[0]), *row[1:]) for row in rows if row[1].startswith(prefix)]

    over = {"COMPLETED", "CANCELLED", "FAILED"}
    found = wait_for(look, lambda jobs: jobs is not None and {job.state for job in jobs} <= over, 120, pause=0.5)
    assert found is not None and {job.state for job in found} <= over, found
    return found


def recorded(lab: Lab, user: str) -> set[int]:
    """Jobs that `slurmwrap history` of this user knows of."""
    done = lab.slurmwrap("reconcile", "--once", user=user)
    assert done.returncode == 0, done.stderr
    database = UserState(home_of(user) / ".local/state/slurmwrap").database
    connection = sqlite3.connect(f"file:{database}?immutable=1", uri=True)  # no file of root's beside it
    with contextlib.closing(connection):
        return {row[0] for row in connection.execute("SELECT job_id FROM submissions")}


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_calls_of_four_users_while_the_controller_is_restarted(lab: Lab, four: tuple[str, ...], times: int) -> None:
    places = {user: folder(lab, user) for user in four}
    wanted = [(user, kind) for user in four for kind in (SWEEP, SWEEP, PLANNED, PASSED) * times]
    random.Random(7).shuffle(wanted)
    prefix = f"m{times}-"
    calls = [call(lab, user, places[user], f"{prefix}{at}", *kind) for at, (user, kind) in enumerate(wanted)]
    # some are through, some are at work, most have not begun
    through = len(calls) // 5
    wait_until(lambda: sum(one.process.poll() is not None for one in calls) >= through, "the first calls end")
    restart_controller(lab)
    answers = {one.name: one.ended() for one in calls}

    told = {name: int(found[1]) for name, (_, out, _) in answers.items() if (found := TOLD.fullmatch(out))}
    for name, (code, out, err) in answers.items():
        assert (code == 0) == (name in told), (name, code, out, err)
        assert code == 0 or err, name  # who is told no id is told why
    assert len(told) >= through and len(set(told.values())) == len(told)

    found = settled(lab, prefix)
    assert {job.state for job in found} == {"COMPLETED"}, found
    real = [job for job in found if not job.name.endswith(".prerun")]
    trials = [job for job in found if job.name.endswith(".prerun")]
    assert {job.name: job.id for job in real} == told
    assert len(real) == len(told)
    assert {job.name: job.user for job in real} == {one.name: one.user for one in calls if one.name in told}
    sweeps = {f"{prefix}{at}.prerun": user for at, (user, kind) in enumerate(wanted) if kind is SWEEP}
    assert {job.name: job.user for job in trials}.items() <= sweeps.items()
    assert max(Counter(job.name for job in trials).values(), default=0) <= 1

    planned = {f"{prefix}{at}" for at, (_, kind) in enumerate(wanted) if kind is not PASSED}
    plain = {name for name, (_, _, err) in answers.items() if "submitted unchanged" in err}
    for user in four[:2]:
        theirs = {told[one.name] for one in calls if one.user == user and one.name in planned & told.keys() - plain}
        assert recorded(lab, user) >= theirs


# Which call of sbatch, and whether before it or after it. The first is the job's, the second its pre-run's.
MOMENTS = ((1, "before"), (1, "after"), (2, "before"), (2, "after"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
QUICK = (("auto", signal.SIGKILL),)


def _modes_and_signals(quick: Sequence[tuple[str, signal.Signals]]) -> list[object]:
    return [
        pytest.param(
            mode, number, id=f"{mode}-{number.name}", marks=[] if (mode, number) in quick else pytest.mark.slow
        )
        for mode in ("auto", "gate")
        for number in SIGNALS
    ]


@pytest.mark.parametrize(("mode", "number"), _modes_and_signals(QUICK))
def test_a_call_that_is_killed_as_it_submits_makes_one_job_at_most_and_none_that_waits_for_ever(
    lab: Lab, mode: str, number: signal.Signals
) -> None:
    place, begun, tools = folder(lab, ALICE), [], []
    for nth, when in MOMENTS:
        tools.append(place / f"{nth}-{when}")
        lab.run(["mkdir", tools[-1]], user=ALICE)
        path = interrupting(tools[-1], "sbatch", nth, when, number)
        begun.append(_call_of_its_own(lab, place, mode, f"k{mode}{number}-{nth}{when}", path))
    _made_one_job_at_most(lab, begun, f"k{mode}{number}-", number)
    assert [len(calls_of(tool)) >= nth for tool, (nth, _) in zip(tools, MOMENTS, strict=True)] == [True] * len(MOMENTS)


@pytest.mark.parametrize(("mode", "number"), _modes_and_signals(()))
def test_a_call_that_is_killed_at_any_moment_makes_one_job_at_most_and_none_that_waits_for_ever(
    lab: Lab, mode: str, number: signal.Signals
) -> None:
    place, begun, dice = folder(lab, ALICE), [], random.Random(int(number))
    for at in range(6):
        begun.append(_call_of_its_own(lab, place, mode, f"r{mode}{number}-{at}"))
        time.sleep(dice.uniform(0.1, 0.6) * SLOWNESS)
        with contextlib.suppress(ProcessLookupError):
            begun[-1].process.send_signal(number)
    _made_one_job_at_most(lab, begun, f"r{mode}{number}-", number)


def _call_of_its_own(lab: Lab, place: Path, mode: str, name: str, tools: str = "") -> Call:
    """Of a script that no other call has: each has a pre-run."""
    lab.run(["tee", f"{place}/{name}.sh"], user=ALICE, stdin=SCRIPT + f"# {name}\n")
    return call(lab, ALICE, place, name, *SWEEP, f"--prerun={mode}", script=f"{name}.sh", tools=tools)


def _made_one_job_at_most(lab: Lab, begun: list[Call], prefix: str, number: signal.Signals) -> None:
    answers = {one.name: one.ended() for one in begun}
    wait_until(lambda: not living(prefix, ALICE), "what they started ends: an sbatch outlives its gsub")
    found = settled(lab, prefix)
    assert {job.state for job in found} <= {"COMPLETED", "CANCELLED"}, found
    assert max(Counter(job.name for job in found).values(), default=0) <= 1
    for name, (code, out, err) in answers.items():
        early = code == 1 and not out and "Fatal Python error: init" in err  # Python itself had not started yet
        assert code in (0, -number) or early, (name, code, out, err)
        if told := TOLD.fullmatch(out):
            assert [job.id for job in found if job.name == name] == [int(told[1])]
