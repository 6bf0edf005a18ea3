"""What a running job wrote last, and when: its output is read as the user who watches.

A job is said to be silent when its last output is older than SILENT_S and older than SILENT_TIMES the usual gap between
its lines: the mean over this run, or the longest gap that was seen while watching, whichever is longer.
"""

from __future__ import annotations

import os
from stat import S_ISREG

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_record import JobRecord

SILENT_S = 600.0
SILENT_TIMES = 5
_TAIL = 4096  # bytes of the output that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a run. `at`: last written, or the start of the run where that is later, Unix seconds."""

    at: float
    last_line: str = ""
    mean_gap_s: float = 0.0  # between lines of this run, estimated from the size of its last ones; 0: too few
    longest_gap_s: float = 0.0  # seen while watching
    empty: bool = False  # nothing was written in this run

    @property
    def usual_gap_s(self) -> float:
        """Seconds that may pass between two lines; 0: not known."""
        return max(self.mean_gap_s, self.longest_gap_s)

    def silent_s(self, now: float) -> float | None:
        """For how long nothing came, where that is longer than usual; else None."""
        age = now - self.at
        return age if age > max(SILENT_S, SILENT_TIMES * self.usual_gap_s) else None


def read_output(record: JobRecord, before: Output | None = None) -> Output | None:
    """Of a running job, the newer of its two files; `before` is the look before. None: there is none to be read."""
    start = float(record.start_time or 0)
    found = [_read(path, start) for path in dict.fromkeys((record.std_out, record.std_err)) if path]
    newest = max((one for one in found if one is not None), key=lambda one: (not one.empty, one.at), default=None)
    if newest is None or before is None or before.at < start:
        return newest
    gap = 0.0 if before.empty else newest.at - before.at
    return replace(newest, longest_gap_s=max(before.longest_gap_s, gap))


def _read(path: str, start: float) -> Output | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not S_ISREG(status.st_mode):
            return None
        file.seek(max(0, status.st_size - _TAIL))
        text = file.read(_TAIL).decode("utf-8", "replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]  # a progress bar rewrites its own line
    said = [line for line in lines if line]
    count = status.st_size * len(said) / len(text.encode()) if text else 0.0
    written = max(status.st_mtime, start)
    return Output(
        at=written,
        last_line=said[-1] if said else "",
        mean_gap_s=(written - start) / count if start and count > 1 else 0.0,
        empty=not said or status.st_mtime < start,
    )
