"""Fixtures for tests in several folders: a directory that other users may enter, and a separate munged."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from labs import lab, lab_as_slurm, lab_scratch, lab_users, lab_without_hooks, release

__all__ = ["lab", "lab_as_slurm", "lab_scratch", "lab_users", "lab_without_hooks", "release"]

pytest_plugins = ["session_hooks"]

# The same examples in every run, so that a failure is caused by the change and not by chance. `make fuzz` tries
# new examples.
settings.register_profile("repeatable", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first; the fast tests then keep all workers busy until the end.

    This needs --no-loadscope-reorder: xdist would begin with the files that have most tests, which are fastest here.
    """
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("lab", "torch", "early")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory like tmp_path that other users can enter; pytest's own directories are private."""
    path = Path(tempfile.mkdtemp(prefix="slurmwrap-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def munge_socket() -> Iterator[str]:
    """The socket of a real munged with its own key; one per session."""
    program = shutil.which("munged", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("munged is not installed (Debian: apt-get install munge)")
    home = Path(tempfile.mkdtemp(prefix="slurmwrap-munge-", dir="/tmp"))
    home.chmod(0o755)
    (home / "key").write_bytes(os.urandom(64))
    (home / "key").chmod(0o600)
    options = {"key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed", "socket": "socket"}
    argv = [program, "--foreground", "--force", *(f"--{option}={home / name}" for option, name in options.items())]
    daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not (home / "socket").exists():
            assert daemon.poll() is None and time.monotonic() < deadline, f"munged did not start; see {home / 'log'}"
            time.sleep(0.02)
        yield str(home / "socket")
    finally:
        daemon.terminate()
        daemon.wait(10)
        shutil.rmtree(home)
