"""Look up a user's name and primary group with a deadline (adapter): a directory service may hang or fail."""

from __future__ import annotations

import json
import pwd
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from slurmwrap.node_hooks import deadline_child

# Seconds for one look-up, without another look-up after a late one, and how long an answer is used.
_DEADLINE_S, _SILENT_S, _KEPT_S = 2.0, 60.0, 600.0
_ANSWER_BYTES = 1 << 16


class UserAccount(NamedTuple):
    """What a process needs to become a user (initgroups(3))."""

    name: str
    gid: int


class AccountDirectory:
    """Looks up accounts in a child process, and keeps the answers. After a late one it waits a minute.

    While the service does not answer, an older answer is used, because an account rarely changes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[int, tuple[float, UserAccount | None]] = {}
        self._not_before = 0.0

    def find(self, uid: int) -> UserAccount | None:
        """Return the account of `uid`; None if it has no name, or is unknown and the service does not answer."""
        now = self._clock()
        at, account = self._kept.get(uid, (float("-inf"), None))
        if now - at < (_SILENT_S if account is None else _KEPT_S) or now < self._not_before:
            return account
        answer = deadline_child.call(  # type: ignore[no-untyped-call]
            lambda send: _send_account(uid, send), time.monotonic() + _DEADLINE_S, _ANSWER_BYTES
        )
        if answer.complete:
            found = json.loads(answer.data)
            account = None if found is None else UserAccount(*found)
            self._kept[uid] = self._clock(), account
        else:
            self._not_before = self._clock() + _SILENT_S
        return account


def _send_account(uid: int, send: Any) -> None:
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        send(b"null")
    else:
        send(json.dumps([found.pw_name, found.pw_gid]).encode("ascii"))


_directory = AccountDirectory()


def find_account(uid: int) -> UserAccount | None:
    """Return the account of `uid` as AccountDirectory.find() does, with answers kept in this process."""
    return _directory.find(uid)


def find_user_name(uid: int) -> str:
    """Return the name of a user, or the uid if it has none on this host."""
    account = find_account(uid)
    return str(uid) if account is None else account.name
