"""Read a user's files (job output, inputs) as that user, in a child process that gave up root."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from slurmwrap.host.user_account import UserAccount, find_account
from slurmwrap.model.decision import InputRead
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import CountedLosses, LossPoint
from slurmwrap.node_hooks import deadline_child, log_tails, step_counts, user_files
from slurmwrap.node_hooks.user_files import may_become
from slurmwrap.prerun.static import file_formats, job_inputs

# Loaded before the child becomes the user, who may not be able to read slurmwrap's own files.
_PRELOADED = file_formats
_ANSWER_BYTES = 1 << 20
_DEADLINE_S = 5.0


def read_inputs_as(uid: int, paths: Sequence[str]) -> tuple[InputRead, ...]:
    """Return digest and fault of each path, read with the rights of `uid`; () if not allowed or not in time."""
    own_uid = os.geteuid()
    if not paths or (uid != own_uid and not user_files.may_become(uid)):  # type: ignore[no-untyped-call]
        return ()
    owner = find_account(uid)
    if owner is None:
        return ()

    def read(send: Any) -> None:
        if uid != own_uid:
            user_files.become(owner.name, uid, owner.gid, send.descriptor)  # type: ignore[no-untyped-call]
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
    """Return the digest of a regular file, else "". Opening a FIFO would block."""
    try:
        return job_inputs.digest(path) if os.path.isfile(path) else ""  # noqa: PTH113 - takes any text
    except (OSError, ValueError):
        return ""


def _is_owned_by_another(path: str, uid: int) -> bool:
    """Return whether content and name belong to another user: `uid` can neither write, link nor rename the file.

    An empty file belongs to no user, because all empty files have the same digest.
    """
    try:
        real = os.path.realpath(path)
        found = os.stat(real)  # noqa: PTH116 - takes any text
    except (OSError, ValueError):
        return False
    if found.st_uid == uid or found.st_nlink != 1 or not found.st_size:
        return False
    changeable = os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)  # noqa: PTH120
    return not changeable and os.path.splitext(real)[1] == os.path.splitext(path)[1]  # noqa: PTH122


# Time-out in seconds for logs and for what the step counter wrote in a real run (gsub --count-steps).
DEADLINE_S = 3.0


class UserLogs:
    """Implements `protocols.Logs`: the logs of a run, read with the rights of its user only."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s

    def tails(self, run: JobRun, named: Sequence[str] = ()) -> tuple[LogTail, ...]:
        """Return the last 64 KiB that this run wrote to each; empty if they cannot be read, or not in time."""
        if not may_become(run.uid):  # type: ignore[no-untyped-call]
            return ()
        user = find_account(run.uid)
        if user is None:
            return ()
        paths = tuple(dict.fromkeys(os.fsencode(path) for path in (run.std_out, run.std_err) if path))
        begins = {name: list(begin) for name, begin in run.output_begins.items()}
        deadline = time.monotonic() + self._deadline_s
        logs = tuple(filter(None, map(_encode_path, named)))
        since = None if run.start_time is None else float(run.start_time)
        answer = log_tails.read(paths, user.name, run.uid, user.gid, deadline, begins, logs, since)
        return tuple(LogTail(**log) for log in answer["logs"])


def _encode_path(path: str) -> bytes:
    """Return the path in bytes; b"" for text of a user's record that cannot be a path."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return b""


# Seconds without reads for a user whose directory did not answer: a hung mount may hold many of their jobs.
LATE_S = 600.0
_LIMIT = 1 << 16


class StepFiles:
    """Reader of step counts. It remembers users whose directories hang, so that they delay the reconciler only once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._not_before: dict[int, float] = {}

    def __call__(self, run: JobRun, directory: str) -> Mapping[str, Any]:
        """Return the fact `steps` of this run (docs/records.md); {} if nothing was counted or the read takes too long.

        `directory`: as the user's submission names it. A caller that is neither root nor the user reads nothing.
        """
        return self._read(run, directory, step_counts.counted)

    def losses(self, run: JobRun, directory: str) -> CountedLosses | None:
        """Return the losses of this run, from the process with the most steps; None if none were recorded.

        `directory`: as for a call. Nothing is read for a caller that is neither root nor the user, or if it takes too
        long.
        """
        found = self._read(run, directory, step_counts.losses)
        return make_counted_losses(found, float(run.start_time or 0)) if found else None

    def saved_at(self, run: JobRun, work_dir: str) -> float | None:
        """Return when the newest checkpoint in the run's working directory was written, Unix seconds; None: none was.

        It is a file or directory with the name of one, of the run's user and written since the run began.
        """
        found = self._read(run, work_dir, _find_newest_checkpoint)
        return float(found["at"]) if found else None

    def _read(self, run: JobRun, directory: str, read: Callable[..., Any]) -> Mapping[str, Any]:
        uid, own_uid = run.uid, os.geteuid()
        if not directory.startswith("/") or (uid != own_uid and not user_files.may_become(uid)):  # type: ignore[no-untyped-call]
            return {}
        if self._clock() < self._not_before.get(uid, 0.0):
            return {}
        user = find_account(uid)
        if user is None:
            return {}
        work, deadline = _make_step_reader(run, directory, user, read), self._clock() + DEADLINE_S
        answer = deadline_child.call(work, deadline, _LIMIT)  # type: ignore[no-untyped-call]
        if answer.late:
            self._not_before[uid] = self._clock() + LATE_S
        if not answer.complete:
            return {}
        found: Mapping[str, Any] = json.loads(answer.data)
        return found


# Names of checkpoints, and how deep below the working directory and among how many entries they are searched.
_CHECKPOINT = re.compile(
    rb"ckpt|checkpoint|(?:^|[^a-z])(?:step|epoch|iter)[-_=]?\d|\.(?:pt|pth|safetensors|distcp)$", re.I
)
_DEPTH, _ENTRIES = 3, 5000


def _find_newest_checkpoint(
    directory: bytes, job_id: int, uid: int, since: float | None, restart: int
) -> Mapping[str, float]:
    """Return {"at": time of its last write}; {} if there is none. Links and hidden directories do not count."""
    newest, left, level = since or 0.0, _ENTRIES, [directory]
    for _ in range(_DEPTH):
        below: list[bytes] = []
        for path in level:
            with suppress(OSError), os.scandir(path) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode) and not entry.name.startswith(b"."):
                            below.append(entry.path)
                        is_file = stat.S_ISREG(status.st_mode) and status.st_uid == uid
                        if is_file and _CHECKPOINT.search(entry.path[len(directory) :]):
                            newest = max(newest, status.st_mtime)
        level = below
    return {"at": newest} if newest > (since or 0.0) else {}


def make_counted_losses(found: Mapping[str, Any], start: float) -> CountedLosses:
    """Return the record of what node_hooks.step_counts.losses() found. `start`: of the run, Unix seconds."""
    points = tuple(
        LossPoint(at_s=max(0.0, float(at) - start), step=float(step), loss=float(loss))
        for step, at, loss in found["points"]
    )
    return CountedLosses(points=points, taken=found["taken"], bad=found["bad"], bad_at_end=found["bad_at_end"])


def _make_step_reader(
    run: JobRun, directory: str, user: UserAccount, read: Callable[..., Any]
) -> Callable[[Any], None]:
    """Return the function that runs in the child; all that it needs is loaded before it becomes the user."""
    since = None if run.start_time is None else float(run.start_time)
    path, job_id = os.fsencode(directory), run.attempt.job_id

    def read_counts(send: Any) -> None:
        if run.uid != os.geteuid():
            user_files.become(user.name, run.uid, user.gid, send.descriptor)  # type: ignore[no-untyped-call]
        found = read(path, job_id, run.uid, since, run.restarts)
        send(json.dumps(found).encode("ascii"))

    return read_counts
