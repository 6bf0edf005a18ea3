"""The files that are blocked, as they are now: read with no more rights than the user has who is bound."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.read_inputs import read_inputs_as
from slurmwrap.model.blocked_input import BlockedInput
from slurmwrap.model.retry_decision import InputRead

SITE = -1  # the uid of a block that binds everybody
_LOOKED = 100  # files of a list that are read, to see whether they changed


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A block, and what its file is like now: "same", "changed" (it is free), "gone", or "" where we cannot read it."""

    blocked: BlockedInput
    now: str = ""


def rows_of(found: Sequence[BlockedInput], place: RecordSource) -> list[InputRow]:
    """With what the files of the newest are like now; one reader for each user, for a file system may hang."""
    readers = {one: _find_reading_uid(one, place) for one in found[:_LOOKED]}
    now: dict[BlockedInput, str] = {}
    for uid in dict.fromkeys(readers.values()):
        mine = [one for one, reader in readers.items() if reader == uid] if uid is not None else []
        read = read_inputs_as(uid, [one.path for one in mine]) if uid is not None and mine else ()
        now |= {one: _compare_digest(one, told) for one, told in zip(mine, read, strict=False)}
    return [InputRow(blocked=one, now=now.get(one, "")) for one in found]


def now_of(blocked: BlockedInput, place: RecordSource) -> str:
    """Whether its path still holds what was blocked."""
    return rows_of([blocked], place)[0].now


def _find_reading_uid(blocked: BlockedInput, place: RecordSource) -> int | None:
    """As whom its file is read, with no more rights than the user has who is bound; None: not at all."""
    if not blocked.path or (place.site and blocked.uid == SITE and place.uid == 0):
        return None
    return blocked.uid if place.site and place.uid == 0 and blocked.uid > 0 else place.uid


def _compare_digest(blocked: BlockedInput, read: InputRead) -> str:
    if not read.digest:
        return "gone" if read.fault == "does not exist" else ""
    return "same" if read.digest == blocked.digest else "changed"


def digest_of(path: Path) -> str:
    """Of a file as it is now; UsageError where it cannot be read.

    Root reads as the file's owner; what is root's own, as no one where the path may be a user's link to it.
    """
    try:
        owner = path.stat().st_uid or (0 if _roots_alone(path) else _get_nobody_uid())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", exit_code=1) from error
    ours = os.geteuid()
    found = read_inputs_as(owner if ours == 0 else ours, (str(path),))
    if not found or not found[0].digest:
        fault = found[0].fault if found and found[0].fault else "it is no regular file, or may not be read"
        raise UsageError(f"cannot read {path}: {fault}", exit_code=1)
    return found[0].digest


def _roots_alone(path: Path) -> bool:
    """Whether no one but root decides what lies there: no links, no directory of anybody else's on the way."""
    if os.path.realpath(path) != str(path):
        return False
    found = [one.lstat() for one in (path, *path.parents)]
    return all(one.st_uid == 0 and (not one.st_mode & 0o022 or one.st_mode & stat.S_ISVTX) for one in found)


def _get_nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return -1
