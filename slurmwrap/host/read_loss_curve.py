"""Read the loss curve of a run that ended from its output, as its user, in a child process that gave up root.

The child reads at most 16 MiB of each file and sends back at most 256 points and three figures. If the output shows no
loss, files of metrics next to it are read, as long as it is certain that this run wrote them.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slurmwrap.diagnosis.log_rows import clean_rows
from slurmwrap.diagnosis.loss_files import EVENTS, is_metrics_file, read_metrics_file
from slurmwrap.diagnosis.loss_points import MOST_POINTS, RunSpan, make_points, reduce_points
from slurmwrap.diagnosis.loss_rows import read_loss_rows
from slurmwrap.host.user_account import UserAccount, find_account
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve, LossPoint
from slurmwrap.node_hooks import deadline_child, user_files
from slurmwrap.profiling.convergence import measure_convergence

# A shorter run is a test, or failed before it trained.
SHORTEST_S = 60.0
DEADLINE_S = 5.0
# Seconds without reads for a user whose files did not answer in time.
LATE_S = 600.0
_LIMIT = 1 << 17
_MOST_BYTES = 16 << 20
# Of a larger file, so many parts are read at equal distances.
_PARTS = 64
_LONGEST_ROW = 1 << 14
_MOST_FILES = 8
_MOST_ENTRIES = 2000
_DEEPEST = 3
_CLOCK_SKEW_S = 5.0
# Fewer points in the output than this are not a curve: then files of metrics may know more.
_FEWEST_POINTS = 5
# A job id in a path: 81, 77_2.
_ID = re.compile(r"(?<![^\W_])\d{1,10}(?:_\d{1,10})?(?![^\W_])")


class LossCurveFiles:
    """Reader of loss curves. It remembers users whose files hang, so that they delay the reconciler only once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._not_before: dict[int, float] = {}

    def __call__(self, run: JobRun) -> LossCurve | None:
        """Return the curve of a run that ended; None if its output shows none, or the read takes too long."""
        if not run.run_s or not user_files.may_become(run.uid):  # type: ignore[no-untyped-call]
            return None
        if self._clock() < self._not_before.get(run.uid, 0.0):
            return None
        user = find_account(run.uid)
        if user is None:
            return None
        work, deadline = _make_reader(run, user), self._clock() + DEADLINE_S
        answer = deadline_child.call(work, deadline, _LIMIT)  # type: ignore[no-untyped-call]
        if answer.late:
            self._not_before[run.uid] = self._clock() + LATE_S
        return _parse_answer(answer.data, run) if answer.complete else None


def _make_reader(run: JobRun, user: UserAccount) -> Callable[[Any], None]:
    """Return the function that runs in the child; all that it needs is loaded before it becomes the user."""
    zone_s = float(time.localtime(run.start_time).tm_gmtoff)

    def read_curve(send: Any) -> None:
        if run.uid != os.geteuid():
            user_files.become(user.name, run.uid, user.gid, send.descriptor)  # type: ignore[no-untyped-call]
        send(json.dumps(find_curve(run, zone_s)).encode("ascii"))

    return read_curve


def find_curve(run: JobRun, zone_s: float) -> dict[str, Any]:
    """Return `source`, `points` and the figures of the best curve that this process can read; {} if there is none.

    `zone_s`: seconds by which the node's local time is ahead of UTC.
    """
    began = None if run.start_time is None else float(run.start_time)
    span = RunSpan(run_s=run.run_s, began=began, zone_s=zone_s)
    paths = tuple(dict.fromkeys(path for path in (*run.output_ends, run.std_out, run.std_err) if path.startswith("/")))
    best_source = ""
    best: tuple[LossPoint, ...] = ()
    for path in paths[:_MOST_FILES]:
        found = read_loss_rows(_read_rows(path, run))
        points = make_points(found, span)
        if len(points) > len(best):
            best_source, best = found.source, points
    if len(best) < _FEWEST_POINTS:
        for path in _find_metrics_files(paths, run):
            found = read_metrics_file(os.path.basename(path), _read_whole(path, run.uid))  # noqa: PTH119 - takes any text
            points = make_points(found, span)
            if len(points) > len(best):
                best_source, best = found.source, points
    if not best:
        return {}
    figures = measure_convergence(best, run.run_s)
    return {
        "source": best_source,
        "points": [[round(p.at_s, 1), p.step, p.epoch, p.loss, p.validation_loss] for p in reduce_points(best)],
        "figures": [figures.lowest, figures.time_share, figures.epoch_share] if figures else [None, None, None],
    }


def _parse_answer(data: bytes, run: JobRun) -> LossCurve | None:
    """Return the curve. The child is slurmwrap's own, but it ran as the user: only finite numbers are taken."""
    answer = json.loads(data)
    if not answer:
        return None
    points = [[_check_number(value) for value in point] for point in answer["points"][:MOST_POINTS]]
    lowest, time_share, epoch_share = (_check_number(value) for value in answer["figures"])
    return LossCurve(
        attempt=run.attempt,
        source=str(answer["source"])[:40],
        points=tuple(
            LossPoint(at_s=at_s or 0.0, step=step, epoch=epoch, loss=loss, validation_loss=validation)
            for at_s, step, epoch, loss, validation in points
        ),
        uid=run.uid,
        end_time=run.end_time,
        lowest=lowest,
        time_share=time_share,
        epoch_share=epoch_share,
    )


def _check_number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


# ---- the output


def _read_rows(path: str, run: JobRun) -> list[tuple[float, str]]:
    """Return position and text of the rows that the run wrote to a file; [] if it cannot be read."""
    begin, end = run.output_begins.get(path), run.output_ends.get(path)
    try:
        seen = user_files.span(os.fsencode(path), run.uid, 0, begin, counted=0)  # type: ignore[no-untyped-call]
        last = min(int(end[0]), seen["total"]) if end else seen["total"]
        return [row for at, data in _read_parts(path, run.uid, seen["first"], last) for row in _split_rows(at, data)]
    except (OSError, ValueError, TypeError, user_files.Unreadable):
        return []


def _split_rows(at: int, data: bytes) -> Iterator[tuple[float, str]]:
    position = float(at)
    for row in clean_rows(data.decode("utf-8", "replace").replace("\x08", "")):
        yield position, row
        position += len(row) + 1


def _read_parts(path: str, uid: int, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of the whole range, or of parts of it that are equally far apart and end at its end."""
    length = last - first
    if length <= _MOST_BYTES:
        yield first, _read_range(path, uid, first, length)
        return
    size = _MOST_BYTES // _PARTS
    for part in range(_PARTS):
        start = first + (length - size) * part // (_PARTS - 1)
        data = _read_range(path, uid, start, size)
        # The first and the last row of a part are cut off, but not those of the range.
        cut = _find_row_end(data[:_LONGEST_ROW]) if part else 0
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) if part < _PARTS - 1 else size
        yield start + cut, data[cut:end]


def _find_row_end(data: bytes) -> int:
    """Return where the second row begins; 0 if there is none."""
    return min((at + 1 for at in (data.find(b"\n"), data.find(b"\r")) if at >= 0), default=0)


def _read_range(path: str, uid: int, start: int, size: int) -> bytes:
    """Return bytes of a regular file that `uid` owns. Raise Unreadable for any other one."""
    descriptor = os.open(os.fsencode(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid:
            raise user_files.Unreadable("not a regular file of the user")
        return os.pread(descriptor, size, start)
    finally:
        os.close(descriptor)


def _read_whole(path: str, uid: int) -> bytes:
    try:
        return _read_range(path, uid, 0, _MOST_BYTES)
    except (OSError, user_files.Unreadable):
        return b""


# ---- files of metrics


def _find_metrics_files(paths: Sequence[str], run: JobRun) -> Sequence[str]:
    """Return the files of metrics below the directory of the output that only this run can have written.

    Several runs may write to the same directory. A file counts if its path contains the id of the job, if TensorBoard
    named it after a node and a time of this run, or if it is the only one of its name that was begun during the run.
    """
    directories = dict.fromkeys(os.path.dirname(path) for path in paths)  # noqa: PTH120 - takes any text
    written = [path for directory in directories for path in _list_written(directory, run)]
    ids = {str(run.attempt.job_id), run.address}
    named = [path for path in written if ids & set(_ID.findall(path))]
    events = [path for path in written if _is_event_of_run(os.path.basename(path), run)]  # noqa: PTH119
    if named or events:
        return (named or events)[:_MOST_FILES]
    return written if len(written) == 1 else ()


def _is_event_of_run(name: str, run: JobRun) -> bool:
    """Return True for "events.out.tfevents.TIME.HOST...." with a host and a time of this run."""
    at, _, rest = name.removeprefix(EVENTS).partition(".")
    if not name.startswith(EVENTS) or not at.isdigit() or run.start_time is None or run.end_time is None:
        return False
    host = any(rest.startswith((f"{node}.", f"{node}-")) or rest == node for node in run.nodes)
    return host and run.start_time - _CLOCK_SKEW_S <= int(at) <= run.end_time + _CLOCK_SKEW_S


def _list_written(directory: str, run: JobRun) -> Iterator[str]:
    """Yield the files of metrics below a directory that were written during the run, and none of them before it."""
    left = _MOST_ENTRIES
    stack = [(directory, 0)]
    while stack and left > 0:
        here, depth = stack.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    left -= 1
                    if left <= 0:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST and not entry.name.startswith("."):
                            stack.append((entry.path, depth + 1))
                    elif is_metrics_file(entry.name) and _was_written_by(entry, run):
                        yield entry.path
        except OSError:
            continue


def _was_written_by(entry: os.DirEntry[str], run: JobRun) -> bool:
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != run.uid or run.start_time is None or run.end_time is None:
        return False
    return run.start_time - _CLOCK_SKEW_S <= found.st_mtime <= run.end_time + _CLOCK_SKEW_S
