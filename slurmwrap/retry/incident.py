"""Incident: one infrastructure cause that struck several jobs, users or nodes within minutes. Pure.

Philly's advice: observe related failures and act ahead. While an incident is open its retries wait, no node is blamed
for it, the report shows one line, and jobs about to start are warned.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """`scope` is what its failures share: "path /scratch", "switch leaf0", "host hub.example", or "cluster"."""

    incident_id: str  # of category, scope and beginning: the same incident always has the same
    category: str  # of taxonomy.py, domain IF or nccl_error
    scope: str
    began: float  # Unix seconds, end of the first failed run
    last: float  # end of the newest one
    over_at: float | None = None  # None: still open
    jobs: tuple[int, ...] = ()  # raw job ids
    users: int = 0
    nodes: tuple[str, ...] = ()
