"""Rule `resume`: find drains of slurmwrap's whose node was rebooted since, and have these nodes checked.

In mode `advise` the action is recorded, and `slurmwrap nodes list` shows the command. In mode `act` a child process
runs that command, one at a time: it records the check, and lifts the drain only if the check passes.
"""

from __future__ import annotations

from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.policy.node_return import get_newest_checks, list_rebooted_drains
from slurmwrap.reconcile.reconcile_context import ReconcilePass


def resume_nodes(this_pass: ReconcilePass) -> None:
    """Advise or start the check of nodes that were rebooted since slurmwrap drained them."""
    services, book = this_pass.services, this_pass.book
    _finish_check(this_pass)
    mode = services.config.mode_of("resume")
    # Passes that publish have judged the nodes, and stored which ones are out of service.
    if services.scope.user is not None or mode == "observe" or not this_pass.summary.published:
        return
    removals = services.store.removals()
    if not any(one.ours for one in removals):
        return
    nodes = this_pass.snapshot().nodes
    boot_times = services.boot_times()
    checks = get_newest_checks(services.store.node_checks(since=min(boot_times.values(), default=this_pass.now)))
    for node in list_rebooted_drains(nodes, removals, boot_times, checks):
        acts = mode == "act" and services.start_node_check is not None
        if acts and book.node_check is not None:
            continue
        action = SlurmAction(verb=Verb.RESUME, target=node, reason="it was rebooted since slurmwrap drained it")
        number = services.store.intend(
            None, PlannedAction(rule="resume", action=action), "act" if acts else "advise", this_pass.now
        )
        if acts and services.start_node_check is not None:
            book.node_check = (number, services.start_node_check(node))


def _finish_check(this_pass: ReconcilePass) -> None:
    """Mark the action of a check that has ended as done."""
    book = this_pass.book
    if book.node_check is None:
        return
    number, get_exit_code = book.node_check
    code = get_exit_code()
    if code is None:
        return
    book.node_check = None
    this_pass.dirty = True
    error = "" if code == 0 else f"the check did not pass (exit code {code}): slurmwrap nodes show"
    this_pass.services.store.done(number, this_pass.services.clock.now(), error)
