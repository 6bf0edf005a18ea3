"""What reading a spool gives: an observation, or what was set aside and why. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.observation import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEntry:
    """A spool file that was not believed, and why. It is kept apart and counted."""

    name: str
    reason: str
    uid: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolEntry:
    """One spool file read; `name` is handed back to `Spool.discard` once it is stored."""

    name: str
    item: Observation | RejectedEntry
