"""Which mark is the root cause: ranks and files merged in the order of time, consequences last. Pure.

The heaviest class of marks that the program did not survive decides (marks.py); within a class the first one in time,
where all of them carry a time, else the first of the first file. A failure that a dying peer brings about (connection
closed, remote process exited, a collective that nobody answered) waits behind another rank's own failure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from slurmwrap.diagnosis.clock import Stamp, comparable, last_stamp
from slurmwrap.diagnosis.lines import Log, rank_of
from slurmwrap.diagnosis.marks import HINT, Mark
from slurmwrap.diagnosis.progress import Progress

_AT_MOST = 64  # candidates whose times are read
# What a rank prints because another one is gone.
_PEER_GONE = re.compile(
    r"remote process (?:exited|has)|ncclRemoteError|[Cc]onnection closed by (?:remote )?peer|reset by peer|got 0 bytes"
    r"|[Bb]roken pipe|[Ss]ocket closed|shutting down|closed connection|unhealthy|[Hh]orovod has been shut down"
    r"|tasks? .{0,40}(?:died|heartbeat)|Transport endpoint|peer .{0,20}(?:gone|died)"
)
# What a rank prints because the others did not come.
_WAITED = re.compile(
    r"[Ww]atchdog|collective operation timeout|Timeout at NCCL work|[Hh]eartbeat|monitoredBarrier|[Bb]arrier timed out"
    r"|inconsistency, we are taking|Timed out waiting .{0,30}(?:recv|send|clients)|Termination timeout"
)
_OWN = frozenset(("traceback_from_crash", "semantic_error", "model_diverged", "gpu_oom", "cpu_oom", "import_error"))
_DEATHS = frozenset(("invalid_memory_access",))
_BREAKS = frozenset(("network_error", "traceback_from_crash", "semantic_error"))
SPEAKS_OF_PEERS = frozenset(("nccl_error", "mpi_runtime_failure"))
# Exceptions that come of the end of others, or of our own end.
_TEARDOWN = re.compile(
    r"(?:EOFError|ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError|BrokenPipeError|KeyboardInterrupt"
    r"|InterruptedError|CancelledError|TimeoutError|Empty)(?::|$)|killed by signal: (?:Terminated|Aborted)"
    r"|exited unexpectedly|[Cc]onnection (?:timed|reset|refused|closed)|NCCL|nccl|[Gg]loo|TCPStore"
    r"|[Dd]efault process group|process group .{0,40}destroy"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One log, read."""

    log: Log
    marks: tuple[Mark, ...]
    progress: Progress


def find_root(views: Sequence[View]) -> Mark | None:
    """The mark that the others follow from; None when nothing that was not survived is a cause."""
    alive = [mark for view in views for mark in view.marks if mark.role == "root" and not _survived(view, mark)]
    if not alive:
        return None
    lost: dict[int, int] = {}  # per log, the first row that speaks of lost peers
    for mark in alive:
        if mark.category in SPEAKS_OF_PEERS:
            lost[mark.log] = min(mark.row, lost.get(mark.log, mark.row))
    strengths = [_strength_after(mark, lost.get(mark.log)) for mark in alive]
    best = max(strengths)
    return _first([mark for mark, found in zip(alive, strengths, strict=True) if found == best], views)


def _strength_after(mark: Mark, lost: int | None) -> int:
    """A connection that breaks once peers are lost is a hint only, whatever its signature makes of it."""
    if lost is not None and lost < mark.row and mark.category in _BREAKS and _TEARDOWN.search(mark.text):
        return strength(HINT)
    return strength(mark.weight)


def _survived(view: View, mark: Mark) -> bool:
    """Whether the program went on; that other ranks did for a while does not count."""
    if not view.progress.survived(mark.row):
        return False
    rank = rank_of(mark.text)
    later = view.progress.rows[bisect_right(view.progress.rows, mark.row) :]
    return rank is None or any(rank_of(view.log.rows[row]) in (None, rank) for row in later)


def strength(weight: int) -> int:
    """Weights within one strength are equal: then the first failure wins."""
    return weight // 10


def _first(equals: list[Mark], views: Sequence[View]) -> Mark:
    """The first of marks of one strength."""
    if len({mark.category for mark in equals}) == 1 and len({mark.log for mark in equals}) == 1:
        return equals[0]
    ordered = sorted(equals, key=lambda mark: (mark.log, mark.row))[:_AT_MOST]
    stamps = {id(mark): last_stamp(views[mark.log].log.rows, mark.row) for mark in ordered}
    timed = comparable(list(stamps.values()))
    if timed:
        ordered.sort(key=lambda mark: (_seconds(stamps[id(mark)]), mark.log, mark.row))
    first = ordered[0]
    return next((mark for mark in ordered if _explains(mark, first, timed=timed)), first)


def _explains(mark: Mark, first: Mark, *, timed: bool) -> bool:
    """Whether `mark`, that comes later than `first`, is nevertheless its cause."""
    if first.category not in SPEAKS_OF_PEERS or mark.category in SPEAKS_OF_PEERS or _TEARDOWN.search(mark.text):
        return False
    if _PEER_GONE.search(first.text):
        return mark.category in _OWN or mark.category in _DEATHS
    return not timed and mark.category in _OWN and bool(_WAITED.search(first.text))


def _seconds(stamp: Stamp | None) -> float:
    return stamp.seconds if stamp is not None else 0.0
