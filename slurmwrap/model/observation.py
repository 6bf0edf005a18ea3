"""Observation: one dated fact with who saw it. Apart from Evidence: every gsub leaves one. Records only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurmwrap.fast_dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Context(Enum):
    """Which part of slurmwrap's made an observation."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    EPILOG_SLURMCTLD = "epilog_slurmctld"
    SUBMIT = "submit"
    PRERUN = "prerun"
    # The reconciler's own read of Slurm.
    SLURM = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One file of the spool, unsealed. `nonce` is its key: ingesting it twice does nothing."""

    nonce: str
    cluster: str
    job_id: int
    context: Context
    at: float  # Unix seconds, the observer's clock
    node: str = ""  # "" for the controller and for users
    uid: int = -1  # of the encoding process, by MUNGE; -1 when the seal is directory ownership
    facts: Mapping[str, Any] = field(default_factory=dict)  # see docs/records.md for the keys of each context


# What reading a spool gives: an observation, or what was rejected and why.
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
