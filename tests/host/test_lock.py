"""The lock that allows only one reconciler per database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.host.lock import hold_exclusive_lock


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        hold_exclusive_lock(tmp_path / "x.lock", "another reconciler"),
        pytest.raises(StoreError, match=rf"^another reconciler is already running \(pid {os.getpid()}\)$"),
        hold_exclusive_lock(tmp_path / "x.lock", "another reconciler"),
    ):
        pass


def test_the_lock_is_released_after_use_and_after_a_crash(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_exclusive_lock(tmp_path / "a" / "x.lock", "it"):
        raise ZeroDivisionError
    pid = os.fork()
    if pid == 0:
        hold_exclusive_lock(tmp_path / "a" / "x.lock", "it").__enter__()
        os._exit(9)
    os.waitpid(pid, 0)
    with hold_exclusive_lock(tmp_path / "a" / "x.lock", "it"):
        assert (tmp_path / "a" / "x.lock").read_text() == f"{os.getpid()}\n"


def test_a_symbolic_link_as_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="symbolic link"), hold_exclusive_lock(tmp_path / "x.lock", "it"):
        pass
    assert not (tmp_path / "precious").exists()
