"""A real Slurm for the tests marked `lab`: fixtures `lab` (slurmctld as root), `lab_as_slurm` (as user slurm).

tests/conftest.py imports them for all folders: a session fixture is created once per module that defines it.

Both skip, with the reason, if a lab is impossible: not root, Slurm's packages missing, or a Python that ordinary
users cannot execute. They leave nothing behind, and first remove what an earlier killed session left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from realslurm import (
    MORE_USERS,
    SCRATCH,
    USERS,
    WORKER,
    Lab,
    exists,
    make_user,
    remove_user,
    run_as,
    start_lab,
    started,
)

from slurmwrap.errors import LabError
from slurmwrap.lab import machine
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_state import down
from slurmwrap.sbatch.option_table import Release

_LOCK = Path(f"/run/slurmwrap-test{WORKER}.lock")
_LEFTOVERS_LOCK = Path("/run/slurmwrap-test-leftovers.lock")


@pytest.fixture(scope="session")
def lab_scratch(lab_users: tuple[str, str]) -> Iterator[Path]:
    """A directory that every user can enter; every lab below it is stopped at the end."""
    del lab_users
    scratch = SCRATCH / f"slurmwrap-test-{os.getpid()}"
    scratch.mkdir()
    scratch.chmod(0o755)
    yield scratch
    _remove_scratch(scratch)


@pytest.fixture(scope="session")
def lab_users() -> Iterator[tuple[str, str]]:
    """Two ordinary accounts with homes. Concurrent sessions share them; the last session removes them."""
    if reason := _why_no_lab():
        pytest.skip(reason)
    with _only_or_shared() as lock:
        if lock.alone:
            _remove_leftovers()
        for user in USERS:
            make_user(user)
        lock.share()
        if reason := _why_users_cannot_run():
            pytest.skip(reason)
        yield USERS
        if lock.alone_now():
            _remove_leftovers()
            _LOCK.unlink()


@pytest.fixture(scope="session")
def lab(lab_scratch: Path, request: pytest.FixtureRequest) -> Lab:
    """A lab of eight nodes with eight GPUs each, slurmctld as root, no running reconciler (call reconcile_once).

    Each test file starts without jobs and reservations and with all nodes idle (`_FreshForEachFile`).
    SLURMWRAP_TEST_SLURM_USER=slurm runs slurmctld as that user; all lab tests can be run that way.
    """
    user = os.environ.get("SLURMWRAP_TEST_SLURM_USER", "root")
    running = start_lab(lab_scratch / "lab", "--slurm-user", user, slurm_user=user)
    request.config.pluginmanager.register(_FreshForEachFile(running))
    return running


@pytest.fixture(scope="module")
def lab_without_hooks(lab: Lab) -> Iterator[None]:
    """The session's lab with a Prolog and Epilogs that do nothing, for test files that need no hooks.

    Each hook starts a Python on each node of each job.
    """
    with lab.without_hooks():
        yield


class _FreshForEachFile:
    """Resets the session's lab after the last test of a file that used it, after that test's own fixtures."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.used = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        self.used |= "lab" in getattr(item, "fixturenames", ())
        if self.used and nextitem is not None and nextitem.path != item.path:
            self.used = False
            self.lab.reset()


@pytest.fixture(scope="module")
def lab_as_slurm(lab_scratch: Path) -> Iterator[Lab]:
    """A lab with slurmctld, controller hooks and reconciler as user `slurm`."""
    if not exists("slurm"):
        pytest.skip("there is no user 'slurm' on this machine")
    with started(lab_scratch / "lab-as-slurm", "--slurm-user", "slurm", slurm_user="slurm") as running:
        yield running


@pytest.fixture(scope="session")
def release(lab: Lab) -> Release:
    """The release of the installed sbatch."""
    major, minor = map(int, re.findall(r"\d+", lab.run(["sbatch", "--version"]).stdout)[:2])
    return major, minor


@dataclass(slots=True)
class _Lock:
    """The lock of test sessions on the two accounts. `alone`: no other session held it at the start."""

    handle: int
    alone: bool

    def share(self) -> None:
        fcntl.flock(self.handle, fcntl.LOCK_SH)

    def alone_now(self) -> bool:
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def _only_or_shared() -> Iterator[_Lock]:
    lock = _Lock(-1, False)
    while True:
        lock.handle = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        lock.alone = lock.alone_now()
        if not lock.alone:
            lock.share()
        if os.fstat(lock.handle).st_nlink:
            break
        os.close(lock.handle)  # another session removed the file in the meantime
    try:
        yield lock
    finally:
        os.close(lock.handle)


def _why_no_lab() -> str:
    if os.geteuid() != 0:
        return "a lab for several users needs root"
    missing = machine.missing_programs()
    return (
        f"not installed: {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)" if missing else ""
    )


def _why_users_cannot_run() -> str:
    done = run_as(USERS[0], [sys.executable, "-c", "import slurmwrap"])
    if done.returncode == 126:
        return f"ordinary users cannot execute {sys.executable}: open the directories above it (chmod o+x)"
    return f"ordinary users cannot import slurmwrap with {sys.executable}: {done.stderr}" if done.returncode else ""


def _remove_leftovers() -> None:
    """Remove labs, directories and accounts of sessions that no longer run.

    Each worker has accounts of its own, but the directories are everybody's: one worker at a time removes them.
    """
    with _LEFTOVERS_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for scratch in SCRATCH.glob("slurmwrap-test-*"):
            pid = scratch.name.rpartition("-")[2]
            if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                _remove_scratch(scratch)
    for user in (*USERS, *MORE_USERS):
        remove_user(user)


def _remove_scratch(scratch: Path) -> None:
    """Remove a session's directory, which its own session may just have removed."""
    for directory in scratch.glob("*"):
        with contextlib.suppress(LabError):
            down(LabDirectories(directory))
    shutil.rmtree(scratch, ignore_errors=True)
