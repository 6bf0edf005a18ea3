"""What is decided about a failure: SlurmAction, RetryDecision, BlockedInput. Records only."""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass


class Verb(Enum):
    """scontrol's and scancel's verbs; BLOCK_INPUT is our own, recorded next to them and never sent to Slurm."""

    REQUEUE = "requeue"
    REQUEUEHOLD = "requeuehold"
    RELEASE = "release"
    HOLD = "hold"
    # One key per action: a bad key aborts the rest of a call (facts/slurm.md 4).
    UPDATE_JOB = "update job"
    CANCEL = "cancel"
    DRAIN = "drain"
    RESUME = "resume"
    # Target: path, key: "user" or "site", value: digest.
    BLOCK_INPUT = "block input"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAction:
    """`verb` on `target` (a job id, array task address "77_2", or a node name)."""

    verb: Verb
    target: str
    # For UPDATE_JOB: "ExcNodeList", "MinMemoryNode", "StartTime", ...
    key: str = ""
    # For UPDATE_JOB its value; for DRAIN the Reason.
    value: str = ""
    reason: str = ""


# What our Prolog gate refused: may replace slurmctld's own "Prolog error".
GATE_PREFIX = "slurmwrap: gate: "
# A drain whose Reason starts so is ours; no other is ever touched.
DRAIN_PREFIX = "slurmwrap:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """One intended action under one rule of config.RULES. Applied only when the rule's mode is `act`."""

    rule: str
    action: SlurmAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A count against a node, from kernel, NVML or Slurm evidence only."""

    node: str
    cause: str  # category
    conclusive: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRead:
    """One input, read by ourselves with its user's rights. "" where it could not be read, or nothing is wrong."""

    path: str
    digest: str = ""
    fault: str = ""
    # It is another user's, who also gave it its name: its fault is not of this user's making.
    theirs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """The outcome of one attempt. `decision` is the taxonomy's id after ledger and consent had their say."""

    decision: str
    reason: str
    actions: tuple[PlannedAction, ...] = ()
    strikes: tuple[Strike, ...] = ()
    blocked: tuple[BlockedInput, ...] = ()
    # Unix seconds when the next run may start, where the rule's mode is `act`.
    start_at: float | None = None


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
