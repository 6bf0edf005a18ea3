"""Inputs that made jobs fail: whom a block binds, and how it is recorded and reported. Pure.

A log is its user's claim and binds that user alone. Everybody is bound only after two users failed of the same
content on two nodes, or when our own read of a file that is not their found it broken: anyone who copies a sound file
under a name of another format, or spoils what the digest does not cover, would block the original. An administrator's
block needs no job.
"""

from __future__ import annotations

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import BlockedInput, PlannedAction, SlurmAction, Verb
from slurmwrap.policy.decision_context import DecisionContext

EVERYBODY = -1
# An I/O error of slurmwrap's may be a mount's, not the content's.
_UNREAD = "cannot be read"
_SHOWN = 200


def format_block_reason(context: DecisionContext) -> str:
    """Why the input is blamed, with the line that names it."""
    path, line = context.diagnosis.input_path, _format_root_line(context)
    if not path:
        return context.diagnosis.advice or "an input is missing or broken"
    if context.fault:
        return f"{path}: {context.fault}"
    return f"the log blames {path}" + (f" ({line})" if line else "")


def make_blocks(context: DecisionContext) -> tuple[BlockedInput, ...]:
    """The owner's block, and everybody's where there is more than one user's claim; () where nothing can be blocked."""
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
    """What is recorded of the blocks under the rule's mode. Slurm is never asked."""
    return tuple(PlannedAction(rule="block_input", action=make_block_action(block)) for block in blocks)


def make_block_action(blocked: BlockedInput) -> SlurmAction:
    """One block as a recorded change."""
    whom = "site" if blocked.uid == EVERYBODY else "user"
    return SlurmAction(
        verb=Verb.BLOCK_INPUT, target=blocked.path, key=whom, value=blocked.digest, reason=blocked.reason[:_SHOWN]
    )


def make_published_block(blocked: BlockedInput) -> BlockedInput:
    """`blocked` as everybody may see it: a path and a log line are its user's; the digest means something only to
    those who can read the file."""
    if blocked.uid == EVERYBODY:
        return replace(blocked, path="")
    return replace(
        blocked, path="", reason=f"it made job {blocked.job_id} fail" if blocked.job_id else "blocked by its user"
    )


def list_blamed_nodes(context: DecisionContext) -> frozenset[str]:
    """Nodes on which this job failed of the input: single ones only, of several no one knows which one read it."""
    here = context.record.nodes if len(context.record.nodes) == 1 else ()
    entity, category = context.diagnosis.input_path, context.diagnosis.category
    before = {e.node for e in context.ledger.entries if e.node and (e.category, e.entity) == (category, entity)}
    return frozenset((*here, *before))


def _find_site_reason(context: DecisionContext) -> str:
    """Why everybody is bound; "" when only the owner is. Without path or log line: everybody sees it."""
    if not context.site:
        return ""
    if context.fault and context.theirs and not context.fault.startswith(_UNREAD):
        return f"our own read of it: {context.fault}"
    here = list_blamed_nodes(context)
    for other in context.also_failed:
        if other.uid != context.record.uid and any(a != b for a in here for b in other.nodes):
            return "jobs of several users failed of it on several nodes"
    return ""


def _format_root_line(context: DecisionContext) -> str:
    root = next((c for c in context.diagnosis.evidence if c.role == "root"), None)
    if root is None:
        return ""
    text = root.text.strip()
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"{root.source}:{root.line}: {shown}" if root.line else f"{root.source}: {shown}"
