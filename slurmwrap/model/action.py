"""SlurmAction: a change of Slurm that is intended, as a value. Shown, stored, applied and ticked off one by one."""

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
