"""Fixtures that tests of several rooms share: a directory other users may enter, and a munged of our own."""

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

# The same examples every time, so that a run says something about the change and not about luck. `make fuzz` looks
# for new ones.
settings.register_profile("repeatable", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that take seconds come first: small ones then fill the workers until all are done together.

    It needs --no-loadscope-reorder; xdist would begin with the files of most tests, which are the quickest here.
    """
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("lab", "torch", "early")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory like tmp_path that other users can enter: pytest's own are closed to them."""
    path = Path(tempfile.mkdtemp(prefix="slurmwrap-test-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def munge_socket() -> Iterator[str]:
    """The socket of a real munged with its own key, for the whole session."""
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
