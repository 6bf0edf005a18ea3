"""Philly's rule: fewest servers inside one network domain; domains are ranked first, then the servers in them. Pure.

Jeon et al., ATC 2019: big jobs get the emptiest domain, small ones fill fragments. In order:

1. the closest level of the network that holds the whole job; a job of one server has no network to mind
2. fewest servers
3. fewest whole nodes broken: a job that leaves GPUs free goes next to other jobs while any such place fits it
4. Slurm's own Weight of a node, which is the site's choice of what to spare
5. of several servers: the domain with most free GPUs; of one: the node with the best score (node_ranking.py), then the
   domain with fewest
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.placement.candidates import CandidateNodes, NodeSlot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.placement.resource_units import ResourceUnits


# (breaks a whole node, weight, score) with so many units
Rank = Callable[[NodeSlot, int], tuple[bool, int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """The nodes that look best at this moment, all that the job needs; empty when it would not fit now."""

    nodes: tuple[str, ...] = ()  # in Slurm's order
    domain: str | None = None  # that holds them all; None: several, or no network is known
    level: int | None = None  # of that domain
    broken: int = 0  # whole nodes that would be left with free GPUs
    spots: int = 0  # nodes that had room


def choose(candidates: CandidateNodes, avoided: frozenset[str], rank: Rank) -> NodeChoice:
    """The best place now in any of the job's partitions."""
    found = []
    for group in candidates.free:
        spots = [spot for spot in group if spot.node.name not in avoided]
        choice = _choose_one_server(spots, candidates, rank) or _choose_servers(spots, candidates, rank)
        if choice is not None:
            found.append(choice)
    return min(found, key=_rank_closeness, default=NodeChoice())


def _rank_closeness(choice: NodeChoice) -> tuple[int, bool, int, int]:
    return len(choice.nodes), choice.domain is None, choice.level or 0, choice.broken


def is_whole_node_broken(spot: NodeSlot, need: ResourceUnits, units: int) -> bool:
    """Whether so many units would be the first on an idle node, and leave some of its GPUs."""
    return spot.node.gpus_used == 0 and units * need.gpus < spot.node.gpus


def _choose_one_server(spots: Sequence[NodeSlot], candidates: CandidateNodes, rank: Rank) -> NodeChoice | None:
    need = candidates.need
    if need.least_nodes > 1:
        return None
    holding = [spot for spot in spots if spot.units >= need.units]
    if not holding:
        return None
    # only the best by what costs nothing to know are scored
    coarse = [(is_whole_node_broken(spot, need, need.units), spot.node.weight) for spot in holding]
    least = min(coarse)
    ranked = [(rank(s, need.units), s) for s, one in zip(holding, coarse, strict=True) if one == least]
    best = min(one for one, _ in ranked)
    equal = [spot for one, spot in ranked if one == best]
    leaf_of = candidates.levels[0] if candidates.levels else {}
    free = _free_gpus(spots, leaf_of) if len(equal) > 1 else {}
    chosen = min(equal, key=lambda spot: free.get(leaf_of.get(spot.node.name, ""), 0))  # the first of equals
    domain = leaf_of.get(chosen.node.name)
    return NodeChoice(
        nodes=(chosen.node.name,),
        domain=domain,
        level=None if domain is None else 0,
        broken=int(best[0]),
        spots=len(spots),
    )


def _choose_servers(spots: Sequence[NodeSlot], candidates: CandidateNodes, rank: Rank) -> NodeChoice | None:
    """Several servers: the closest level first, at last anywhere."""
    if sum(spot.units for spot in spots) < candidates.need.units:
        return None
    for level, domain_of in enumerate(candidates.levels):
        found = _choose_in_domains(spots, domain_of, level, candidates.need, rank)
        if found is not None:
            return found
    return _choose_within(spots, candidates.need, rank, domain=None, level=None)


def _choose_in_domains(
    spots: Sequence[NodeSlot], domain_of: Mapping[str, str], level: int, units: ResourceUnits, rank: Rank
) -> NodeChoice | None:
    domains: dict[str, list[NodeSlot]] = {}
    for spot in spots:
        if (name := domain_of.get(spot.node.name)) is not None:
            domains.setdefault(name, []).append(spot)
    best: tuple[tuple[int, int, int], NodeChoice] | None = None
    for name, members in domains.items():
        if len(members) < units.least_nodes or sum(spot.units for spot in members) < units.units:
            continue
        choice = _choose_within(members, units, rank, domain=name, level=level)
        if choice is not None:
            key = (len(choice.nodes), choice.broken, -sum(spot.node.gpus_free for spot in members))
            best = (key, choice) if best is None or key < best[0] else best
    return None if best is None else best[1]


def _choose_within(
    spots: Sequence[NodeSlot], need: ResourceUnits, rank: Rank, *, domain: str | None, level: int | None
) -> NodeChoice | None:
    """The fewest of `spots` that hold the job; the last of them takes the rest, and is the one that this suits best."""
    # the node's place in Slurm's list decides between equals, and is the order in which they are given back
    ranked = sorted(range(len(spots)), key=lambda at: (-spots[at].units, rank(spots[at], spots[at].units), at))
    taken: list[int] = []
    units = 0
    while units < need.units or len(taken) < need.least_nodes:
        if len(taken) == len(ranked):
            return None
        units += spots[ranked[len(taken)]].units
        taken.append(ranked[len(taken)])
    if need.most_nodes is not None and len(taken) > need.most_nodes:
        return None
    last = taken.pop()
    rest = max(1, need.units - units + spots[last].units)
    fitting = (at for at in ranked[len(taken) :] if spots[at].units >= rest)
    taken.append(min(fitting, key=lambda at: (rank(spots[at], rest), at)))
    chosen = [spots[at] for at in sorted(taken)]
    shares = {at: spots[at].units for at in taken[:-1]} | {taken[-1]: rest}
    broken = sum(is_whole_node_broken(spots[at], need, share) for at, share in shares.items())
    return NodeChoice(
        nodes=tuple(spot.node.name for spot in chosen), domain=domain, level=level, broken=broken, spots=len(spots)
    )


def _free_gpus(spots: Iterable[NodeSlot], domain_of: Mapping[str, str]) -> Mapping[str, int]:
    free: dict[str, int] = {}
    for spot in spots:
        name = domain_of.get(spot.node.name, "")
        free[name] = free.get(name, 0) + spot.node.gpus_free
    return free


def compute_fullest_domain(candidates: CandidateNodes, avoided: frozenset[str]) -> float:
    """The part of the job, 0 to 1, that has room now in the one domain that has most, of the closest level where a
    domain could hold it all. 1 where no network is known."""
    domain_of = next((level for level in candidates.levels if _can_hold(candidates, level)), None)
    if domain_of is None:
        return 0.0 if candidates.levels else 1.0
    most = 0
    for group in candidates.free:
        room: dict[str, int] = {}
        for spot in group:
            if spot.node.name not in avoided and (name := domain_of.get(spot.node.name)) is not None:
                room[name] = room.get(name, 0) + spot.units
        most = max(most, *room.values(), 0)
    return min(1.0, most / candidates.need.units)


def _can_hold(candidates: CandidateNodes, domain_of: Mapping[str, str]) -> bool:
    room: dict[str, int] = {}
    for node in candidates.able:
        if (name := domain_of.get(node.name)) is not None:
            room[name] = room.get(name, 0) + candidates.capacity[node.name]
    return max(room.values(), default=0) >= candidates.need.units


# How much a job insists on lying close together, and how long.
#
# Tiresias (Gu et al., NSDI 2019): skew is the largest tensor over the model's size; only models above a limit lose
# enough by spreading to be worth waiting for. The paper's own limit comes from a classifier over past runs; its
# published models fall apart between 0.14 and 0.61, so `placement.skew_limit` = 0.3 gives the paper's split.
# Everything else here is an assumption of slurmwrap's, in one place:
#
#     wait = placement.switch_wait_s x keenness x size x room, at most a tenth of the job's time limit
#
#     keenness  0 up to the limit; from 0.5 at the limit to 1 at skew 1; 0.5 where the skew is not known
#     size      (1 + log2 nodes) / 4, at most 1: 0.5 for two nodes, 1 for eight. The more nodes, the more traffic
#     room      from 0.25 to 1 as the fullest domain's free part of what the job needs goes from 0 to all of it:
#               a domain that is nearly free is worth waiting for, a hopeless one is not
UNKNOWN = 0.5  # keenness where no one measured the skew
AT_LIMIT = 0.5  # keenness of a skew just above the limit
FULL_SIZE_LOG2 = 3  # 2^3 nodes have the full wait
HOPELESS = 0.25  # what is left of the wait where no domain has any room
SHARE_OF_TIME = 0.1  # of the job's time limit: it never waits longer for a place


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityDelay:
    """How long a job may wait for locality; 0: it takes what is free. `firm`: it insists where someone loosens."""

    wait_s: int
    firm: bool
    reason: str


def compute_locality_delay(
    *, skew: float | None, limit: float, nodes: int, room: float, base_s: int, time_limit_s: int | None
) -> LocalityDelay:
    """For a job of `nodes` nodes (or that would be spread over so many) when `room` of it fits into one domain now."""
    keen = compute_keenness(skew, limit)
    size = min(1.0, (1 + log2(max(1, nodes))) / (1 + FULL_SIZE_LOG2))
    wait = base_s * keen * size * (HOPELESS + (1 - HOPELESS) * max(0.0, min(1.0, room)))
    if time_limit_s is not None:
        wait = min(wait, SHARE_OF_TIME * time_limit_s)
    return LocalityDelay(
        wait_s=int(wait), firm=skew is not None and skew > limit, reason=_explain_low_skew(skew, limit)
    )


def compute_keenness(skew: float | None, limit: float) -> float:
    """0 (spreading costs it little) to 1."""
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
