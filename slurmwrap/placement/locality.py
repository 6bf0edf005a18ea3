"""Choose nodes by locality: fewest servers within one network domain (Philly's rule), and how long to wait for it.
Pure.

Domains are ranked first, then the servers in them. Jeon et al., ATC 2019: big jobs get the emptiest domain, small ones
fill fragments. The criteria, in order:

1. the closest level of the network that holds the whole job; a job on one server needs no network
2. fewest servers
3. fewest idle nodes that are only partly used: a job that leaves GPUs free shares a node with other jobs if possible
4. Slurm's own Weight of a node, by which the site chooses what to spare
5. for several servers: the domain with most free GPUs; for one: the node with the best score (node_ranking.py), then
   the domain with fewest free GPUs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.candidates import CandidateNodes, NodeSlot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.placement.resource_units import ResourceUnits


# Rank of a node for a number of units: (leaves an idle node partly used, weight, score).
Rank = Callable[[NodeSlot, int], tuple[bool, int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """The nodes that are best now, all that the job needs; empty if the job does not fit now."""

    nodes: tuple[str, ...] = ()  # node names in Slurm's order
    # The domain that holds all nodes; None if they lie in several or no network is known.
    domain: str | None = None
    level: int | None = None  # level of that domain
    # Number of idle nodes that the job would use only partly.
    broken: int = 0
    spots: int = 0  # number of nodes with free capacity


def choose(candidates: CandidateNodes, avoided: frozenset[str], rank: Rank) -> NodeChoice:
    """Return the best nodes now in any of the job's partitions."""
    found = []
    for group in candidates.free:
        slots = [slot for slot in group if slot.node.name not in avoided]
        choice = _choose_one_server(slots, candidates, rank) or _choose_servers(slots, candidates, rank)
        if choice is not None:
            found.append(choice)
    return min(found, key=_rank_closeness, default=NodeChoice())


def _rank_closeness(choice: NodeChoice) -> tuple[int, bool, int, int]:
    return len(choice.nodes), choice.domain is None, choice.level or 0, choice.broken


def is_whole_node_broken(slot: NodeSlot, need: ResourceUnits, units: int) -> bool:
    """Return whether `units` units would be the first on an idle node and leave some of its GPUs free."""
    return slot.node.gpus_used == 0 and units * need.gpus < slot.node.gpus


def _choose_one_server(slots: Sequence[NodeSlot], candidates: CandidateNodes, rank: Rank) -> NodeChoice | None:
    """Return the best node that holds the whole job now; None if the job needs several nodes or none holds it."""
    need = candidates.need
    if need.least_nodes > 1:
        return None
    holding = [slot for slot in slots if slot.units >= need.units]
    if not holding:
        return None
    # The score is costly: compute it only for the nodes that are best by the cheap criteria.
    coarse = [(is_whole_node_broken(slot, need, need.units), slot.node.weight) for slot in holding]
    least = min(coarse)
    ranked = [(rank(s, need.units), s) for s, one in zip(holding, coarse, strict=True) if one == least]
    best = min(one for one, _ in ranked)
    equal = [slot for one, slot in ranked if one == best]
    leaf_of = candidates.levels[0] if candidates.levels else {}
    free = _free_gpus(slots, leaf_of) if len(equal) > 1 else {}
    # Of equal nodes, take one in the domain with fewest free GPUs, so that other domains stay free for large jobs; then
    # the first in Slurm's order.
    chosen = min(equal, key=lambda slot: free.get(leaf_of.get(slot.node.name, ""), 0))
    domain = leaf_of.get(chosen.node.name)
    return NodeChoice(
        nodes=(chosen.node.name,),
        domain=domain,
        level=None if domain is None else 0,
        broken=int(best[0]),
        spots=len(slots),
    )


def _choose_servers(slots: Sequence[NodeSlot], candidates: CandidateNodes, rank: Rank) -> NodeChoice | None:
    """Return the best choice of several servers: the closest level first, then anywhere."""
    if sum(slot.units for slot in slots) < candidates.need.units:
        return None
    for level, domain_of in enumerate(candidates.levels):
        found = _choose_in_domains(slots, domain_of, level, candidates.need, rank)
        if found is not None:
            return found
    return _choose_within(slots, candidates.need, rank, domain=None, level=None)


def _choose_in_domains(
    slots: Sequence[NodeSlot], domain_of: Mapping[str, str], level: int, units: ResourceUnits, rank: Rank
) -> NodeChoice | None:
    """Return the best choice within one domain of this level; None if no domain holds the job now.

    Best: fewest servers, then fewest idle nodes that are only partly used, then the domain with most free GPUs.
    """
    domains: dict[str, list[NodeSlot]] = {}
    for slot in slots:
        if (name := domain_of.get(slot.node.name)) is not None:
            domains.setdefault(name, []).append(slot)
    best: tuple[tuple[int, int, int], NodeChoice] | None = None
    for name, members in domains.items():
        if len(members) < units.least_nodes or sum(slot.units for slot in members) < units.units:
            continue
        choice = _choose_within(members, units, rank, domain=name, level=level)
        if choice is not None:
            key = (len(choice.nodes), choice.broken, -sum(slot.node.gpus_free for slot in members))
            best = (key, choice) if best is None or key < best[0] else best
    return None if best is None else best[1]


def _choose_within(
    slots: Sequence[NodeSlot], need: ResourceUnits, rank: Rank, *, domain: str | None, level: int | None
) -> NodeChoice | None:
    """Return the fewest of `slots` that hold the job.

    The last node takes the remaining units; it is the one that suits these best.
    """
    # The node's position in Slurm's list decides between equals, and is the order of the result.
    ranked = sorted(range(len(slots)), key=lambda at: (-slots[at].units, rank(slots[at], slots[at].units), at))
    taken: list[int] = []
    units = 0
    while units < need.units or len(taken) < need.least_nodes:
        if len(taken) == len(ranked):
            return None
        units += slots[ranked[len(taken)]].units
        taken.append(ranked[len(taken)])
    if need.most_nodes is not None and len(taken) > need.most_nodes:
        return None
    last = taken.pop()
    rest = max(1, need.units - units + slots[last].units)
    fitting = (at for at in ranked[len(taken) :] if slots[at].units >= rest)
    taken.append(min(fitting, key=lambda at: (rank(slots[at], rest), at)))
    chosen = [slots[at] for at in sorted(taken)]
    shares = {at: slots[at].units for at in taken[:-1]} | {taken[-1]: rest}
    broken = sum(is_whole_node_broken(slots[at], need, share) for at, share in shares.items())
    return NodeChoice(
        nodes=tuple(slot.node.name for slot in chosen), domain=domain, level=level, broken=broken, spots=len(slots)
    )


def _free_gpus(slots: Iterable[NodeSlot], domain_of: Mapping[str, str]) -> Mapping[str, int]:
    free: dict[str, int] = {}
    for slot in slots:
        name = domain_of.get(slot.node.name, "")
        free[name] = free.get(name, 0) + slot.node.gpus_free
    return free


def compute_fullest_domain(candidates: CandidateNodes, avoided: frozenset[str]) -> float:
    """Return which part of the job, 0 to 1, fits now into the domain with most free capacity.

    Domains of the closest level on which one domain could hold the whole job are considered. 1 if no network is known.
    """
    domain_of = next((level for level in candidates.levels if _can_hold(candidates, level)), None)
    if domain_of is None:
        return 0.0 if candidates.levels else 1.0
    most = 0
    for group in candidates.free:
        units_free: dict[str, int] = {}
        for slot in group:
            if slot.node.name not in avoided and (name := domain_of.get(slot.node.name)) is not None:
                units_free[name] = units_free.get(name, 0) + slot.units
        most = max(most, *units_free.values(), 0)
    return min(1.0, most / candidates.need.units)


def _can_hold(candidates: CandidateNodes, domain_of: Mapping[str, str]) -> bool:
    units_free: dict[str, int] = {}
    for node in candidates.able:
        if (name := domain_of.get(node.name)) is not None:
            units_free[name] = units_free.get(name, 0) + candidates.capacity[node.name]
    return max(units_free.values(), default=0) >= candidates.need.units


# How much a job insists on locality, and how long it waits for it.
#
# Tiresias (Gu et al., NSDI 2019): skew is the size of the largest tensor over the model's size; only models above a
# limit lose enough on distant nodes to be worth a wait. The paper's own limit comes from a classifier over past runs.
# Its published models separate between 0.14 and 0.61, so `placement.skew_limit` = 0.3 gives the paper's split.
# Everything else here is an assumption of slurmwrap's, kept in one place:
#
#     wait = placement.switch_wait_s x keenness x size x room, at most a tenth of the job's time limit
#
#     keenness  0 up to the limit; from 0.5 at the limit to 1 at skew 1; 0.5 where the skew is not known
#     size      (1 + log2 nodes) / 4, at most 1: 0.5 for two nodes, 1 for eight. More nodes mean more traffic
#     room      from 0.25 to 1, as the free part of the fullest domain goes from none to all of what the job needs:
#               a domain that is nearly free is worth a wait, a hopeless one is not
UNKNOWN = 0.5  # keenness if the skew was not measured
AT_LIMIT = 0.5  # keenness of a skew just above the limit
FULL_SIZE_LOG2 = 3  # 2^3 nodes have the full wait
HOPELESS = 0.25  # fraction of the wait that remains if no domain has free capacity
# Of the job's expected run time, or of its time limit if that is unknown: a job never waits longer for locality.
SHARE_OF_TIME = 0.1
# If the loss on distant nodes is known, it decides instead of the skew (locality_wait.py). Below these it is noise.
LEAST_LOSS_S, LEAST_SLOWDOWN = 30.0, 1.03


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """What a job loses on one node more than it needs. `basis`: where the slow-down comes from, in words."""

    seconds: float
    slowdown: float  # how many times as long a step takes there
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityDelay:
    """How long a job may wait for locality, in seconds; 0: it takes the nodes that are free.

    `firm`: it may insist on locality if a reconciler relaxes it later.
    """

    wait_s: int
    firm: bool
    reason: str


def compute_locality_delay(
    *,
    skew: float | None,
    limit: float,
    nodes: int,
    room: float,
    base_s: int,
    run_s: float | None,
    lost: LostTime | None = None,
) -> LocalityDelay:
    """Return the delay of a job on (or spread over) `nodes` nodes.

    `room`: the part of the job, 0 to 1, that fits into one domain now. `base_s`: placement.switch_wait_s.
    `run_s`: the expected run time, or the time limit; None if both are unknown. `lost`: decides instead of the skew.
    """
    if lost is not None:
        return _compute_delay_by_loss(lost, base_s)
    keen = compute_keenness(skew, limit)
    size = min(1.0, (1 + log2(max(1, nodes))) / (1 + FULL_SIZE_LOG2))
    wait = base_s * keen * size * (HOPELESS + (1 - HOPELESS) * max(0.0, min(1.0, room)))
    if run_s is not None:
        wait = min(wait, SHARE_OF_TIME * run_s)
    return LocalityDelay(
        wait_s=int(wait), firm=skew is not None and skew > limit, reason=_explain_low_skew(skew, limit)
    )


def _compute_delay_by_loss(lost: LostTime, base_s: int) -> LocalityDelay:
    """Return the wait for a job whose loss is known: at most base_s, unless a reconciler forecasts its starts."""
    worth = lost.seconds >= LEAST_LOSS_S and lost.slowdown >= LEAST_SLOWDOWN
    return LocalityDelay(
        wait_s=int(min(base_s, lost.seconds)) if worth else 0,
        firm=worth,
        reason=(
            f"spread over more it would take {lost.slowdown:.2f} times as long, {lost.basis}, and lose"
            f" {lost.seconds:.0f} s; a reconciler that forecasts starts may wait longer or give up earlier"
        ),
    )


def compute_keenness(skew: float | None, limit: float) -> float:
    """Return how much the job gains from locality: 0 (distant nodes cost it little) to 1."""
    if skew is None:
        return UNKNOWN
    if skew <= limit:
        return 0.0
    return AT_LIMIT + (1 - AT_LIMIT) * min(1.0, (skew - limit) / max(1e-9, 1 - limit))


def _explain_low_skew(skew: float | None, limit: float) -> str:
    if skew is None:
        return "how much it loses on distant nodes is not known"
    if skew > limit:
        found = f"{_format_percent(skew)} of the model, above {_format_percent(limit)}: distant nodes slow it down"
    else:
        found = f"{_format_percent(skew)} of the model, not above {_format_percent(limit)}: distant nodes cost little"
    return f"its largest tensor is {found}"


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"
