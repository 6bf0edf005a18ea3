"""Send messages about findings of the rule `early`, at once: one step of a pass, after the step that finds them."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.user_account import find_user_name
from slurmwrap.model.running_job import EarlyFinding
from slurmwrap.policy.finding_messages import (
    FRESH_S,
    SAME_ARRAY_S,
    FindingGroup,
    list_due,
    list_message_times,
    plan_messages,
)
from slurmwrap.reconcile.messenger import Messenger, OwnerMessage
from slurmwrap.reconcile.reconcile_context import ReconcilePass
from slurmwrap.report.finding_text import format_finding, format_finding_summary, format_public_finding

_HOUR_S = 3600.0


def notify_findings(this_pass: ReconcilePass) -> None:
    """Send the messages that are due. What cannot be sent now waits for a later pass."""
    messenger, store = this_pass.services.messenger, this_pass.services.store
    if messenger is None or not messenger.is_ready:
        return
    due = list_due(store.early_findings(since=this_pass.now - FRESH_S), lambda one: _is_running(one, this_pass))
    if not due:
        return
    earlier = store.early_findings(since=this_pass.now - SAME_ARRAY_S)
    if not messenger.knows_earlier:
        messenger.remember(list_message_times(earlier, this_pass.now - _HOUR_S))
    plan = plan_messages(due, earlier, messenger.get_capacity)
    _mark(plan.silent, this_pass)
    for group in plan.single:
        _send(messenger, _make_message(group, this_pass), group.findings, this_pass)
    for groups in plan.summaries:
        findings = [one for group in groups for one in group.findings]
        _send(messenger, _make_summary(groups), findings, this_pass)


def _is_running(one: EarlyFinding, this_pass: ReconcilePass) -> bool:
    """Return whether Slurm shows the run as not ended."""
    job = this_pass.words.first.get(one.attempt.job_id)
    return job is not None and not job.ended and job.submit_time == one.attempt.submit_time


def _send(
    messenger: Messenger, message: OwnerMessage, findings: Sequence[EarlyFinding], this_pass: ReconcilePass
) -> None:
    """Send one message. Its findings are marked before, so that a process killed in between never sends two."""
    if not messenger.is_ready:
        return
    _mark(findings, this_pass)
    if not messenger.send(message):
        _mark(findings, this_pass, notified=False)


def _mark(findings: Sequence[EarlyFinding], this_pass: ReconcilePass, *, notified: bool = True) -> None:
    if not findings:
        return
    with this_pass.services.store.transaction():
        for one in findings:
            this_pass.services.store.save_early_finding(replace(one, notified=notified))


def _make_message(group: FindingGroup, this_pass: ReconcilePass) -> OwnerMessage:
    job = this_pass.words.first.get(group.first.attempt.job_id)
    user = find_user_name(group.first.uid)
    own, public = format_finding(group, user, job.name if job else ""), format_public_finding(group, user)
    return OwnerMessage(
        uid=group.first.uid,
        subject=own.subject,
        text=own.text,
        public_subject=public.subject,
        public_text=public.text,
        facts=own.facts,
    )


def _make_summary(groups: Sequence[FindingGroup]) -> OwnerMessage:
    found = format_finding_summary(groups, find_user_name(groups[0].first.uid))
    return OwnerMessage(
        uid=groups[0].first.uid,
        subject=found.subject,
        text=found.text,
        public_subject=found.subject,
        public_text=found.text,
        facts=found.facts,
    )
