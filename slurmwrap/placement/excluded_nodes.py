"""Which nodes a job is kept away from: suspect and lemon ones, as far as the cap and the job itself allow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.action import DRAIN_PREFIX
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.placement.candidates import CandidateNodes, has_opaque_node_choice
from slurmwrap.sbatch.request import JobRequest, OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config import Config
    from slurmwrap.model.node import NodeHealth

_RANK = {"lemon": 0, "suspect": 1}  # the order in which the cap is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidance:
    """The wish, if there is anything to say, and all nodes that are avoided then: the user's own too."""

    wish: OptionChange | None = None
    nodes: frozenset[str] = frozenset()
    readable: bool = True  # the user's own list is one that we understand


def avoid(request: JobRequest, field: CandidateNodes, health: Sequence[NodeHealth], config: Config) -> Avoidance:
    """--exclude with the user's own nodes first; never one without which the job could not run at all."""
    own = request.value("exclude") or ""
    try:
        if "/" in own:
            raise ValueError("it names a file")
        theirs = frozenset(expand(own))
    except ValueError as error:
        reason = f"your list of nodes is kept as it is: {error}"
        return Avoidance(wish=OptionChange(option="exclude", value=None, reason=reason), readable=False)
    # its own --switches is firm to begin with: Slurm refuses a job that no switch could hold then
    settled = has_opaque_node_choice(request) or request.setting("switches") is not None
    doubtful = [] if settled else _list_doubtful_nodes(field, health, theirs)
    if not doubtful:
        return Avoidance(nodes=theirs)
    allowed = _count_allowed_exclusions(field, config)
    chosen = doubtful[:allowed]
    while chosen and not _is_enough(field, theirs, theirs | {entry.node for entry in chosen}):
        chosen = chosen[:-1]
    left_in = [_explain_first_kept(entry, capped=len(chosen) == allowed) for entry in doubtful[len(chosen) :][:1]]
    if not chosen:
        return Avoidance(wish=OptionChange(option="exclude", value=None, reason=left_in[0]), nodes=theirs)
    named = {entry.node for entry in chosen}
    value = ",".join(part for part in (own.strip(","), fold(n.name for n in field.members if n.name in named)) if part)
    reasons = [f"{_describe_entry(entry)}: {entry.reason}" for entry in chosen[:3]]
    more = [f"and {len(chosen) - 3} more"] if len(chosen) > 3 else []
    reason = "; ".join([*reasons, *more, *left_in])
    return Avoidance(wish=OptionChange(option="exclude", value=value, reason=reason), nodes=theirs | named)


def _explain_first_kept(entry: NodeHealth, *, capped: bool) -> str:
    """Why the first of those that are not avoided is not."""
    why = "placement.exclude_cap allows no more nodes to be avoided" if capped else "the job cannot do without it"
    return f"{_describe_entry(entry)}, but stays in: {why}"


def _describe_entry(entry: NodeHealth) -> str:
    return f"{entry.node} is {'a lemon' if entry.status == 'lemon' else entry.status}"


def _list_doubtful_nodes(
    field: CandidateNodes, health: Sequence[NodeHealth], settled: frozenset[str]
) -> list[NodeHealth]:
    """Worst first, then newest. A drained node needs no wish; what the user named themselves is theirs."""
    found = [h for h in health if h.status in _RANK and h.node in field.capacity and h.node not in settled]
    return sorted(found, key=lambda entry: (_RANK[entry.status], -entry.since, entry.node))


def _count_allowed_exclusions(field: CandidateNodes, config: Config) -> int:
    """The cap counts what we drained already. A small partition may lose one node, never its only one."""
    cap = config.placement.exclude_cap
    total = len(field.members)
    ours = sum("DRAIN" in node.flags and node.reason.startswith(DRAIN_PREFIX) for node in field.members)
    return max(0, max(int(cap * total), 1 if cap > 0 and total > 1 else 0) - ours)


def _is_enough(field: CandidateNodes, before: frozenset[str], after: frozenset[str]) -> bool:
    """With every node up, the job could still run in each partition where it could before."""
    could = 0
    for name in [partition.name for partition in field.partitions] or [""]:
        here = [node for node in field.able if not name or name in node.partitions]
        kept, left = ([n for n in here if n.name not in out] for out in (before, after))
        if field.holds(kept, field.fewest):
            if not field.holds(left, field.fewest):
                return False
            could += 1
    return could > 0
