"""Which mark is the root cause: ranks and files merged in the order of time, consequences last. Pure.

The heaviest class of marks that the program did not survive decides (log_matches.py); within a class the first one in
time, where all of them carry a time, else the first of the first file. A failure that a dying peer brings about
(connection closed, remote process exited, a collective that no one answered) waits behind another rank's own failure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from slurmwrap.diagnosis.log_matches import DECISIVE, HINT, ORDINARY, STRONG, LogMatch
from slurmwrap.diagnosis.log_progress import SURVIVED_BY, LogProgress, find_first_progress
from slurmwrap.diagnosis.log_rows import LogRows, rank_of
from slurmwrap.fast_dataclasses import dataclass

# Reads the time that a row of a log carries, to order what ranks wrote into different files.
#
# Loggers leave out the year (glog, syslog, PyTorch's C++ log) or the zone, so a time is only compared with one of the
# same kind; over New Year the order is wrong.
# Rows before one without a time that are searched for the last time printed.
LOOK_BACK = 60
# A time is at the start of a row, after a rank's prefix.
_HEAD = 90
_TIME = r"(?P<h{0}>\d\d):(?P<m{0}>\d\d):(?P<s{0}>\d\d)(?:[.,](?P<f{0}>\d{{1,9}}))?"
_STAMP = re.compile(
    r"(?P<y>20\d\d)[-/](?P<mo>\d\d)[-/](?P<d>\d\d)[T ]"
    + _TIME.format("i")
    + r"(?P<zone>Z|[+-]\d\d:?\d\d)?|(?:^|[\s\[:>|(])[IWEFD](?P<gm>\d\d)(?P<gd>\d\d) "
    + _TIME.format("g")
    + r"|(?:^|[\s\[:>|])(?P<sm>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<sd>\d{1,2}) "
    + _TIME.format("s")
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Seconds within a year of 31-day months, good for comparing and for nothing else. `utc`: the row says so."""

    seconds: float
    utc: bool


def parse_stamp(row: str) -> Stamp | None:
    """The time that `row` carries near its start: ISO 8601, glog and PyTorch (`[E1120 12:00:00.123`), syslog."""
    found = _STAMP.search(row[:_HEAD])
    if found is None:
        return None
    if found["gm"]:
        month, day, kind = int(found["gm"]), int(found["gd"]), "g"
    elif found["sm"]:
        month, day, kind = _MONTHS.index(found["sm"]) + 1, int(found["sd"]), "s"
    else:
        month, day, kind = int(found["mo"]), int(found["d"]), "i"
    hours, minutes, seconds = (int(found[name + kind]) for name in "hms")
    if not (1 <= month <= 12 and 1 <= day <= 31 and hours < 24 and minutes < 60 and seconds <= 60):
        return None
    fraction = float(f"0.{found['f' + kind] or 0}")
    days = (month - 1) * 31 + day - 1
    return Stamp(
        seconds=days * 86400 + hours * 3600 + minutes * 60 + seconds + fraction,
        utc=found["zone"] is not None and found["zone"] in ("Z", "+00:00", "+0000"),
    )


def find_last_stamp(rows: tuple[str, ...], row: int) -> Stamp | None:
    """The time of `row`, else the last one that the same rank printed before it: it did not happen earlier."""
    rank = rank_of(rows[row])
    for index in range(row, max(-1, row - LOOK_BACK), -1):
        if (stamp := parse_stamp(rows[index])) and rank_of(rows[index]) == rank:
            return stamp
    return None


def is_comparable(stamps: list[Stamp | None]) -> bool:
    """Whether all are known and speak of the same zone."""
    return all(stamp is not None for stamp in stamps) and len({stamp.utc for stamp in stamps if stamp}) <= 1


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
# A shell's or a tool's complaint; scripts that watch or copy print them next to training.
_TOOL = re.compile(
    r"(?:\S{1,200}: line \d{1,6}: |(?:\S{0,80}/)?(?:-?bash|sh|zsh|cp|mv|mkdir|rm|tar|touch|rsync|ln|chmod|chown|ls|cat"
    r"|tee|scp|du|df|find|grep|stat|head|tail|nvidia-smi|curl|wget|git|ssh): )"
)
# A process that ended itself: why, it may have said before.
_ABORTS = frozenset(("mpi.abort", "cxx.terminate", "process.sigabrt", "mpi.other_error"))
_NO_REASON = frozenset(
    (
        *("nccl_error", "mpi_runtime_failure", "mpi_error", "network_error", "node_failure"),
        *("core_dump", "invalid_memory_access", "traceback_from_crash", "cancelled"),
    )
)
_OF_THE_FABRIC = frozenset((*SPEAKS_OF_PEERS, "mpi_error", "network_error", "node_failure"))
_SAID_WITHIN = 40  # rows
# A summary of what peers saw weighs less.
_NAMED = 50
_ERROR_FILE = re.compile(r"stderr|\berr\b")
_OF_TOOLS = frozenset(("permission_error", "incorrect_inputs", "syntax_error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One log, read."""

    log: LogRows
    marks: tuple[LogMatch, ...]
    progress: LogProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """Per log, the first row of each kind."""

    lost: dict[int, int]  # that speaks of lost peers
    own: dict[int, int]  # that is a failure of the program itself
    trained: dict[int, int]  # that shows training, where it matters


def find_root(views: Sequence[LogView]) -> LogMatch | None:
    """The mark that the others follow from; None when nothing that was not survived is a cause."""
    until = [_find_last_progress_time(view, views) for view in views]
    alive = [mark for view, end in zip(views, until, strict=True) for mark in view.marks if _is_alive(view, mark, end)]
    if not alive:
        return None
    scene = _make_scene(alive, views)
    strengths = [_get_strength_in(scene, mark) for mark in alive]
    best = max(strengths)
    root = _find_first([mark for mark, found in zip(alive, strengths, strict=True) if found == best], views)
    return _find_preceding_match(root, alive) or root


def _make_scene(alive: Sequence[LogMatch], views: Sequence[LogView]) -> _Scene:
    tools = {mark.log for mark in alive if _is_of_tool(mark)}
    return _Scene(
        lost=_find_first_rows(mark for mark in alive if mark.category in SPEAKS_OF_PEERS),
        own=_find_first_rows(mark for mark in alive if _is_own(mark)),
        trained={log: row for log in tools if (row := find_first_progress(views[log].log)) is not None},
    )


def _find_first_rows(marks: Iterable[LogMatch]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for mark in marks:
        rows[mark.log] = min(mark.row, rows.get(mark.log, mark.row))
    return rows


def _is_of_tool(log_match: LogMatch) -> bool:
    return log_match.category in _OF_TOOLS and bool(_TOOL.match(log_match.text))


def _is_own(log_match: LogMatch) -> bool:
    return (
        log_match.category not in _OF_THE_FABRIC
        and log_match.weight >= ORDINARY
        and not _TEARDOWN.search(log_match.text)
    )


def _find_preceding_match(root: LogMatch, alive: Sequence[LogMatch]) -> LogMatch | None:
    """What a program said in words of its own right before it aborted."""
    if root.signature not in _ABORTS and not (root.category in SPEAKS_OF_PEERS and root.weight < _NAMED):
        return None
    near = (mark for mark in alive if mark.log == root.log and 0 < root.row - mark.row <= _SAID_WITHIN)
    return next((mark for mark in near if HINT < mark.weight < ORDINARY and mark.category not in _NO_REASON), None)


def _get_strength_in(scene: _Scene, log_match: LogMatch) -> int:
    """A connection that breaks once peers are lost is a hint only, whatever its signature makes of it.

    So is what a side script complained of while training ran. What the fabric reports after a failure of the program's
    own is no more than that failure.
    """
    if _is_of_tool(log_match) and scene.trained.get(log_match.log, log_match.row) < log_match.row:
        return get_strength(HINT)
    if (
        scene.lost.get(log_match.log, log_match.row) < log_match.row
        and log_match.category in _BREAKS
        and _TEARDOWN.search(log_match.text)
    ):
        return get_strength(HINT)
    named = log_match.category in SPEAKS_OF_PEERS and STRONG <= log_match.weight < DECISIVE
    if named and scene.own.get(log_match.log, log_match.row) < log_match.row:
        return get_strength(ORDINARY)
    return get_strength(log_match.weight)


def _is_alive(view: LogView, log_match: LogMatch, until: Stamp | None) -> bool:
    """Whether the mark is a cause's that the program did not get over."""
    return log_match.role == "root" and not (
        _has_survived(view, log_match) or _has_survived_elsewhere(view, log_match, until)
    )


def _has_survived(view: LogView, log_match: LogMatch) -> bool:
    """Whether the program went on; that other ranks did for a while does not count."""
    if not view.progress.survived(log_match.row):
        return False
    rank = rank_of(log_match.text)
    later = view.progress.rows[bisect_right(view.progress.rows, log_match.row) :]
    return rank is None or any(rank_of(view.log.rows[row]) in (None, rank) for row in later)


def _has_survived_elsewhere(view: LogView, log_match: LogMatch, until: Stamp | None) -> bool:
    """Whether progress went on after the mark's time in the program's other file, that shows it until `until`."""
    at = find_last_stamp(view.log.rows, log_match.row) if until is not None else None
    return at is not None and until is not None and at.utc == until.utc and at.seconds < until.seconds


def _find_last_progress_time(view: LogView, views: Sequence[LogView]) -> Stamp | None:
    """The time of the last but one line of progress in the other file of the same program, stdout for stderr."""
    for other in views:
        if other is view or _ERROR_FILE.sub("out", view.log.name) != _ERROR_FILE.sub("out", other.log.name):
            continue
        stamps = [stamp for row in other.progress.rows if (stamp := parse_stamp(other.log.rows[row]))]
        if len(stamps) >= SURVIVED_BY:
            return stamps[-SURVIVED_BY]
    return None


def get_strength(weight: int) -> int:
    """Weights within one strength are equal: then the first failure wins."""
    return weight // 10


def _find_first(equals: list[LogMatch], views: Sequence[LogView]) -> LogMatch:
    """The first of marks of one strength."""
    if len({mark.category for mark in equals}) == 1 and len({mark.log for mark in equals}) == 1:
        return equals[0]
    ordered = sorted(equals, key=lambda mark: (mark.log, mark.row))[:_AT_MOST]
    stamps = {id(mark): find_last_stamp(views[mark.log].log.rows, mark.row) for mark in ordered}
    timed = is_comparable(list(stamps.values()))
    if timed:
        ordered.sort(key=lambda mark: (_get_seconds(stamps[id(mark)]), mark.log, mark.row))
    first = ordered[0]
    return next((mark for mark in ordered if _is_cause_of(mark, first, timed=timed)), first)


def _is_cause_of(log_match: LogMatch, first: LogMatch, *, timed: bool) -> bool:
    """Whether `log_match`, that comes later than `first`, is nevertheless its cause."""
    if (
        first.category not in SPEAKS_OF_PEERS
        or log_match.category in SPEAKS_OF_PEERS
        or _TEARDOWN.search(log_match.text)
    ):
        return False
    if _PEER_GONE.search(first.text):
        return log_match.category in _OWN or log_match.category in _DEATHS
    return not timed and log_match.category in _OWN and bool(_WAITED.search(first.text))


def _get_seconds(stamp: Stamp | None) -> float:
    return stamp.seconds if stamp is not None else 0.0
