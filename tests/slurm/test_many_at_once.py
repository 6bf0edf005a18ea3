"""Many calls of four users at the same time with a restart of the controller; calls that are killed.

The jobs in Slurm afterwards are those that the calls reported: none is lost, submitted twice or waits for ever.
"""

from __future__ import annotations

import contextlib
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
from realslurm import MORE_USERS, USERS, Lab, command_environment, living, make_user, restart_controller, started
from waiting import SLOWNESS, allow, wait_for, wait_until

from slurmwrap.store.user_state_files import UserState

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(400))]
ALICE = USERS[0]
GRACE_S = 10
SCRIPT = "#!/bin/bash\n#SBATCH --mem=250 --time=5 --output=/dev/null\npython3 -c 'import sys; print(sys.argv)' $@\n"
SWEEP = ("--nodes=2", "--gres=gpu:4")  # all sweep jobs of a user wait for the pre-run of the first
PLANNED = ("--prerun=off", "--gres=gpu:2")
PASSED = ("--ntasks=1",)
JOB_ID_LINE = re.compile(r"Submitted batch job (\d+)\n")


@dataclass(frozen=True, slots=True)
class Job:
    """One job as squeue shows it."""

    id: int
    name: str
    user: str
    state: str


@dataclass(frozen=True, slots=True)
class Call:
    """One gsub process."""

    name: str
    user: str
    process: subprocess.Popen[str]

    def ended(self) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        stdout, stderr = self.process.communicate(timeout=allow(120))
        return self.process.returncode, stdout, stderr


@pytest.fixture(scope="module")
def lab(lab_scratch: Path) -> Iterator[Lab]:
    """A lab for this module: slurmctld 22.05 may count GPUs as used for ever if it was restarted while jobs ran."""
    with started(lab_scratch / "many", "--nodes", "4") as running:
        yield running


@pytest.fixture(scope="module")
def four_users(lab_users: tuple[str, str]) -> tuple[str, ...]:
    """Four ordinary accounts."""
    for user in MORE_USERS:
        make_user(user)
    return (*lab_users, *MORE_USERS)


def home_of(user: str) -> Path:
    return Path(pwd.getpwnam(user).pw_dir)


def make_folder(lab: Lab, user: str) -> Path:
    """A new directory of the user with the script."""
    path = home_of(user) / f"many{time.monotonic_ns()}"
    make = f"mkdir {path} && cat > {path}/train.sh"
    assert lab.run(["bash", "-c", make], user=user, stdin=SCRIPT).returncode == 0
    return path


def start_call(
    lab: Lab, user: str, place: Path, name: str, *words: str, script: str = "train.sh", tools: str = ""
) -> Call:
    """Starts gsub as `user`. `tools`: a directory that comes first in PATH."""
    account, environ = pwd.getpwnam(user), command_environment(user)
    path = f"{tools}:{environ['PATH']}" if tools else environ["PATH"]
    environ = {**environ, **lab.env, "PATH": path, "SLURMWRAP_PRERUN_GRACE_S": str(GRACE_S)}
    argv = ["gsub", f"--job-name={name}", *words, script, name]
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        cwd=place, env=environ, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
    )  # fmt: skip
    return Call(name, user, process)


def wait_for_jobs_to_end(lab: Lab, prefix: str) -> list[Job]:
    """Waits until no job whose name begins with `prefix` is pending or running, and returns these jobs."""

    def look() -> list[Job] | None:
        shown = lab.run(["squeue", "-h", "--states=all", "-o", "%i %j %u %T"])
        if shown.returncode:  # the controller is starting
            return None
        rows = [line.split() for line in shown.stdout.splitlines()]
        return [Job(int(row[0]), *row[1:]) for row in rows if row[1].startswith(prefix)]

    over = {"COMPLETED", "CANCELLED", "FAILED"}
    found = wait_for(look, lambda jobs: jobs is not None and {job.state for job in jobs} <= over, 120, pause=0.5)
    assert found is not None and {job.state for job in found} <= over, found
    return found


def read_recorded_jobs(lab: Lab, user: str) -> set[int]:
    """The ids of the jobs in the database of this user, after one pass of the reconciler."""
    done = lab.slurmwrap("reconcile", "--once", user=user)
    assert done.returncode == 0, done.stderr
    database = UserState(home_of(user) / ".local/state/slurmwrap").database
    connection = sqlite3.connect(f"file:{database}?immutable=1", uri=True)  # root must create no file in that directory
    with contextlib.closing(connection):
        return {row[0] for row in connection.execute("SELECT job_id FROM submissions")}


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_controller_restart_loses_or_doubles_no_job_of_four_users(
    lab: Lab, four_users: tuple[str, ...], times: int
) -> None:
    places = {user: make_folder(lab, user) for user in four_users}
    planned_calls = [(user, kind) for user in four_users for kind in (SWEEP, SWEEP, PLANNED, PASSED) * times]
    random.Random(7).shuffle(planned_calls)
    prefix = f"m{times}-"
    calls = [
        start_call(lab, user, places[user], f"{prefix}{at}", *kind) for at, (user, kind) in enumerate(planned_calls)
    ]
    # some calls have ended, some are running, most have not begun
    ended_before = len(calls) // 5
    wait_until(lambda: sum(one.process.poll() is not None for one in calls) >= ended_before, "the first calls end")
    restart_controller(lab)
    answers = {one.name: one.ended() for one in calls}

    job_ids = {name: int(found[1]) for name, (_, out, _) in answers.items() if (found := JOB_ID_LINE.fullmatch(out))}
    for name, (code, out, err) in answers.items():
        assert (code == 0) == (name in job_ids), (name, code, out, err)
        assert code == 0 or err, name  # a call without a job id has an error message
    assert len(job_ids) >= ended_before and len(set(job_ids.values())) == len(job_ids)

    found = wait_for_jobs_to_end(lab, prefix)
    assert {job.state for job in found} == {"COMPLETED"}, found
    real = [job for job in found if not job.name.endswith(".prerun")]
    trials = [job for job in found if job.name.endswith(".prerun")]
    assert {job.name: job.id for job in real} == job_ids
    assert len(real) == len(job_ids)
    assert {job.name: job.user for job in real} == {one.name: one.user for one in calls if one.name in job_ids}
    sweeps = {f"{prefix}{at}.prerun": user for at, (user, kind) in enumerate(planned_calls) if kind is SWEEP}
    assert {job.name: job.user for job in trials}.items() <= sweeps.items()
    assert max(Counter(job.name for job in trials).values(), default=0) <= 1

    planned = {f"{prefix}{at}" for at, (_, kind) in enumerate(planned_calls) if kind is not PASSED}
    plain = {name for name, (_, _, err) in answers.items() if "submitted unchanged" in err}
    for user in four_users[:2]:
        theirs = {
            job_ids[one.name] for one in calls if one.user == user and one.name in planned & job_ids.keys() - plain
        }
        assert read_recorded_jobs(lab, user) >= theirs


# The number of the sbatch call, and whether before or after it. The first submits the job, the second its pre-run.
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
def test_a_call_killed_while_it_submits_leaves_at_most_one_job_that_ends(
    lab: Lab, mode: str, number: signal.Signals
) -> None:
    place, calls, tools = make_folder(lab, ALICE), [], []
    for nth, when in MOMENTS:
        tools.append(place / f"{nth}-{when}")
        lab.run(["mkdir", tools[-1]], user=ALICE)
        path = interrupting(tools[-1], "sbatch", nth, when, number)
        calls.append(_start_call_of_own_script(lab, place, mode, f"k{mode}{number}-{nth}{when}", path))
    _assert_one_job_at_most(lab, calls, f"k{mode}{number}-", number)
    assert [len(calls_of(tool)) >= nth for tool, (nth, _) in zip(tools, MOMENTS, strict=True)] == [True] * len(MOMENTS)


@pytest.mark.parametrize(("mode", "number"), _modes_and_signals(()))
def test_a_call_killed_at_any_moment_leaves_at_most_one_job_that_ends(
    lab: Lab, mode: str, number: signal.Signals
) -> None:
    place, calls, dice = make_folder(lab, ALICE), [], random.Random(int(number))
    for at in range(6):
        calls.append(_start_call_of_own_script(lab, place, mode, f"r{mode}{number}-{at}"))
        time.sleep(dice.uniform(0.1, 0.6) * SLOWNESS)
        with contextlib.suppress(ProcessLookupError):
            calls[-1].process.send_signal(number)
    _assert_one_job_at_most(lab, calls, f"r{mode}{number}-", number)


def _start_call_of_own_script(lab: Lab, place: Path, mode: str, name: str, tools: str = "") -> Call:
    """Starts a call with a script that no other call has, so that it has its own pre-run."""
    lab.run(["tee", f"{place}/{name}.sh"], user=ALICE, stdin=SCRIPT + f"# {name}\n")
    return start_call(lab, ALICE, place, name, *SWEEP, f"--prerun={mode}", script=f"{name}.sh", tools=tools)


def _assert_one_job_at_most(lab: Lab, calls: list[Call], prefix: str, number: signal.Signals) -> None:
    answers = {one.name: one.ended() for one in calls}
    wait_until(lambda: not living(prefix, ALICE), "what they started ends: an sbatch outlives its gsub")
    found = wait_for_jobs_to_end(lab, prefix)
    assert {job.state for job in found} <= {"COMPLETED", "CANCELLED"}, found
    assert max(Counter(job.name for job in found).values(), default=0) <= 1
    for name, (code, out, err) in answers.items():
        early = code == 1 and not out and "Fatal Python error: init" in err  # Python had not started yet
        assert code in (0, -number) or early, (name, code, out, err)
        if match := JOB_ID_LINE.fullmatch(out):
            assert [job.id for job in found if job.name == name] == [int(match[1])]
