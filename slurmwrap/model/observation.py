"""Observation: one dated fact with its observer. A module of its own, because every gsub call writes one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slurmwrap.fast_dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Context(Enum):
    """Part of slurmwrap that made an observation."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    EPILOG_SLURMCTLD = "epilog_slurmctld"
    SUBMIT = "submit"
    PRERUN = "prerun"
    # Use of the GPUs of a running job, from the sampler on its node.
    SAMPLES = "samples"
    # The reconciler's own query of Slurm.
    SLURM = "slurm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One file of the spool, with its seal verified. `nonce` is its key: to store it twice has no effect."""

    nonce: str
    cluster: str
    job_id: int
    context: Context
    at: float  # Unix seconds, the observer's clock
    node: str = ""  # "" for the controller and for users
    # Uid of the process that wrote it, as MUNGE reports it; -1 if the ownership of the directory is the proof.
    uid: int = -1
    facts: Mapping[str, Any] = field(default_factory=dict)  # docs/records.md lists the keys of each context


# The result of reading one spool file is an observation, or a rejected entry.
@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEntry:
    """A spool file that cannot be trusted, and why. It is kept separately and counted."""

    name: str
    reason: str
    uid: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolEntry:
    """One spool file that was read. `name` is passed to `Spool.discard` once it is stored."""

    name: str
    item: Observation | RejectedEntry
