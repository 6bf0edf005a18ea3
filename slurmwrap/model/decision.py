"""Decisions about a failure and their parts: SlurmAction, RetryDecision, BlockedInput, Strike."""

from __future__ import annotations

from enum import Enum

from slurmwrap.fast_dataclasses import dataclass


class Verb(Enum):
    """Verbs of scontrol and scancel.

    BLOCK_INPUT and MOVE are slurmwrap's own: they are recorded next to them and never sent to Slurm.
    """

    REQUEUE = "requeue"
    REQUEUEHOLD = "requeuehold"
    RELEASE = "release"
    HOLD = "hold"
    # One key per action, because one bad key aborts the rest of a call (facts/slurm.md 4).
    UPDATE_JOB = "update job"
    CANCEL = "cancel"
    # The key is the signal's name or number; the value is "batch" if only the batch shell gets it, else "".
    SIGNAL = "signal"
    DRAIN = "drain"
    RESUME = "resume"
    # Take a running job from its GPUs at a checkpoint. It is recorded too and never sent: what is sent follows it. The
    # key is the occasion (policy/move_choice.py, or "lease"), the value the job that starts instead.
    MOVE = "move"
    # The target is the path, the key is "user" or "site", the value is the digest.
    BLOCK_INPUT = "block input"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAction:
    """One change: `verb` on `target`, which is a job id, an array task ("77_2") or a node name."""

    verb: Verb
    target: str
    key: str = ""  # for UPDATE_JOB: "ExcNodeList", "MinMemoryNode", "StartTime", ...
    value: str = ""  # the value of the key for UPDATE_JOB, the Reason for DRAIN
    own: str = ""  # for UPDATE_JOB: what the key had before slurmwrap first changed it; "" if it is not recorded
    reason: str = ""
    figures: tuple[tuple[str, float], ...] = ()  # for MOVE: name and value (reconcile/move_running.py)


# Beginning of the Reason of a node that the Prolog gate refused. It may replace slurmctld's own "Prolog error".
GATE_PREFIX = "slurmwrap: gate: "
# Beginning of the Reason of slurmwrap's own drains. slurmwrap changes no other drain.
DRAIN_PREFIX = "slurmwrap:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAction:
    """One intended action under one rule of config.RULES. It is carried out only when the rule's mode is `act`."""

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
    """One input file that slurmwrap read with its user's rights.

    `digest` is "" if the file could not be read, `fault` is "" if it could not be read or nothing is wrong with it.
    """

    path: str
    digest: str = ""
    fault: str = ""
    # Another user owns the file and created its name, so this user did not cause the fault.
    theirs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """Outcome of one run.

    `decision` is a decision id of the taxonomy, after retry budget and the user's consent were applied to it.
    """

    decision: str
    reason: str
    actions: tuple[PlannedAction, ...] = ()
    strikes: tuple[Strike, ...] = ()
    blocked: tuple[BlockedInput, ...] = ()
    # Unix seconds at which the next run may start, if the rule's mode is `act`; None: at once.
    start_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedInput:
    """An input that made jobs fail. `digest` covers its size and its first and last MiB."""

    digest: str
    path: str
    uid: int  # user to whom the block applies; -1: the whole site
    reason: str
    at: float
    job_id: int = 0
