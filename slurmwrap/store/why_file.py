"""Edge: in user mode, one text file next to the job's output that says why it failed. Standard library only.

    slurm-81.out -> slurm-81.out.why.txt

Written by the user themselves, with their own rights; a later run of the job replaces it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.model.gate_permit import Gate
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.protocols import Published
from slurmwrap.store.atomic_write import replace_file

SUFFIX = ".why.txt"
_KEPT = frozenset({"success", "cancelled"})

Text = Callable[[JobRun, Sequence[ActionRecord]], str]


class BesideOutput:
    """Implements protocols.Publisher for one user: nothing is published; a file next to their output says why."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def publish(self, published: Published) -> None:
        """A user publishes nothing."""

    def tell_gate(self, gate: Gate) -> None:
        """A user has no gate."""

    def end_pass(self) -> None:
        """Nothing was collected."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord]) -> None:
        """Writes the file, or takes an old one away when the job went well. Where that is refused it is given up:
        `slurmwrap why` prints the same, and one full or odd directory must not keep other jobs waiting."""
        path = _place(run.std_out)
        if path is None:
            return
        if run.diagnosis is None or run.diagnosis.category in _KEPT:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return
        with suppress(OSError):
            replace_file(path, self._text(run, actions))


def _place(std_out: str) -> Path | None:
    """None where there is no file next to which one could stand: a device, a pattern that Slurm left, no directory."""
    path = Path(std_out)
    if not std_out.startswith("/") or path.parts[:2] == ("/", "dev") or "%" in path.name:
        return None
    return path.with_name(path.name + SUFFIX) if os.access(path.parent, os.W_OK | os.X_OK) else None
