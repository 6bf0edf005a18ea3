"""The lines around the one that decided, so that a person sees it in its context. Pure.

For a Python traceback these are the innermost frame of the user's own code and the lines just before the exception;
otherwise the lines before and after. They are stored with the diagnosis, because the log may be deleted later.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from slurmwrap.diagnosis.log_rows import LogRows, find_tracebacks
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import Citation

BEFORE, AFTER = 3, 2  # number of lines before and after
CAP = 200  # maximum number of characters of each line
_FRAME = re.compile(r'File "([^"\n]{1,400})", line \d+')
_FRAME_WITH_LINE = re.compile(r'File "([^"\n]{1,400})", line (\d{1,9})')
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python[\d.]+/|^<")
_NEXT_BLOCK = re.compile(r"Traceback \(most recent|^During handling of|^The above exception|^[*=-]{8}")
_MOST_ROWS = 200  # number of rows of a traceback that are searched
LEFT_OUT = "..."


def add_context(citation: Citation, logs: Sequence[LogRows]) -> Citation:
    """Return `citation` with the lines around it, if it is the root and one of the logs has it; else unchanged."""
    if citation.role != "root" or not citation.line:
        return citation
    for log in logs:
        row = _find_row(citation, log) if log.name == citation.source else None
        if row is not None:
            return replace(citation, before=_list_rows_before(log, row), after=_list_rows_after(log, row))
    return citation


def find_own_place(citations: Sequence[Citation]) -> tuple[str, int] | None:
    """Return (file, line) of the user's code that raised the exception, by the root's context; None if unknown."""
    root = next((one for one in citations if one.role == "root"), None)
    for text in reversed(root.before if root is not None else ()):
        frame = _FRAME_WITH_LINE.search(text)
        if frame and not _LIBRARY.search(frame[1]):
            return frame[1], int(frame[2])
    return None


def _find_row(citation: Citation, log: LogRows) -> int | None:
    """Return the row of a citation. A line rewritten in place (a progress bar) has several rows of one number."""
    row = bisect_left(log.numbers, citation.line)
    while row < len(log.rows) and log.numbers[row] == citation.line:
        if citation.text in log.rows[row]:
            return row
        row += 1
    return None


def _list_rows_before(log: LogRows, row: int) -> tuple[str, ...]:
    block = next((one for one in find_tracebacks(log) if one.end == row), None)
    own = _find_own_frame(log, max(block.start, row - _MOST_ROWS), row) if block is not None else None
    if own is None or own >= row - BEFORE:
        return _format_rows([at for at in range(max(0, row - 12), row) if log.rows[at].strip()][-BEFORE:], log)
    return (*_format_rows([own, own + 1], log), LEFT_OUT, *_format_rows([row - 1], log))


def _find_own_frame(log: LogRows, start: int, end: int) -> int | None:
    for at in range(end - 1, start, -1):
        frame = _FRAME.search(log.rows[at])
        if frame and not _LIBRARY.search(frame[1]):
            return at
    return None


def _list_rows_after(log: LogRows, row: int) -> tuple[str, ...]:
    found: list[int] = []
    for at in range(row + 1, min(len(log.rows), row + 8)):
        if _NEXT_BLOCK.search(log.rows[at]) or len(found) == AFTER:
            break
        if log.rows[at].strip() and log.rows[at] != log.rows[row]:
            found.append(at)
    return _format_rows(found, log)


def _format_rows(rows: Sequence[int], log: LogRows) -> tuple[str, ...]:
    return tuple(log.rows[at].rstrip()[:CAP] for at in rows)
