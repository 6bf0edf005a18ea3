"""Why the place that looks best now looks best, in sentences for `--explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.model.hostlist import fold
from slurmwrap.placement.node_ranking import is_on_one_socket, score

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.node import Node
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.placement.candidates import CandidateNodes, NodeSlot
    from slurmwrap.placement.locality import NodeChoice
    from slurmwrap.placement.planning_facts import PlanningFacts


def list_placement_remarks(
    field: CandidateNodes,
    choice: NodeChoice,
    avoided: frozenset[str],
    profile: ResourceProfile | None,
    outlook: PlanningFacts,
) -> tuple[str, ...]:
    """Clauses without a full stop; () where we know no node of the job. `avoided`: nodes that it does not get."""
    if not field.able:
        return ()
    found = [_describe_nodes(field, choice)]
    if field.reserved:
        found.append(f"{_format_names(field.reserved)} cannot be had: a reservation begins before the job would end")
    if len(choice.nodes) == 1:
        spot, group = next((s, group) for group in field.free for s in group if s.node.name == choice.nodes[0])
        found += _explain_spared_nodes(spot, group, avoided, field)
        found += _explain_choice(spot.node, min(spot.units, field.need.units), field, profile, outlook)
    return tuple(found)


def _describe_nodes(field: CandidateNodes, choice: NodeChoice) -> str:
    if not choice.nodes:
        return "no place has room for all of it now: it waits, and takes nothing before it can have everything"
    names = _format_names(choice.nodes)
    inside = f" in {choice.domain}" if choice.domain else ""
    if len(choice.nodes) == 1 and choice.broken:
        return f"best now: {names}{inside}, an idle node: none in use has room for it"
    if len(choice.nodes) == 1:
        return f"best now: {names}{inside}, {_explain_node(field, choice)}"
    spread = "" if choice.domain or not field.levels else "; no single network domain has room for it"
    return f"best now: {names}{inside}, the fewest nodes that hold it{spread}"


def _explain_node(field: CandidateNodes, choice: NodeChoice) -> str:
    node = next(s.node for group in field.free for s in group if s.node.name == choice.nodes[0])
    if node.gpus_free <= field.need.units * field.need.gpus:
        return "whose free GPUs it fills"
    return "a node in use, so that no idle one is broken"


def _explain_spared_nodes(
    chosen: NodeSlot, group: Sequence[NodeSlot], avoided: frozenset[str], field: CandidateNodes
) -> Iterator[str]:
    """Nodes with as many GPUs and as many free that only Slurm's Weight puts behind it."""
    node, units = chosen.node, field.need.units
    heavier = (s for s in group if s.node.weight > node.weight and s.units >= units and s.node.name not in avoided)
    alike = tuple(s.node.name for s in heavier if (s.node.gpus, s.node.gpus_free) == (node.gpus, node.gpus_free))
    if alike:
        yield f"{_format_names(alike)} would do too, but Slurm's Weight spares {'it' if len(alike) == 1 else 'them'}"


def _explain_choice(
    node: Node, units: int, field: CandidateNodes, profile: ResourceProfile | None, outlook: PlanningFacts
) -> Iterator[str]:
    """What made this node better than others with as many GPUs free."""
    gpus = field.need.on(units)[0]
    parts = score(node, units, field.need, profile, outlook.loads)
    if gpus > 1 and is_on_one_socket(node, gpus):
        yield f"its {gpus} GPUs can lie on one socket of {node.name}"
    if parts.sockets:
        yield f"its {gpus} GPUs would lie on two sockets of {node.name}; no node that ranks better is free"
    if parts.balance < -0.5:
        yield f"{node.name} has CPUs or memory that its light jobs left over"
    if node.name in outlook.loads and profile is not None:
        load = outlook.loads[node.name]
        busy = f"{load.cpus_busy:.0f} of its {node.cpus} CPUs"
        yield f"the jobs on {node.name} keep {busy} busy"


def _format_names(names: tuple[str, ...]) -> str:
    text = fold(names)
    return text if len(text) <= 60 else f"{len(names)} nodes"
