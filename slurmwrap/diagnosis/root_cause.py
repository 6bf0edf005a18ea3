"""Decide which mark is the root cause: merge ranks and files in the order of time, consequences last. Pure.

Of the marks that the program did not survive, those in the heaviest class of weights decide (log_matches.py). Within a
class it is the first one in time if all of them carry a time, else the first of the first file. A failure that a dying
peer causes (connection closed, remote process exited, a collective that timed out) yields to another rank's own
failure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from slurmwrap.diagnosis.log_matches import DECISIVE, HINT, ORDINARY, STRONG, LogMatch
from slurmwrap.diagnosis.log_progress import SURVIVED_BY, LogProgress, find_first_progress
from slurmwrap.diagnosis.log_rows import LogRows, parse_rank
from slurmwrap.fast_dataclasses import dataclass

# Times in rows, to order what ranks wrote into different files. Loggers omit the year (glog, syslog, PyTorch's C++ log)
# or the zone, so a time is only compared with one of the same kind. Around New Year the order is wrong.

# Number of rows before one without a time that are searched for the last printed time.
LOOK_BACK = 60
# Number of characters at the start of a row in which its time is searched, after a rank's prefix.
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
    """Seconds within a year of 31-day months, only for comparing. `utc`: the row names UTC as its zone."""

    seconds: float
    utc: bool


def parse_stamp(row: str) -> Stamp | None:
    """Return the time that `row` carries near its start: ISO 8601, glog and PyTorch (`[E1120 12:00:00.123`), syslog."""
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
    """Return the time of `row`, else the last one that the same rank printed before it; None if there is none."""
    rank = parse_rank(rows[row])
    for index in range(row, max(-1, row - LOOK_BACK), -1):
        if (stamp := parse_stamp(rows[index])) and parse_rank(rows[index]) == rank:
            return stamp
    return None


def is_comparable(stamps: list[Stamp | None]) -> bool:
    """Return True if all stamps are known and are of the same zone."""
    return all(stamp is not None for stamp in stamps) and len({stamp.utc for stamp in stamps if stamp}) <= 1


# Number of candidates whose times are read.
_MOST_CANDIDATES = 64
# What a rank prints because another one is gone.
_PEER_LOST = re.compile(
    r"remote process (?:exited|has)|ncclRemoteError|[Cc]onnection closed by (?:remote )?peer|reset by peer|got 0 bytes"
    r"|[Bb]roken pipe|[Ss]ocket closed|shutting down|closed connection|unhealthy|[Hh]orovod has been shut down"
    r"|tasks? .{0,40}(?:died|heartbeat)|Transport endpoint|peer .{0,20}(?:gone|died)"
)
# What a rank prints because the other ranks did not respond.
_PEER_TIMEOUT = re.compile(
    r"[Ww]atchdog|collective operation timeout|Timeout at NCCL work|[Hh]eartbeat|monitoredBarrier|[Bb]arrier timed out"
    r"|inconsistency, we are taking|Timed out waiting .{0,30}(?:recv|send|clients)|Termination timeout"
)
_OWN_CATEGORIES = frozenset(
    ("traceback_from_crash", "semantic_error", "model_diverged", "gpu_oom", "cpu_oom", "import_error")
)
_DEATH_CATEGORIES = frozenset(("invalid_memory_access",))
_CONNECTION_CATEGORIES = frozenset(("network_error", "traceback_from_crash", "semantic_error"))
SPEAKS_OF_PEERS = frozenset(("nccl_error", "mpi_runtime_failure"))
# After one of these, other processes lose a peer.
_LOSES_PEERS = frozenset((*SPEAKS_OF_PEERS, "core_dump", "invalid_memory_access"))
# Exceptions that follow from the end of other processes, or occur at the program's own end.
_TEARDOWN = re.compile(
    r"(?:EOFError|ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError|BrokenPipeError|KeyboardInterrupt"
    r"|InterruptedError|CancelledError|TimeoutError|Empty)(?::|$)|killed by signal: (?:Terminated|Aborted)"
    r"|exited unexpectedly|[Cc]onnection (?:timed|reset|refused|closed)|NCCL|nccl|[Gg]loo|TCPStore"
    r"|[Dd]efault process group|process group .{0,40}destroy"
)
# A connection that breaks, and the signs that its other end is a service outside the job.
_BROKEN_CONNECTION = re.compile(
    r"Connection(?:Reset|Refused|Aborted)Error|Connection (?:reset|refused|closed|aborted|timed out)|[Bb]roken pipe"
)
_OUTSIDE = re.compile(
    r"https?:|HTTP|[Uu][Rr][Ll]\b|host=|requests\.|urllib|aiohttp|httpx|botocore|\bs3|dial tcp|curl|Max retries"
)
# Complaints of a shell or a tool; scripts that watch or copy files print them next to training.
_TOOL_MESSAGE = re.compile(
    r"(?:\S{1,200}: line \d{1,6}: |(?:\S{0,80}/)?(?:-?bash|sh|zsh|cp|mv|mkdir|rm|tar|touch|rsync|ln|chmod|chown|ls|cat"
    r"|tee|scp|du|df|find|grep|stat|head|tail|nvidia-smi|curl|wget|git|ssh): )"
)
# Signatures of a process that ended itself. It may have printed the reason before.
_ABORT_SIGNATURES = frozenset(("mpi.abort", "cxx.terminate", "process.sigabrt", "mpi.other_error"))
_NOT_A_REASON = frozenset(
    (
        *("nccl_error", "mpi_runtime_failure", "mpi_error", "network_error", "node_failure"),
        *("core_dump", "invalid_memory_access", "traceback_from_crash", "cancelled"),
    )
)
_FABRIC_CATEGORIES = frozenset((*SPEAKS_OF_PEERS, "mpi_error", "network_error", "node_failure"))
# Maximum distance in rows between an abort and the message that explains it.
_REASON_WITHIN_ROWS = 40
# The text of the exception follows "terminate called"; another thread may print one row in between.
_WHAT_WITHIN_ROWS = 2
_WHAT = re.compile(r"\bwhat\(\):")
# Marks of less weight in these categories are summaries of what peers observed.
_SUMMARY_WEIGHT = 50
_ERROR_FILE = re.compile(r"stderr|\berr\b")
_TOOL_CATEGORIES = frozenset(("permission_error", "incorrect_inputs", "syntax_error"))
# Failures that a file which a tool did not find, or could not write, does not cause.
_NOT_OF_FILES = frozenset(("gpu_oom", "invalid_memory_access", "gpu_ecc_error", "gpu_hardware", "model_diverged"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """One log as it was read: its rows, marks and progress."""

    log: LogRows
    marks: tuple[LogMatch, ...]
    progress: LogProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstRows:
    """For each log (by index), the first row of each kind."""

    lost: dict[int, int]  # shows lost peers, or a process that aborted
    own: dict[int, int]  # shows a failure of the program itself
    own_ranks: dict[int, frozenset[int]]  # not rows: the ranks whose own failure a log shows
    trained: dict[int, int]  # shows training; only for logs with messages of tools
    unrelated: frozenset[int]  # not rows: the logs that name a failure which no tool's complaint explains


def find_root(views: Sequence[LogView]) -> LogMatch | None:
    """Return the mark from which the others follow; None if the program survived everything that could be a cause."""
    last_progress = [_find_last_progress_time(view, views) for view in views]
    unsurvived = [
        mark
        for view, end in zip(views, last_progress, strict=True)
        for mark in view.marks
        if _is_unsurvived_cause(view, mark, end)
    ]
    if not unsurvived:
        return None
    first_rows = _find_first_rows_of_kinds(unsurvived, views)
    strengths = [_get_strength_in(first_rows, mark) for mark in unsurvived]
    best = max(strengths)
    root = _find_first([mark for mark, found in zip(unsurvived, strengths, strict=True) if found == best], views)
    return _find_reason_for_abort(root, unsurvived) or root


def _find_first_rows_of_kinds(unsurvived: Sequence[LogMatch], views: Sequence[LogView]) -> _FirstRows:
    tools = {mark.log for mark in unsurvived if _is_of_tool(mark)}
    return _FirstRows(
        lost=_find_first_rows(mark for mark in unsurvived if mark.category in _LOSES_PEERS),
        own=_find_first_rows(mark for mark in unsurvived if _is_own(mark)),
        own_ranks=_list_failed_ranks(mark for mark in unsurvived if _is_own(mark)),
        trained={log: row for log in tools if (row := find_first_progress(views[log].log)) is not None},
        unrelated=frozenset(
            mark.log for mark in unsurvived if mark.category in _NOT_OF_FILES and mark.weight >= STRONG
        ),
    )


def _find_first_rows(marks: Iterable[LogMatch]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for mark in marks:
        rows[mark.log] = min(mark.row, rows.get(mark.log, mark.row))
    return rows


def _list_failed_ranks(marks: Iterable[LogMatch]) -> dict[int, frozenset[int]]:
    ranks: dict[int, frozenset[int]] = {}
    for mark in marks:
        if (rank := parse_rank(mark.text)) is not None:
            ranks[mark.log] = ranks.get(mark.log, frozenset()) | {rank}
    return ranks


def _has_lost_another_rank(first_rows: _FirstRows, log_match: LogMatch) -> bool:
    """Return True for a connection that broke, to nothing outside the job, while another rank failed by itself."""
    if log_match.category != "network_error" or not _BROKEN_CONNECTION.search(log_match.text):
        return False
    rank = parse_rank(log_match.text)
    others = first_rows.own_ranks.get(log_match.log, frozenset()) - {rank}
    return rank is not None and bool(others) and not _OUTSIDE.search(log_match.text)


def _is_of_tool(log_match: LogMatch) -> bool:
    return log_match.category in _TOOL_CATEGORIES and bool(_TOOL_MESSAGE.match(log_match.text))


def _is_own(log_match: LogMatch) -> bool:
    return (
        log_match.category not in _FABRIC_CATEGORIES
        and log_match.weight >= ORDINARY
        and not _TEARDOWN.search(log_match.text)
    )


def _find_reason_for_abort(root: LogMatch, unsurvived: Sequence[LogMatch]) -> LogMatch | None:
    """Return what the program printed about the reason for its abort: before it, or as `what():` after it."""
    told = next((mark for mark in unsurvived if _is_told_by(mark, root)), None)
    if told is not None:
        return told
    if root.signature not in _ABORT_SIGNATURES and not (
        root.category in SPEAKS_OF_PEERS and root.weight < _SUMMARY_WEIGHT
    ):
        return None
    near = (mark for mark in unsurvived if mark.log == root.log and 0 < root.row - mark.row <= _REASON_WITHIN_ROWS)
    return next((mark for mark in near if HINT < mark.weight < ORDINARY and mark.category not in _NOT_A_REASON), None)


def _is_told_by(mark: LogMatch, root: LogMatch) -> bool:
    """Return True if `mark` is the text of the C++ exception by which `root` says that the program ended."""
    return (
        root.signature == "cxx.terminate"
        and mark.log == root.log
        and 0 < mark.row - root.row <= _WHAT_WITHIN_ROWS
        and mark.weight > HINT
        and bool(_WHAT.search(mark.text))
    )


def _get_strength_in(first_rows: _FirstRows, log_match: LogMatch) -> int:
    """Return the strength of a mark in the context of the other marks of its log.

    After lost peers, or beside the own failure of another rank, a connection that breaks is only a hint, whatever
    weight its signature has. So is the complaint of a side script during training, or of a tool beside a failure of GPU
    memory. A failure that the fabric reports after the program's own failure is no stronger than that one.
    """
    if _is_of_tool(log_match) and first_rows.trained.get(log_match.log, log_match.row) < log_match.row:
        return get_strength(HINT)
    if _is_of_tool(log_match) and log_match.log in first_rows.unrelated:
        return get_strength(HINT)
    if (
        first_rows.lost.get(log_match.log, log_match.row) < log_match.row
        and log_match.category in _CONNECTION_CATEGORIES
        and _TEARDOWN.search(log_match.text)
    ):
        return get_strength(HINT)
    if _has_lost_another_rank(first_rows, log_match):
        return get_strength(HINT)
    named = log_match.category in SPEAKS_OF_PEERS and STRONG <= log_match.weight < DECISIVE
    if named and first_rows.own.get(log_match.log, log_match.row) < log_match.row:
        return get_strength(ORDINARY)
    return get_strength(log_match.weight)


def _is_unsurvived_cause(view: LogView, log_match: LogMatch, last_progress: Stamp | None) -> bool:
    """Return True if the mark shows a cause that the program did not survive."""
    return log_match.role == "root" and not (
        _has_survived(view, log_match) or _has_survived_elsewhere(view, log_match, last_progress)
    )


def _has_survived(view: LogView, log_match: LogMatch) -> bool:
    """Return True if the program went on. That other ranks went on for a while does not count."""
    if not view.progress.survived(log_match.row):
        return False
    rank = parse_rank(log_match.text)
    later = view.progress.rows[bisect_right(view.progress.rows, log_match.row) :]
    return rank is None or any(parse_rank(view.log.rows[row]) in (None, rank) for row in later)


def _has_survived_elsewhere(view: LogView, log_match: LogMatch, last_progress: Stamp | None) -> bool:
    """Return True if the program's other file shows progress after the mark's time.

    `last_progress`: time of the last progress there; None if there is no such file or time.
    """
    at = find_last_stamp(view.log.rows, log_match.row) if last_progress is not None else None
    return (
        at is not None
        and last_progress is not None
        and at.utc == last_progress.utc
        and at.seconds < last_progress.seconds
    )


def _find_last_progress_time(view: LogView, views: Sequence[LogView]) -> Stamp | None:
    """Return the time of the last but one progress line in the other file of the same program (stdout for stderr)."""
    for other in views:
        if other is view or _ERROR_FILE.sub("out", view.log.name) != _ERROR_FILE.sub("out", other.log.name):
            continue
        stamps = [stamp for row in other.progress.rows if (stamp := parse_stamp(other.log.rows[row]))]
        if len(stamps) >= SURVIVED_BY:
            return stamps[-SURVIVED_BY]
    return None


def get_strength(weight: int) -> int:
    """Return the class of a weight. Within one class the first failure wins."""
    return weight // 10


def _find_first(equals: list[LogMatch], views: Sequence[LogView]) -> LogMatch:
    """Return the first of the marks of one strength."""
    if len({mark.category for mark in equals}) == 1 and len({mark.log for mark in equals}) == 1:
        return equals[0]
    ordered = sorted(equals, key=lambda mark: (mark.log, mark.row))[:_MOST_CANDIDATES]
    stamps = {id(mark): find_last_stamp(views[mark.log].log.rows, mark.row) for mark in ordered}
    timed = is_comparable(list(stamps.values()))
    if timed:
        ordered.sort(key=lambda mark: (_get_seconds(stamps[id(mark)]), mark.log, mark.row))
    first = ordered[0]
    return next((mark for mark in ordered if _is_cause_of(mark, first, timed=timed)), first)


def _is_cause_of(log_match: LogMatch, first: LogMatch, *, timed: bool) -> bool:
    """Return True if `log_match`, although it comes later than `first`, is its cause."""
    if (
        first.category not in SPEAKS_OF_PEERS
        or log_match.category in SPEAKS_OF_PEERS
        or _TEARDOWN.search(log_match.text)
    ):
        return False
    if _PEER_LOST.search(first.text):
        return log_match.category in _OWN_CATEGORIES or log_match.category in _DEATH_CATEGORIES
    return not timed and log_match.category in _OWN_CATEGORIES and bool(_PEER_TIMEOUT.search(first.text))


def _get_seconds(stamp: Stamp | None) -> float:
    return stamp.seconds if stamp is not None else 0.0
