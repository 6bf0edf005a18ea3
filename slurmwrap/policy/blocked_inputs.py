"""Blocked inputs, files that made jobs fail: to whom a block applies, how it is recorded and shown. Pure.

A log is its user's claim, so a block that rests on it applies to that user alone. A block applies to all users only
after two users failed because of the same content on two nodes, or when slurmwrap itself found a file broken that
another user owns. Otherwise anyone could block the original file: with a copy of it under a name that means another
format, or by damaging bytes that the digest does not cover. An administrator's block needs no failed job.
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import BlockedInput, PlannedAction, SlurmAction, Verb
from slurmwrap.policy.decision_context import DecisionContext

EVERYBODY = -1
# Beginning of the fault when slurmwrap could not read the file: that may be the mount's fault, not the content's.
_UNREAD = "cannot be read"
_SHOWN = 200


def format_block_reason(context: DecisionContext) -> str:
    """Return why the input is blamed, with the line that names it."""
    path, line = context.diagnosis.input_path, _format_root_line(context)
    if not path:
        return context.diagnosis.advice or "an input is missing or broken"
    if context.fault:
        return f"{path}: {context.fault}"
    return f"the log blames {path}" + (f" ({line})" if line else "")


def make_blocks(context: DecisionContext) -> tuple[BlockedInput, ...]:
    """Return the user's block, then the block for all users if there is a reason for one; () without a digest."""
    if not context.digest or context.record.uid < 0:
        return ()
    own = BlockedInput(
        digest=context.digest,
        path=context.diagnosis.input_path,
        uid=context.record.uid,
        reason=format_block_reason(context),
        at=context.now,
        job_id=context.record.attempt.job_id,
    )
    for_all = _find_site_reason(context)
    return (own, replace(own, uid=EVERYBODY, reason=for_all)) if for_all else (own,)


def make_block_actions(blocks: tuple[BlockedInput, ...]) -> tuple[PlannedAction, ...]:
    """Return the blocks as actions, to be recorded in the rule's mode. Slurm is never asked."""
    return tuple(PlannedAction(rule="block_input", action=make_block_action(block)) for block in blocks)


def make_block_action(blocked: BlockedInput) -> SlurmAction:
    """Return one block as an action."""
    whom = "site" if blocked.uid == EVERYBODY else "user"
    return SlurmAction(
        verb=Verb.BLOCK_INPUT, target=blocked.path, key=whom, value=blocked.digest, reason=blocked.reason[:_SHOWN]
    )


def make_published_block(blocked: BlockedInput) -> BlockedInput:
    """Return `blocked` as all users may see it.

    Path and log line belong to its user and are removed; the digest is meaningful only to those who can read the file.
    """
    if blocked.uid == EVERYBODY:
        return replace(blocked, path="")
    return replace(
        blocked, path="", reason=f"it made job {blocked.job_id} fail" if blocked.job_id else "blocked by its user"
    )


def list_blamed_nodes(context: DecisionContext) -> frozenset[str]:
    """Return the nodes on which this job failed because of the input.

    Only runs on a single node count: with several nodes it is unknown which one read the file.
    """
    present = context.record.nodes if len(context.record.nodes) == 1 else ()
    entity, category = context.diagnosis.input_path, context.diagnosis.category
    before = {e.node for e in context.ledger.entries if e.node and (e.category, e.entity) == (category, entity)}
    return frozenset((*present, *before))


def _find_site_reason(context: DecisionContext) -> str:
    """Return why the block applies to all users; "" if it does not. The text is public: it has no path or log line."""
    if not context.site:
        return ""
    if context.fault and context.theirs and not context.fault.startswith(_UNREAD):
        return f"slurmwrap's own check of it: {context.fault}"
    blamed_nodes = list_blamed_nodes(context)
    for other in context.also_failed:
        if other.uid != context.record.uid and any(a != b for a in blamed_nodes for b in other.nodes):
            return "jobs of several users failed because of it on several nodes"
    return ""


def _format_root_line(context: DecisionContext) -> str:
    root = next((c for c in context.diagnosis.evidence if c.role == "root"), None)
    if root is None:
        return ""
    text = root.text.strip()
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"{root.source}:{root.line}: {shown}" if root.line else f"{root.source}: {shown}"
