"""Read what running jobs of one user wrote since the last look, with the rights of that user (adapter).

One child reads for all jobs of a user that are looked at in a pass: a fork costs more than the reads.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurmwrap.host.read_user_file import LATE_S
from slurmwrap.host.user_account import find_account
from slurmwrap.model.evidence import LogTail
from slurmwrap.model.running_read import RunningNews, RunningRead
from slurmwrap.node_hooks import deadline_child, log_tails, step_counts, user_files

# Time-out for one user: one job, and each further one. Seconds.
_DEADLINE_S, _FURTHER_S = 3.0, 0.2
_ANSWER_BYTES = 32 << 20
# Names of ranks' own files of which the time of the last write is read, and files that are read.
_RANK_NAMES, _RANK_FILES = 256, 8


class RunningJobReader:
    """Reads new output. It remembers users whose files hang, so that they delay the reconciler only once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._not_before: dict[int, float] = {}

    def __call__(self, uid: int, reads: Sequence[RunningRead]) -> tuple[RunningNews | None, ...]:
        """Return one result for each of `reads`, which are all of user `uid`; None where it was not read in time."""
        nothing: tuple[RunningNews | None, ...] = (None,) * len(reads)
        own = uid == os.geteuid()
        if self._clock() < self._not_before.get(uid, 0.0) or not (own or user_files.may_become(uid)):  # type: ignore[no-untyped-call]
            return nothing
        user = find_account(uid)
        if user is None:
            return nothing

        def look(send: Any) -> None:
            if not own:
                user_files.become(user.name, uid, user.gid, send.descriptor)  # type: ignore[no-untyped-call]
            for one in reads:
                send(json.dumps(_read_job(one)).encode("utf-8") + b"\n")

        deadline = self._clock() + _DEADLINE_S + _FURTHER_S * len(reads)
        answer = deadline_child.call(look, deadline, _ANSWER_BYTES)  # type: ignore[no-untyped-call]
        if answer.late:
            self._not_before[uid] = self._clock() + LATE_S
        lines = [json.loads(line) for line in answer.data.split(b"\n")[:-1]]
        return (*map(_make_news, lines), *nothing[len(lines) :])


def _make_news(plain: Mapping[str, Any]) -> RunningNews:
    logs = tuple(
        LogTail(name=name, text=text, truncated=cut, **known) for name, text, cut, error, known in plain["logs"]
    )
    return RunningNews(logs=logs, steps=plain["steps"])


def _read_job(one: RunningRead) -> dict[str, Any]:
    """Read the files of one job. It runs in the child, as the user."""
    run, begins = one.run, {name: list(begin) for name, begin in one.run.output_begins.items()}
    since = float(run.start_time or 0)
    paths = [os.fsencode(path) for path in dict.fromkeys((run.std_out, run.std_err)) if _is_readable_path(path)]
    further = [path for name in one.named for path in log_tails.list_logs_of(_encode(name), run.uid, since)]
    if one.ranks and paths:
        further += _list_rank_files(paths[0], one)
    logs = []
    for path in dict.fromkeys((*paths, *further[: log_tails.NAMED_LOGS + _RANK_FILES])):
        parts = [part for part in path.split(b"/") if part]
        found, log = log_tails.read_output_file(path, [parts], run.uid, since, begins, 0)  # type: ignore[no-untyped-call]
        if found is not None:
            logs.append(log)
    steps = {}
    if one.step_dir.startswith("/"):
        what = (_encode(one.step_dir), run.attempt.job_id, run.uid, since or None, run.restarts)
        steps = step_counts.counted_now(*what)  # type: ignore[no-untyped-call]
        if steps:
            steps["bad_losses"] = step_counts.losses(*what).get("bad_at_end", 0)  # type: ignore[no-untyped-call]
    return {"logs": logs, "steps": steps}


def _is_readable_path(path: str) -> bool:
    return path.startswith("/") and path != "/dev/null" and bool(_encode(path))


def _encode(path: str) -> bytes:
    """Return the path in bytes; b"" for text of a user's record that cannot be a path."""
    try:
        return b"" if "\0" in path else os.fsencode(path)
    except UnicodeEncodeError:
        return b""


def _list_rank_files(output: bytes, one: RunningRead) -> list[bytes]:
    """Return the ranks' files next to the output that were written since the last look: the first ones and the last."""
    directory, run = os.path.dirname(output), one.run  # noqa: PTH120 - takes bytes
    try:
        names = user_files.listed(directory)  # type: ignore[no-untyped-call]
    except (user_files.Unreadable, OSError):
        return []
    named = log_tails.named_like(names, run.attempt.job_id, "_" in run.address)[:_RANK_NAMES]  # type: ignore[no-untyped-call]
    since = max(one.since, float(run.start_time or 0))
    paths = [os.path.join(directory, name) for name in named]  # noqa: PTH118 - takes bytes
    written = [(log_tails.find_write_time(path, run.uid, since), path) for path in paths if path != output]  # type: ignore[no-untyped-call]
    found = [path for _, path in sorted((at, path) for at, path in written if at is not None)]
    half = _RANK_FILES // 2
    return found if len(found) <= _RANK_FILES else [*found[:half], *found[-half:]]
