"""Write, in user mode, a text file next to a job's output that explains its failure (adapter). Standard library only.

    slurm-81.out -> slurm-81.out.why.txt

It is written with the user's own rights; a later run of the job replaces it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.model.gate_permit import Gate
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.running_job import GpuUse
from slurmwrap.protocols import Published
from slurmwrap.store.atomic_write import replace_file

SUFFIX = ".why.txt"
_NO_FAILURE = frozenset({"success", "cancelled"})

Text = Callable[[JobRun, Sequence[ActionRecord]], str]


class WhyFilePublisher:
    """Implements protocols.Publisher for one user: publishes nothing, and writes a file next to each job's output."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def publish(self, published: Published) -> None:
        """Do nothing: a user publishes nothing."""

    def tell_gate(self, gate: Gate) -> None:
        """Do nothing: a user has no gate."""

    def end_pass(self) -> None:
        """Do nothing: each file is written at once."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord], gpu_use: Sequence[GpuUse] = ()) -> None:
        """Write the file, or delete an old one if the job succeeded.

        Errors are ignored: `slurmwrap why` prints the same, and one full or odd directory must not delay other jobs.
        """
        path = _find_path(run.std_out)
        if path is None:
            return
        if run.diagnosis is None or run.diagnosis.category in _NO_FAILURE:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return
        with suppress(OSError):
            replace_file(path, self._text(run, actions))


def _find_path(std_out: str) -> Path | None:
    """Return the path of the file; None for a device, a name with an unresolved pattern, or an unwritable directory."""
    path = Path(std_out)
    if not std_out.startswith("/") or path.parts[:2] == ("/", "dev") or "%" in path.name:
        return None
    return path.with_name(path.name + SUFFIX) if os.access(path.parent, os.W_OK | os.X_OK) else None
