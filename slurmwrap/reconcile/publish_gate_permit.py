"""What the Prolog gate on the nodes is told: which faults stand, and whether it may refuse anything at all."""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.model.gate_permit import Fault, Gate
from slurmwrap.model.run import StrikeRecord
from slurmwrap.policy.strikes import Fleet, drained_by_us
from slurmwrap.reconcile.reconcile_context import ReconcilePass

PERMIT_S = 300.0  # a reconciler that died closes the gate's eyes after so long
_RENEW_S = 100.0
# How long a fault is told. Where we drain, the drain soon stands for it, and who lifts that has looked at the node.
_STANDING_S, _UNTIL_DRAINED_S = 86400.0, 900.0


def renew_gate_permit(run: ReconcilePass) -> None:
    """Renews the permit in time. Without the rule in `advise` or `act` nothing is told, and no permit is given."""
    publisher, mode = run.edges.publisher, run.edges.config.mode_of("gate")
    if publisher is None or run.edges.scope.user is not None or mode == "observe":
        return
    left = run.book.gate_until - run.now
    if _RENEW_S < left <= PERMIT_S and not run.dirty:  # more is left only where the clock was put back
        return
    fleet = Fleet(nodes=run.snapshot().nodes)
    out = sum(drained_by_us(node) for node in fleet.nodes)
    allowed = mode == "act" and out < fleet.allowance(run.edges.config.placement.exclude_cap)
    standing = _UNTIL_DRAINED_S if run.edges.config.mode_of("drain") == "act" else _STANDING_S
    mended = {repair.node: repair.at for repair in run.edges.store.repairs(since=run.now - standing)}
    faults = _list_newest_faults(
        s for s in run.edges.store.strikes(since=run.now - standing) if s.at > mended.get(s.node, 0.0)
    )
    publisher.tell_gate(Gate(at=run.now, until=run.now + PERMIT_S, allowed=allowed, faults=faults))
    run.book.gate_until = run.now + PERMIT_S


def _list_newest_faults(strikes: Iterable[StrikeRecord]) -> tuple[Fault, ...]:
    """Of each node the newest conclusive fault, for all to read: a kernel line would name the user's program."""
    latest = {strike.node: strike for strike in strikes if strike.conclusive}
    return tuple(Fault(node=s.node, cause=s.cause, since=s.at) for _, s in sorted(latest.items()))
