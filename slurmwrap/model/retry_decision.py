"""RetryDecision: what follows from a diagnosis. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.action import SlurmAction
from slurmwrap.model.blocked_input import BlockedInput


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
