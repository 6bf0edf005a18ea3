"""Looking up accounts while the directory service hangs, fails or forgets a user."""

from __future__ import annotations

import os
import pwd
import time

import pytest

from slurmwrap.host import user_account
from slurmwrap.host.user_account import AccountDirectory, UserAccount

ROOT = UserAccount(name="root", gid=0)
NAMELESS = 4_000_123_456


class Monotonic:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def _hang(uid: int) -> None:
    del uid
    time.sleep(600)


def test_a_known_and_an_unknown_uid() -> None:
    directory = AccountDirectory()
    assert (directory.find(0), directory.find(NAMELESS)) == (ROOT, None)


def test_a_service_that_hangs_delays_one_look_up_a_minute_and_known_accounts_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Monotonic()
    directory = AccountDirectory(clock)
    assert directory.find(0) == ROOT
    monkeypatch.setattr(user_account, "_DEADLINE_S", 0.2)
    monkeypatch.setattr(pwd, "getpwuid", _hang)
    clock.time += 10_000  # too old to be used without asking again
    forks: list[int] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(1))
    assert [directory.find(uid) for uid in (1, 0, 2, 3)] == [None, ROOT, None, None]
    assert len(forks) == 1
    monkeypatch.undo()
    clock.time += 61
    assert (directory.find(1), directory.find(0)) == (UserAccount(*_get_account(1)), ROOT)


def _get_account(uid: int) -> tuple[str, int]:
    found = pwd.getpwuid(uid)
    return found.pw_name, found.pw_gid


def test_a_user_who_returns_is_known_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Monotonic()
    directory = AccountDirectory(clock)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert directory.find(0) is None
    monkeypatch.undo()
    assert directory.find(0) is None
    clock.time += 61
    assert directory.find(0) == ROOT
