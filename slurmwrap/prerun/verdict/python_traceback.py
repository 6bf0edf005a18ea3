"""Find the line of the user's own code that a Python traceback blames. Pure but for `read`.

If there are several tracebacks, the first one that is not a launcher's counts: torchrun's ChildFailedError follows
the rank's own. If a traceback passes on an error of a worker process, the worker's own traceback counts.
"""

from __future__ import annotations

import os
import re
import stat

from slurmwrap.fast_dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last)"
_PREFIX = re.compile(r"^(?:\[rank ?\d+\]: ?|\d+: |\[\w+\d+\]: ?)")
# A progress bar, which does not end its line, may precede the header. "Original" precedes that of a worker process.
_HEADER = re.compile(r"^(\s*)(?!Original )(?:\S.{0,400})?Traceback \(most recent call last\)")
_BLANKS = re.compile(r"(\s*)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)(?:, in (.*))?$')
_ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python[\d.]+/|^<|/slurmwrap/prerun/|/slurmwrap_\w+\.py$")
_INJECTED = re.compile(r"/slurmwrap_\w+\.py$")
_CAUGHT = re.compile(r"Caught \w+ in ")
_LAUNCHERS = ("ChildFailedError", "SignalException", "CalledProcessError", "ProcessRaisedException")
_MAX_LINES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a traceback."""

    file: str
    line: int
    code: str = ""

    @property
    def own(self) -> bool:
        """Whether the file is neither in an installed package nor in the standard library."""
        return not _LIBRARY.search(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracebackSummary:
    """The error and its place. `own` is the innermost frame in the user's code, or else the innermost of all."""

    # The exception's name without its module: "RuntimeError".
    kind: str
    # The first line of the message.
    message: str
    own: Frame
    frames: tuple[Frame, ...]

    @property
    def error(self) -> str:
        """The error as Python prints it."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


def blame(text: str) -> TracebackSummary | None:
    """Return the traceback that explains the failure; None if `text` contains none."""
    rows = [_PREFIX.sub("", row) for row in text.splitlines()[-_MAX_LINES:]]
    found = [b for at, row in enumerate(rows) if _HEADER.match(row) and (b := _parse_traceback(rows, at))]
    found = _fall_back_to_syntax_error(found, rows)
    chosen = next((b for b in found if b.kind not in _LAUNCHERS), found[0] if found else None)
    return _find_worker_traceback(rows) or chosen if chosen is not None and _CAUGHT.match(chosen.message) else chosen


def _find_worker_traceback(rows: list[str]) -> TracebackSummary | None:
    """Return the error of a DataLoader or DataParallel worker: torch re-raises it with its traceback as the message."""
    start = next((at for at, row in enumerate(rows) if row.strip().startswith(f"Original {TRACEBACK}")), None)
    return _parse_traceback(rows, start) if start is not None else None


def _parse_traceback(rows: list[str], start: int) -> TracebackSummary | None:
    # The error line follows the frames at the indentation of the header or less. 2000 lines bound a broken traceback.
    header = _HEADER.match(rows[start]) or _BLANKS.match(rows[start])
    indent = len(header[1]) if header is not None else 0
    frames: list[Frame] = []
    for at in range(start + 1, min(start + 2000, len(rows))):
        row = rows[at]
        if frame := _FRAME.match(row):
            code = rows[at + 1].strip() if at + 1 < len(rows) and not _FRAME.match(rows[at + 1]) else ""
            frames.append(Frame(file=frame[1], line=int(frame[2]), code=code))
        elif len(row) - len(row.lstrip()) <= indent and (error := _ERROR.match(row.strip())):
            return _summarize(error[1], error[2] or "", frames)
    return None


def _summarize(kind: str, message: str, frames: list[Frame]) -> TracebackSummary | None:
    if not frames:
        return None
    # For `python -c` no frame is in a file, so fall back to all frames.
    outside = [f for f in frames if not _INJECTED.search(f.file)] or frames
    own = next((f for f in reversed(frames) if f.own), outside[-1])
    return TracebackSummary(kind=kind.rpartition(".")[2], message=message.strip()[:500], own=own, frames=tuple(frames))


def _fall_back_to_syntax_error(found: list[TracebackSummary], rows: list[str]) -> list[TracebackSummary]:
    """Return `found`, or else a SyntaxError of the script, which has no header: only `  File "train.py", line 3`."""
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


_STACK_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')


def find_waiting_place(text: str) -> str:
    """Return "file:line (function)" of the user's own code where a main thread is; "" if no stack shows any.

    `text`: output with stacks as faulthandler prints them: the innermost call first, the main thread last.
    """
    found, place = "", ""
    for row in (*text.splitlines(), ""):
        if frame := _STACK_FRAME.match(row):
            if not place and Frame(file=frame[1], line=int(frame[2])).own:
                place = f"{frame[1]}:{frame[2]} ({frame[3]})"
            continue
        found, place = place or found, ""
    return found


# Largest source file that is read, in bytes. Files are read as the user whose job it is.
_CAP_BYTES = 2_000_000


def read(path: str) -> str | None:
    """Return the text of a regular file of at most 2 MB; None if it cannot be read."""
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
