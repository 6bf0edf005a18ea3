"""Gate: the permit and the known faults that are published for the Prolog gate on the nodes."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A conclusive fault of a node that is not repaired yet, for the Prolog gate there."""

    node: str
    cause: str
    since: float
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """State published for the Prolog gate. It refuses no job after `until` or if not `allowed`. Unix seconds."""

    at: float
    until: float
    allowed: bool
    faults: tuple[Fault, ...] = ()
