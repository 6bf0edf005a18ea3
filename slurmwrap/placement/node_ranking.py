"""Score how well a job's share fits on a node next to what runs there, and choose nodes to exclude. Pure.

The score is counted in GPUs, so that its parts can be added; smaller is better. The weights (all 1) are an assumption:

    left      GPUs that stay free on the node: small jobs fill fragments
    sockets   1 if the share would lie on two sockets although it fits on one (Slurm reports each GPU's socket)
    balance   how much further CPUs and memory of the free GPUs move from the node's proportion, in GPUs: a job that
              needs many CPUs goes where light jobs left theirs, and no GPU is left without CPUs
    clash     the node's GPUs x (busy share of its CPUs x the job's + the same for memory): jobs that keep CPUs or
              memory busy are kept apart, complementary ones together. 0 if no load is published

Where runs at the site prove that sensitive jobs lose more beside others, their clash has other weights, and PCIe counts
too (profiling/contention.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import NO_EVIDENCE
from slurmwrap.model.decision import DRAIN_PREFIX
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.model.resource_profile import MOST_PCIE_UNUSED, is_sensitive
from slurmwrap.placement.candidates import CandidateNodes, has_opaque_node_choice
from slurmwrap.sbatch.job_request import JobRequest, OptionChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.model.cluster import ContentionWeights, Node, NodeHealth, NodeLoad
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.placement.resource_units import ResourceUnits


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRankScore:
    """The parts of a score, for `--explain`; `total` decides."""

    left: int
    sockets: int = 0
    balance: float = 0.0
    clash: float = 0.0

    @property
    def total(self) -> float:
        """The rounded sum: smaller differences do not count."""
        return self.total_with(self.clash)

    def total_with(self, clash: float) -> float:
        """Return the total with another clash; the other parts are equal on nodes that look alike."""
        return round(self.left + self.sockets + self.balance + clash, 3)


def score(
    node: Node,
    units: int,
    need: ResourceUnits,
    profile: ResourceProfile | None,
    loads: Mapping[str, NodeLoad],
    weights: ContentionWeights = NO_EVIDENCE,
) -> NodeRankScore:
    """Return the score of `units` units of `need` on `node` as it is now."""
    gpus, cpus, memory = need.on(units)
    load = loads.get(node.name) if profile is not None else None
    return NodeRankScore(
        left=node.gpus_free - gpus,
        sockets=int(is_on_one_socket(node, gpus) is False),
        balance=_compute_balance(node, gpus, cpus, memory),
        clash=compute_clash(node, gpus, load, profile, weights) if load is not None and profile is not None else 0.0,
    )


def is_on_one_socket(node: Node, gpus: int) -> bool | None:
    """Return whether so many free GPUs are attached to one socket.

    None if that is unknown, or if no socket has so many GPUs at all.
    """
    sockets, used = node.gpu_sockets, node.gpus_used_at
    if not sockets or len(used) != node.gpus_used:
        return None
    if _count_largest_socket(sockets) < gpus:
        return None
    free = [socket for at, socket in enumerate(sockets) if at not in used]
    return any(free.count(socket) >= gpus for socket in set(free))


@lru_cache(maxsize=1024)
def _count_largest_socket(sockets: tuple[int, ...]) -> int:
    """Return the number of GPUs on the socket that has most."""
    return max(sockets.count(socket) for socket in set(sockets))


def _compute_balance(node: Node, gpus: int, cpus: int, mem_mib: int) -> float:
    """Return how much further CPUs and memory are from the free GPUs' share once so much is taken, in GPUs."""
    if not node.gpus or not node.cpus:
        return 0.0
    now, by_cpu = node.gpus_free, node.gpus / node.cpus
    by_mib = node.gpus / node.mem_mib if node.mem_mib else 0.0
    free_cpus, free_mib, then = node.cpus_free, node.mem_free_mib, now - gpus
    by_cpus = abs((free_cpus - cpus) * by_cpu - then) - abs(free_cpus * by_cpu - now)
    by_memory = abs((free_mib - mem_mib) * by_mib - then) - abs(free_mib * by_mib - now) if by_mib else 0.0
    return by_cpus + by_memory


def compute_clash(
    node: Node, gpus: int, load: NodeLoad, profile: ResourceProfile, weights: ContentionWeights = NO_EVIDENCE
) -> float:
    """Return the clash of a job that takes so many GPUs with the published load of `node`.

    `weights` count for the resources to which the job is sensitive.
    """
    cpus = _compute_part(load.cpus_busy, node.cpus) * _compute_part(gpus * (profile.cpus_per_gpu or 0.0), node.cpus)
    memory = _compute_part(load.mem_mib, node.mem_mib) * _compute_part(
        gpus * (profile.mem_mib_per_gpu or 0), node.mem_mib
    )
    if weights.pairs:
        cpus *= weights.cpus if is_sensitive(profile.sensitivity, "cpu") else 1.0
        memory *= weights.memory if is_sensitive(profile.sensitivity, "mem_bw") else 1.0
        if (profile.gpu_pcie or 0.0) > MOST_PCIE_UNUSED:
            pcie = _compute_part(load.pcie, node.gpus) * _compute_part(gpus * (profile.gpu_pcie or 0.0), node.gpus)
            return node.gpus * (cpus + memory + weights.pcie * pcie)
    return node.gpus * (cpus + memory)


def _compute_part(some: float, whole: float) -> float:
    return min(1.0, some / whole) if whole else 0.0


# Nodes that a job avoids: suspect and lemon nodes, as far as the cap and the job itself allow. Lemon nodes use up the
# cap first.
_RANK = {"lemon": 0, "suspect": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidance:
    """The --exclude option, if there is something to change, and all nodes that are avoided, the user's too."""

    wish: OptionChange | None = None
    nodes: frozenset[str] = frozenset()
    # Whether the user's own list could be parsed.
    readable: bool = True


def avoid(request: JobRequest, candidates: CandidateNodes, health: Sequence[NodeHealth], config: Config) -> Avoidance:
    """Return --exclude with the user's own nodes first.

    Never excludes a node without which the job could not run at all.
    """
    own = request.value("exclude") or ""
    try:
        if "/" in own:
            raise ValueError("it names a file")
        own_nodes = frozenset(expand(own))
    except ValueError as error:
        reason = f"your list of nodes is kept as it is: {error}"
        return Avoidance(wish=OptionChange(option="exclude", value=None, reason=reason), readable=False)
    # The user's own --switches is firm at first: Slurm would refuse a job that no switch could hold then.
    fixed_by_user = has_opaque_node_choice(request) or request.setting("switches") is not None
    doubtful = [] if fixed_by_user else _list_doubtful_nodes(candidates, health, own_nodes)
    if not doubtful:
        return Avoidance(nodes=own_nodes)
    allowed = _count_allowed_exclusions(candidates, config)
    chosen = doubtful[:allowed]
    while chosen and not _is_enough(candidates, own_nodes, own_nodes | {entry.node for entry in chosen}):
        chosen = chosen[:-1]
    left_in = [_explain_first_kept(entry, capped=len(chosen) == allowed) for entry in doubtful[len(chosen) :][:1]]
    if not chosen:
        return Avoidance(wish=OptionChange(option="exclude", value=None, reason=left_in[0]), nodes=own_nodes)
    named = {entry.node for entry in chosen}
    value = ",".join(
        part for part in (own.strip(","), fold(n.name for n in candidates.members if n.name in named)) if part
    )
    reasons = [f"{_describe_entry(entry)}: {entry.reason}" for entry in chosen[:3]]
    more = [f"and {len(chosen) - 3} more"] if len(chosen) > 3 else []
    reason = "; ".join([*reasons, *more, *left_in])
    return Avoidance(wish=OptionChange(option="exclude", value=value, reason=reason), nodes=own_nodes | named)


def _explain_first_kept(entry: NodeHealth, *, capped: bool) -> str:
    """Return why the first of the doubtful nodes that are not avoided stays in."""
    why = "placement.exclude_cap allows no more nodes to be avoided" if capped else "the job cannot do without it"
    return f"{_describe_entry(entry)}, but stays in: {why}"


def _describe_entry(entry: NodeHealth) -> str:
    return f"{entry.node} is {'a lemon' if entry.status == 'lemon' else entry.status}"


def _list_doubtful_nodes(
    candidates: CandidateNodes, health: Sequence[NodeHealth], fixed_by_user: frozenset[str]
) -> list[NodeHealth]:
    """Return the doubtful nodes, worst first, then newest.

    A drained node needs no exclusion, and nodes that the user named (`settled`) are the user's choice.
    """
    found = [h for h in health if h.status in _RANK and h.node in candidates.capacity and h.node not in fixed_by_user]
    return sorted(found, key=lambda entry: (_RANK[entry.status], -entry.since, entry.node))


def _count_allowed_exclusions(candidates: CandidateNodes, config: Config) -> int:
    """Return how many nodes may be excluded.

    Nodes that slurmwrap drained count against the cap. A small partition may lose one node, but never its only one.
    """
    cap = config.placement.exclude_cap
    total = len(candidates.members)
    drained = sum("DRAIN" in node.flags and node.reason.startswith(DRAIN_PREFIX) for node in candidates.members)
    return max(0, max(int(cap * total), 1 if cap > 0 and total > 1 else 0) - drained)


def _is_enough(candidates: CandidateNodes, before: frozenset[str], after: frozenset[str]) -> bool:
    """Return whether the job could still run, with every node up, in each partition in which it could before."""
    could = 0
    for name in [partition.name for partition in candidates.partitions] or [""]:
        able = [node for node in candidates.able if not name or name in node.partitions]
        kept, left = ([n for n in able if n.name not in out] for out in (before, after))
        if candidates.holds(kept, candidates.fewest):
            if not candidates.holds(left, candidates.fewest):
                return False
            could += 1
    return could > 0
