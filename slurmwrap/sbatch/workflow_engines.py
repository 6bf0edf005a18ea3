"""Scripts whose program belongs to someone who waits for it: a workflow engine, a scheduler of workers, a user. Pure.

A pre-run of such a script is no trial of it. It would answer in the job's place, or miss what only the job's own number
leads to (each tried on a real Slurm, docs/callers.md). Anyone who asks for a pre-run by name gets one all the same.
"""

from __future__ import annotations

import re

_ENGINES: tuple[tuple[bytes, str], ...] = (
    (
        rb"-m submitit\.core\._submit\b",
        "submitit keeps the work under the number of its job, and a pre-run has another.",
    ),
    (
        rb"\bdistributed\.cli\.dask_worker\b|\bdask_cuda\b|\bdask[ -](?:cuda[ -])?worker\b",
        "A pre-run of a dask worker would join the scheduler in its place.",
    ),
    (
        rb"(?m)^nxf_launch\(\)",
        "Nextflow watches for files that the task's script leaves.",
    ),
    (
        rb"\bjupyter[ -](?:lab|notebook|server)\b|\bcode-server\b",
        "The script starts a server, which waits for its user.",
    ),
)
_COMMENT = rb"(?m)^[ \t]*#.*$"


def find_engine_reason(script: bytes) -> str | None:
    """Why there is no pre-run of this script, in one sentence; None for every other."""
    said = re.sub(_COMMENT, b"", script)
    return next((why for pattern, why in _ENGINES if re.search(pattern, said)), None)
