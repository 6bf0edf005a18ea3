"""Print a job's output as it grows, for `slurmwrap watch --follow`: the log on stdout, the job's state on stderr."""

from __future__ import annotations

import codecs
import os
import re
import sys
from typing import BinaryIO

from slurmwrap.cli.watch.job_status import JobStatus, JobStatusReader, list_output_files, open_output
from slurmwrap.cli.watch.watch_output import ScreenStyle, format_log_line, make_change_key
from slurmwrap.diagnosis.log_rows import remove_ansi
from slurmwrap.escape import harmless
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.job_record import JobRecord
from slurmwrap.report.text_format import flat, row

# Of an output that is there already, so much of the end is printed: as `tail -f` does.
_FIRST_LINES, _FIRST_BYTES = 10, 64 * 1024
# Bytes that are printed of one file at a time, so that the others get their turn.
_MOST_BYTES = 1 << 20
# Of an array, the output of so many running tasks is followed.
_MOST_TASKS = 16
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:?]*)?$")


def make_printable(text: str, colour: bool) -> str:
    """Return text of a log for a terminal: its colours, if they are wanted, and no other control sequence.

    Line breaks, tabs and carriage returns stay: a progress bar rewrites its own line.
    """
    parts = _COLOUR.split(text)
    return "".join((part if colour else "") if at % 2 else _spell_out(part) for at, part in enumerate(parts))


def _spell_out(text: str) -> str:
    return "\r".join(harmless(one) for one in remove_ansi(text).replace("\b", "").split("\r"))


@dataclass(slots=True)
class _FollowedFile:
    """One output file. `position`: bytes that were printed; `rest`: an escape sequence that is not complete."""

    path: str
    position: int | None = None  # None: it was not found yet
    decoder: codecs.IncrementalDecoder | None = None  # None: nothing was read yet
    rest: str = ""

    def read(self, from_start: bool) -> bytes:
        """Return what is new. `from_start`: an output that is found for the first time is printed as a whole."""
        file = open_output(self.path)
        if file is None:
            return b""
        with file:
            size = os.fstat(file.fileno()).st_size
            if self.position is None:
                self.position = 0 if from_start else _find_last_lines(file, size)
            if size < self.position:
                # It was written anew, as by a requeued job.
                self.position = 0
            file.seek(self.position)
            found = file.read(_MOST_BYTES)
        self.position += len(found)
        return found

    def decode(self, found: bytes, colour: bool) -> str:
        """Return what is printed of new bytes on a terminal."""
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = self.rest + self.decoder.decode(found)
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished is not None else len(text)
        self.rest = text[end:][:16]
        return make_printable(text[:end], colour)


def _find_last_lines(file: BinaryIO, size: int) -> int:
    """Return where the last lines of a file begin."""
    begin = max(0, size - _FIRST_BYTES)
    file.seek(begin)
    tail = file.read(_FIRST_BYTES)
    at = len(tail) - tail.endswith(b"\n")
    for _ in range(_FIRST_LINES):
        at = tail.rfind(b"\n", 0, at)
        if at < 0:
            return begin
    return begin + at + 1


class LogFollower:
    """Prints the output of a job, or of an array's running tasks: what watch_command calls a screen."""

    # It is called once a second, not only when Slurm was asked.
    live = True

    def __init__(self, style: ScreenStyle, *, terminal: bool, colour: bool) -> None:
        """`terminal`: stdout is one, so that control sequences must not reach it; `colour`: colours may."""
        self._style, self._terminal, self._colour = style, terminal, colour
        self._files: dict[str, _FollowedFile] = {}
        self._followed: set[int] = set()  # raw ids of jobs whose output is read
        self._left_out: set[int] = set()  # raw ids of those that are finished, or too many
        self._last = ""  # the file that was printed last
        self._key: object = None
        self._started = False
        self._line_began = False

    def show(self, status: JobStatus) -> None:
        """Print what is new: of the state to stderr, of the output to stdout."""
        if not status.ended:
            self._print_state(status)
        records = self._select([w.record for w in status.rows])
        paths = dict.fromkeys(path for record in records for path in list_output_files(record))
        while paths:
            paths = {path: None for path in paths if self._print_new(path, status.array)}
        self._left_out |= {record.job_id for record in records if record.ended}
        self._followed -= self._left_out
        self._started = True
        self._print_state(status)

    def _print_state(self, status: JobStatus) -> None:
        key = make_change_key(status)
        if key != self._key:
            self._key = key
            self._say(format_log_line(status, self._style))

    def _select(self, records: list[JobRecord]) -> list[JobRecord]:
        """Return the jobs whose output is read: those that run, and those that have ended since the last call.

        If none runs in the first call, it is the one that ended last.
        """
        waits = {record.job_id for record in records if record.pending}
        # A job that was requeued is followed into its next run.
        self._left_out -= waits
        self._followed -= waits
        ended = sorted((one for one in records if one.ended), key=lambda one: one.end_time or 0)
        if not self._started:
            goes = any(not one.ended and not one.pending for one in records)
            self._left_out |= {one.job_id for one in (ended if goes or waits else ended[:-1])}
        for one in records:
            if one.job_id not in waits | self._left_out | self._followed:
                chosen = self._followed if len(self._followed) < _MOST_TASKS else self._left_out
                chosen.add(one.job_id)
        return sorted((one for one in records if one.job_id in self._followed), key=lambda one: one.array_task_id or 0)

    def _print_new(self, path: str, array: bool) -> bool:
        """Print what is new in a file, and return whether there may be more. A line names the file if it changes."""
        file = self._files.setdefault(path, _FollowedFile(path))
        found = file.read(self._started)
        if not found:
            return False
        if (array or len(self._files) > 1) and self._last != path:
            sys.stdout.write(("\n" if self._last else "") + f"==> {flat(path)} <==\n")
        self._last = path
        sys.stdout.flush()
        self._line_began = not found.endswith(b"\n")
        if self._terminal:
            sys.stdout.write(file.decode(found, self._colour))
        else:
            sys.stdout.buffer.write(found)
        sys.stdout.flush()
        return len(found) == _MOST_BYTES

    def done(self) -> None:
        """End the colours and the line that the output began."""
        if self._terminal:
            sys.stdout.write(("\033[0m" if self._colour else "") + ("\n" if self._line_began else ""))
            sys.stdout.flush()
        self._line_began = False

    def show_end(self, status: JobStatus, reader: JobStatusReader) -> None:
        """Print the cause of the end, if it is known, and the command that shows more."""
        self.show_causes(reader, status)
        if not status.completed:
            self._say(f"slurmwrap why {status.address} shows more")

    def show_causes(self, reader: JobStatusReader, ended: JobStatus | None = None) -> None:
        """Print why the last run failed and what follows, if it is known."""
        for label, text in reader.why(ended):
            self._say("\n".join(row(label, flat(text), self._style.columns if label else 10_000)))

    def _say(self, text: str) -> None:
        self.done()
        print(text, file=sys.stderr, flush=True)
