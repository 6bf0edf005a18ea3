"""Edge: inputs that may have broken a job, read as the job's owner: no one learns of a file they cannot read.

Always in a forked child with a deadline, for a file system may hang. Root's child becomes that user first
(node_hooks/user_files.py); anybody else reads their own files only.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Sequence
from typing import Any

from slurmwrap.model.retry_decision import InputRead
from slurmwrap.node_hooks import deadline_child, user_files
from slurmwrap.prerun.static import file_formats, job_inputs

# The child may not be able to read our own files once it is the user.
_LOADED = file_formats
_ANSWER_BYTES = 1 << 20
_DEADLINE_S = 5.0


def read_inputs_as(uid: int, paths: Sequence[str]) -> tuple[InputRead, ...]:
    """Digest and fault of each path with the rights of `uid`; () when we may not read, or not in time."""
    ours = os.geteuid()
    if not paths or (uid != ours and not user_files.may_become(uid)):  # type: ignore[no-untyped-call]
        return ()
    try:
        owner = pwd.getpwuid(uid)
    except KeyError:
        return ()

    def read(send: Any) -> None:
        if uid != ours:
            user_files.become(owner.pw_name, uid, owner.pw_gid, send.descriptor)  # type: ignore[no-untyped-call]
        send(json.dumps([_read(path, uid) for path in paths]).encode("ascii"))

    answer = deadline_child.call(read, time.monotonic() + _DEADLINE_S, _ANSWER_BYTES)  # type: ignore[no-untyped-call]
    if not answer.complete:
        return ()
    found = zip(paths, json.loads(answer.data), strict=True)
    return tuple(InputRead(path=path, digest=one, fault=fault, theirs=theirs) for path, (one, fault, theirs) in found)


def _read(path: str, uid: int) -> tuple[str, str, bool]:
    digest = _digest(path)
    return digest, job_inputs.inspect(path) or "", bool(digest) and _is_owned_by_another(path, uid)


def _digest(path: str) -> str:
    """A FIFO would block: regular files only."""
    try:
        return job_inputs.digest(path) if os.path.isfile(path) else ""  # noqa: PTH113 - takes any text
    except (OSError, ValueError):
        return ""


def _is_owned_by_another(path: str, uid: int) -> bool:
    """Whether content and name are another user's: not `uid`'s to write, to link or to rename. An empty file is
    no one's, for all empty files have one digest."""
    try:
        real = os.path.realpath(path)
        found = os.stat(real)  # noqa: PTH116 - takes any text
    except (OSError, ValueError):
        return False
    if found.st_uid == uid or found.st_nlink != 1 or not found.st_size:
        return False
    changeable = os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)  # noqa: PTH120
    return not changeable and os.path.splitext(real)[1] == os.path.splitext(path)[1]  # noqa: PTH122
