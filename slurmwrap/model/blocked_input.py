"""BlockedInput, apart from the other records of a decision: every gsub reads what is blocked."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedInput:
    """An input that made jobs fail; `digest` is of its size and first and last MiB."""

    digest: str
    path: str
    # Whom it binds; -1: the whole site.
    uid: int
    reason: str
    at: float
    job_id: int = 0
