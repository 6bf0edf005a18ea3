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


def format_block_reason(case: DecisionContext) -> str:
    """Why the input is blamed, with the line that names it."""
    path, line = case.diagnosis.input_path, _format_root_line(case)
    if not path:
        return case.diagnosis.advice or "an input is missing or broken"
    if case.fault:
        return f"{path}: {case.fault}"
    return f"the log blames {path}" + (f" ({line})" if line else "")


def make_blocks(case: DecisionContext) -> tuple[BlockedInput, ...]:
    """The owner's block, and everybody's where there is more than one user's claim; () where nothing can be blocked."""
    if not case.digest or case.record.uid < 0:
        return ()
    own = BlockedInput(
        digest=case.digest,
        path=case.diagnosis.input_path,
        uid=case.record.uid,
        reason=format_block_reason(case),
        at=case.now,
        job_id=case.record.attempt.job_id,
    )
    for_all = _find_site_reason(case)
    return (own, replace(own, uid=EVERYBODY, reason=for_all)) if for_all else (own,)


def make_block_actions(blocks: tuple[BlockedInput, ...]) -> tuple[PlannedAction, ...]:
    """What is recorded of the blocks under the rule's mode. Slurm is never asked."""
    return tuple(PlannedAction(rule="block_input", action=make_block_action(block)) for block in blocks)


def make_block_action(block: BlockedInput) -> SlurmAction:
    """One block as a recorded change."""
    whom = "site" if block.uid == EVERYBODY else "user"
    return SlurmAction(
        verb=Verb.BLOCK_INPUT, target=block.path, key=whom, value=block.digest, reason=block.reason[:_SHOWN]
    )


def make_published_block(block: BlockedInput) -> BlockedInput:
    """`block` as everybody may see it: a path and a log line are its user's; the digest means something only to
    those who can read the file."""
    if block.uid == EVERYBODY:
        return replace(block, path="")
    return replace(block, path="", reason=f"it made job {block.job_id} fail" if block.job_id else "blocked by its user")


def list_blamed_nodes(case: DecisionContext) -> frozenset[str]:
    """Nodes on which this job failed of the input: single ones only, of several no one knows which one read it."""
    here = case.record.nodes if len(case.record.nodes) == 1 else ()
    entity, category = case.diagnosis.input_path, case.diagnosis.category
    before = {e.node for e in case.ledger.entries if e.node and (e.category, e.entity) == (category, entity)}
    return frozenset((*here, *before))


def _find_site_reason(case: DecisionContext) -> str:
    """Why everybody is bound; "" when only the owner is. Without path or log line: everybody sees it."""
    if not case.site:
        return ""
    if case.fault and case.theirs and not case.fault.startswith(_UNREAD):
        return f"our own read of it: {case.fault}"
    here = list_blamed_nodes(case)
    for other in case.also_failed:
        if other.uid != case.record.uid and any(a != b for a in here for b in other.nodes):
            return "jobs of several users failed of it on several nodes"
    return ""


def _format_root_line(case: DecisionContext) -> str:
    root = next((c for c in case.diagnosis.evidence if c.role == "root"), None)
    if root is None:
        return ""
    text = root.text.strip()
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"{root.source}:{root.line}: {shown}" if root.line else f"{root.source}: {shown}"
