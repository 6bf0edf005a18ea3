"""Split log tails into rows of clean text with their line numbers, and find the tracebacks among them. Pure.

Everything is bounded: a window of the text's start and end, a length per row, a number of rows per traceback. So the
cost is linear in the window, whatever the log holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import LogTail

HEAD_CHARS = 32 * 1024
TAIL_CHARS = 256 * 1024
ROW_CAP = 2000
_KEEP_END = 500
_MAX_TRACEBACKS = 300
_MAX_FRAMES = 400
# Number of rows from other ranks that are tolerated inside a traceback.
_MOST_FOREIGN_ROWS = 30

HEADER = "Traceback (most recent call last)"
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b\][^\x07\x1b]{0,200}\x07")
# Prefixes of launchers and loggers: [rank0]:, 0: (srun -l), [1,3]<stderr>: (mpirun), [default0]:, a date, (Actor pid=1,
# ip=...), "worker-0 | ", "gpu12: " (pdsh, DeepSpeed).
_PREFIX = re.compile(
    r"(?:\[rank ?\d{1,5}\]: ?|\[?(?:[\w.@-]{0,60}@)?\d{1,5}(?:, ?\d{1,5})?\]?<std(?:err|out|diag)>:? ?"
    r"|\[default\d{1,5}\]: ?|\d{1,5}: "
    r"|\(\w[\w.-]{0,60}(?:\([\w.-]{0,60}\))?(?: rank=\d{1,5})?(?: pid=\d{1,9})?(?:, ip=[\d.:a-f]{3,40})?\) ?"
    r"|\[\d{4}-\d\d-\d\d[^\]]{0,40}\]:? ?|\d{4}-\d\d-\d\d[T ][\d:.,]{8,20}(?:Z|[+-]\d\d:?\d\d)? |\[\d{1,5}\] (?=\S)"
    r"|[A-Za-z][\w.-]{0,40} {0,12}\| |[a-z][a-z.-]{0,30}\d[a-z\d.-]{0,30}: )"
)
_RANK = re.compile(
    r"^(?:\[rank ?(\d{1,5})\]:|\[?(?:[\w.@-]{0,60}@)?\d{1,5}, ?(\d{1,5})\]?<std(?:err|out|diag)>|\[default(\d{1,5})\]:"
    r"|(\d{1,5}): |\[[Rr]ank (\d{1,5})\])"
)
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\([\w.]+\))?(?::\s?(.*))?$")
_EXCEPTION_ROW = re.compile(
    r"(?:[a-z_]\w{0,60}\.){0,8}([A-Z][A-Za-z0-9]{1,60}(?:Error|Exception))(?:: \S|\((?=['\"]).{1,2000}\)$|$)"
)
_EXCEPTION_NAME = re.compile(r"(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Empty|Iteration|Closed|Abort(?:ed)?)$")
_FRAME = re.compile(r'^\s*[│|]?\s*(?:> ?)?File "([^"\n]{1,400})", line \d+')
# The left edge of a report whose first row alone has the logger's prefix (AiiDA's " | [7|Calc|on_except]: ").
_BORDER = re.compile(r"\s{0,4}[|│] (?=\S)")
_RICH_FRAME = re.compile(r"^│ (/[^\s:]{1,300}):\d+ in ")
# Tracebacks at the end of an interpreter, where nothing waits for what raised them. The first expression matches the
# row before, the other one the outermost frame (CPython 3.8 to 3.14; multiprocessing/util.py, resource_tracker.py,
# logging/__init__.py).
_IGNORED = re.compile(r"Exception ignored (?:in|on|while|from)|Error in atexit\._run_exitfuncs|--- Logging error ---")
_AT_EXIT = re.compile(
    r"in __del__$|in _exitfunc$|in _run_exitfuncs$|in _exit_function$|in _run_finalizers$"
    r"|multiprocessing/resource_tracker\.py\", line \d+, in"
)
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python[\d.]+/")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRows:
    """One tail, split into rows. `text` is the rows joined by newlines."""

    name: str
    rows: tuple[str, ...]
    # Line number in the file, for each row.
    numbers: tuple[int, ...]
    text: str
    # The tail begins at the start of the file.
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """One Python traceback: rows `start` (its header) to `end` (the exception)."""

    start: int
    end: int
    # Last part of the exception's name, "KeyError".
    exception: str
    message: str
    frames: str  # the rows between, joined
    in_library: bool  # the innermost frame is in an installed package
    ignored: bool  # "Exception ignored in": Python itself says that it has no effect
    # Another exception was raised while this one was handled, or because of it.
    followed: bool = False


def read_log(tail: LogTail) -> LogRows:
    """Return the rows of one tail.

    Escape sequences are removed, carriage returns split rows, and the middle of a huge text is left out.
    """
    rows: list[str] = []
    numbers: list[int] = []
    for first, text in _select_window(tail):
        _append_rows(text, first, rows, numbers)
    return LogRows(
        name=tail.name, rows=tuple(rows), numbers=tuple(numbers), text="\n".join(rows), whole=_is_whole(tail)
    )


def cut_rows(log: LogRows, start: int) -> LogRows:
    """Return `log` from row `start` on."""
    rows = log.rows[start:]
    return LogRows(name=log.name, rows=rows, numbers=log.numbers[start:], text="\n".join(rows), whole=False)


def _is_whole(tail: LogTail) -> bool:
    return tail.first_line == 1 and not tail.truncated


def _select_window(tail: LogTail) -> Iterator[tuple[int, str]]:
    text = tail.text
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        yield tail.first_line, text
        return
    head, cut = text[:HEAD_CHARS], len(text) - TAIL_CHARS
    cut = text.find("\n", cut, cut + ROW_CAP) + 1 or cut
    yield tail.first_line, head[: head.rfind("\n") + 1 or HEAD_CHARS]
    yield tail.first_line + text.count("\n", 0, cut), text[cut:]


def remove_ansi(text: str) -> str:
    """Return text without the sequences that move a terminal's cursor, clear it, colour it, or set its title."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _append_rows(text: str, first: int, rows: list[str], numbers: list[int]) -> None:
    text = remove_ansi(text)
    lines = text.split("\n")
    if "\r" not in text and max(map(len, lines), default=0) <= ROW_CAP:
        rows.extend(lines)
        numbers.extend(range(first, first + len(lines)))
        return
    for offset, line in enumerate(lines):
        for part in line.split("\r") if "\r" in line else (line,):
            rows.append(part if len(part) <= ROW_CAP else f"{part[: ROW_CAP - _KEEP_END]} … {part[-_KEEP_END:]}")
            numbers.append(first + offset)


def clean_rows(text: str) -> list[str]:
    """Return all rows of a text without escape sequences; carriage returns split rows. Nothing is left out."""
    text = _ANSI.sub("", text) if "\x1b" in text else text
    return text.replace("\r", "\n").split("\n")


def strip_prefix(row: str) -> str:
    """Return `row` without the prefixes of launchers and loggers (at most four)."""
    for _ in range(4):
        found = _PREFIX.match(row)
        if not found or not found.end():
            break
        row = row[found.end() :]
    return row


def parse_rank(row: str) -> int | None:
    """Return the rank that a launcher wrote before the row; None if there is none."""
    found = _RANK.match(row)
    return int(next(group for group in found.groups() if group)) if found else None


def find_tracebacks(log: LogRows) -> tuple[Traceback, ...]:
    """Return all tracebacks of a log that end in an exception, in order; beyond 300 the middle ones are left out."""
    starts = find_rows_with(log, HEADER)
    if len(starts) > _MAX_TRACEBACKS:
        starts = starts[: _MAX_TRACEBACKS * 2 // 3] + starts[-_MAX_TRACEBACKS // 3 :]
    found = (_parse_traceback(log, start) for start in starts)
    return tuple(traceback for traceback in found if traceback is not None)


def find_rows_with(log: LogRows, literal: str) -> list[int]:
    """Return the rows that hold `literal`, which contains no newline. Other rows are not examined one by one."""
    found: list[int] = []
    # Newlines are counted from the end of the last row that was found.
    row = end = 0
    at = log.text.find(literal)
    while at >= 0:
        row += log.text.count("\n", end, at)
        found.append(row)
        end = log.text.find("\n", at)
        at = log.text.find(literal, end) if end >= 0 else -1
    return found


def _parse_traceback(log: LogRows, start: int) -> Traceback | None:
    prefix = log.rows[start].partition(HEADER)[0]
    border = _BORDER.match(prefix)
    frames: list[str] = []
    foreign = 0
    for index in range(start + 1, min(start + _MAX_FRAMES, len(log.rows))):
        row = log.rows[index]
        if HEADER in row and row.partition(HEADER)[0] == prefix:
            return None
        if prefix and row.startswith(prefix):
            body = row.removeprefix(prefix)
        else:
            body = row.removeprefix(border[0]) if border and row.startswith(border[0]) else strip_prefix(row)
        if _is_frame(body):
            frames.append(body)
        elif named := _parse_exception(body):
            if named[0] == "RayTaskError" and _is_continued(log, index):
                continue
            return _make_traceback(log, start, index, named, frames)
        else:
            foreign += 1
            if foreign > _MOST_FOREIGN_ROWS:
                return None
    return None


def _is_continued(log: LogRows, row: int) -> bool:
    """Return True if the remote traceback that Ray passes on follows; it has no header of its own."""
    return row + 1 < len(log.rows) and bool(_FRAME.match(strip_prefix(log.rows[row + 1])))


def _is_frame(body: str) -> bool:
    return not body.strip() or body[0] in " \t│╭╰┃>❱" or body.startswith(("File ", "[Previous line repeated"))


def find_bare_exceptions(log: LogRows) -> Iterator[tuple[int, str]]:
    """Yield the rows that look like the last line of a traceback, `module.SomeError: message`, and `SomeError`."""
    for index in sorted({*find_rows_with(log, "Error"), *find_rows_with(log, "Exception")}):
        if found := _EXCEPTION_ROW.match(strip_prefix(log.rows[index])):
            yield index, found[1]


def _parse_exception(body: str) -> tuple[str, str] | None:
    """Return type and message of the line that ends a traceback; None if it is not such a line."""
    found = _EXCEPTION.match(body)
    if not found:
        return None
    name = found[1].rpartition(".")[2]
    dotted = "." in found[1]
    if found[2] is None and not body.rstrip().endswith(":"):
        return (name, "") if _EXCEPTION_NAME.search(name) or (dotted and name[:1].isupper()) else None
    if _EXCEPTION_NAME.search(name) or name.lower().endswith("error") or (dotted and name[:1].isupper()):
        return name, found[2] or ""
    return None


def _make_traceback(log: LogRows, start: int, end: int, named: tuple[str, str], frames: list[str]) -> Traceback:
    before = "\n".join(log.rows[max(0, start - 2) : start])
    paths = [found[1] for found in map(_match_frame, frames) if found]
    return Traceback(
        start=start,
        end=end,
        exception=named[0],
        message=named[1],
        frames="\n".join(frames),
        in_library=(bool(paths) and bool(_LIBRARY.search(paths[-1]))) or _has_hidden_frames(log, end, frames),
        ignored=bool(_IGNORED.search(before)) or bool(frames and _AT_EXIT.search(frames[0])),
        followed=any("he above exception" in row for row in log.rows[end + 1 : end + 4]),
    )


def _has_hidden_frames(log: LogRows, end: int, frames: list[str]) -> bool:
    """Return True if the exception came out of JAX, which hides its frames and says so below (traceback_util.py)."""
    hidden = any("JAX has removed its internal frames" in row for row in log.rows[end + 1 : end + 4])
    return hidden and bool(frames) and not frames[-1].lstrip().startswith(("raise", "assert"))


def _match_frame(frame: str) -> re.Match[str] | None:
    return _FRAME.match(frame) or _RICH_FRAME.match(frame)
