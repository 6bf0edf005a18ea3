"""What the nodes' Prolog gate knows. Records only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A conclusive fault that stands on a node, for the Prolog gate there."""

    node: str
    cause: str
    since: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the Prolog gate knows; it refuses nothing after `until` or where it is not `allowed`. Unix seconds."""

    at: float
    until: float
    allowed: bool
    faults: tuple[Fault, ...] = ()
