"""Finds the line of the user's own code that a Python traceback blames. Pure.

Of several tracebacks the first that is not a launcher's counts: torchrun's ChildFailedError follows the rank's own.
Where it hands on what a worker process met, the worker's own counts.
"""

from __future__ import annotations

import os
import re
import stat

from slurmwrap.fast_dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^(?:\[rank ?\d+\]: ?|\d+: |\[\w+\d+\]: ?)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.*))?$')
_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python[\d.]+/|^<|/slurmwrap/prerun/|/slurmwrap_\w+\.py$")
_INJECTED = re.compile(r"/slurmwrap_\w+\.py$")
_CAUGHT = re.compile(r"Caught \w+ in ")
_LAUNCHERS = ("ChildFailedError", "SignalException", "CalledProcessError", "ProcessRaisedException")
_ROWS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    code: str = ""

    @property
    def own(self) -> bool:
        """Not in an installed package or the standard library."""
        return not _LIBRARY.search(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracebackSummary:
    """What went wrong and where. `own` is the innermost frame in the user's code, or the innermost of all."""

    kind: str  # "RuntimeError", without its module
    message: str  # first line of it
    own: Frame
    frames: tuple[Frame, ...]

    @property
    def error(self) -> str:
        """As Python prints it."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


def blame(text: str) -> TracebackSummary | None:
    """None when `text` holds no traceback."""
    rows = [_PREFIX.sub("", row) for row in text.splitlines()[-_ROWS:]]
    found = [b for at, row in enumerate(rows) if row.strip().startswith(TRACEBACK) and (b := _traceback(rows, at))]
    found = _without_syntax_twins(found, rows)
    chosen = next((b for b in found if b.kind not in _LAUNCHERS), found[0] if found else None)
    return _in_worker(rows) or chosen if chosen is not None and _CAUGHT.match(chosen.message) else chosen


def _in_worker(rows: list[str]) -> TracebackSummary | None:
    """What a worker of a DataLoader or of DataParallel met: torch raises it again with its traceback as a message."""
    start = next((at for at, row in enumerate(rows) if row.strip().startswith(f"Original {TRACEBACK}")), None)
    return _traceback(rows, start) if start is not None else None


def _traceback(rows: list[str], start: int) -> TracebackSummary | None:
    indent = len(rows[start]) - len(rows[start].lstrip())
    frames: list[Frame] = []
    for at in range(start + 1, min(start + 2000, len(rows))):
        row = rows[at]
        if frame := _FRAME.match(row):
            code = rows[at + 1].strip() if at + 1 < len(rows) and not _FRAME.match(rows[at + 1]) else ""
            frames.append(Frame(file=frame[1], line=int(frame[2]), code=code))
        elif len(row) - len(row.lstrip()) <= indent and (error := _ERROR.match(row.strip())):
            return _blame(error[1], error[2] or "", frames)
    return None


def _blame(kind: str, message: str, frames: list[Frame]) -> TracebackSummary | None:
    if not frames:
        return None
    # Of `python -c` no frame is a file.
    outside = [f for f in frames if not _INJECTED.search(f.file)] or frames
    own = next((f for f in reversed(frames) if f.own), outside[-1])
    return TracebackSummary(kind=kind.rpartition(".")[2], message=message.strip()[:500], own=own, frames=tuple(frames))


def _without_syntax_twins(found: list[TracebackSummary], rows: list[str]) -> list[TracebackSummary]:
    """A SyntaxError of a script has no header: `  File "train.py", line 3` stands alone."""
    if found:
        return found
    for at, row in enumerate(rows):
        frame = _FRAME.match(row)
        if frame is None or frame[3]:
            continue
        for later in rows[at + 1 : at + 6]:
            error = _ERROR.match(later)
            if error and error[1] in ("SyntaxError", "IndentationError", "TabError"):
                own = Frame(file=frame[1], line=int(frame[2]), code=rows[at + 1].strip())
                return [TracebackSummary(kind=error[1], message=error[2] or "", own=own, frames=(own,))]
    return []


# Reads source files that a traceback names, as the user whose job it is.
_CAP_BYTES = 2_000_000


def read(path: str) -> str | None:
    """The text of a regular file of at most 2 MB; None where it cannot be had."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _CAP_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(_CAP_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
