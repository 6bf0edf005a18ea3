"""What a pass learns about nodes from Slurm, and the health that is published of them."""

from __future__ import annotations

from slurmwrap.model.action import Verb
from slurmwrap.model.node import NodeHealth
from slurmwrap.policy.node_history import find_changed_removals, list_lifted_drains
from slurmwrap.policy.strikes import health, out_of_service
from slurmwrap.reconcile.reconcile_context import ReconcilePass


def judge_nodes(run: ReconcilePass) -> tuple[NodeHealth, ...]:
    """Notes which nodes went out of service or came back, then judges all of them by their history."""
    _store_removals(run)
    config = run.edges.config
    history = run.edges.store.node_history(run.now - config.nodes.window_days * 86400)
    return health(history, run.snapshot().nodes, config, now=run.now)


def _store_removals(run: ReconcilePass) -> None:
    store, nodes = run.edges.store, run.snapshot().nodes
    known = store.removals()
    changed = find_changed_removals(known, out_of_service(nodes), (node.name for node in nodes), now=run.now)
    if not changed:
        return
    with store.transaction():
        for removal in changed:
            store.save_removal(removal)
        for repair in list_lifted_drains(changed, _list_resumed_nodes(run) if any(one.ours for one in changed) else {}):
            store.add_repair(repair)


def _list_resumed_nodes(run: ReconcilePass) -> dict[str, float]:
    """When we lifted the drain of a node ourselves, or an administrator by our command; the last time of each."""
    actions = run.edges.store.actions()
    return {a.target: a.done_at for a in actions if a.verb == Verb.RESUME.value and a.done_at and not a.error}
