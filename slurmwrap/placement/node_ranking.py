"""How well a job's share would sit on a node next to what runs there. Pure; smaller is better.

The score is counted in GPUs, so that its parts can be added; the weights (all 1) are an assumption:

    left      GPUs that stay free on the node: small jobs fill fragments
    sockets   1 if the share would lie on two sockets although it fits on one (Slurm says which GPU hangs on which)
    balance   how much further CPUs and memory of the free GPUs move from the node's proportion, in GPUs: a job that
              needs many CPUs goes where light jobs left theirs, and no GPU is left without CPUs
    clash     the node's GPUs x (busy share of its CPUs x the job's + the same for memory): jobs that keep CPUs or
              memory busy go apart, complementary ones together. Where no one published a load: 0
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.node import Node, NodeLoad
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.placement.resource_units import ResourceUnits


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRankScore:
    """The parts, for `--explain`; `total` decides."""

    left: int
    sockets: int = 0
    balance: float = 0.0
    clash: float = 0.0

    @property
    def total(self) -> float:
        """Rounded: what differs by less is as good."""
        return self.total_with(self.clash)

    def total_with(self, clash: float) -> float:
        """The same with another clash: all else is alike on nodes that look alike."""
        return round(self.left + self.sockets + self.balance + clash, 3)


def score(
    node: Node, units: int, need: ResourceUnits, profile: ResourceProfile | None, loads: Mapping[str, NodeLoad]
) -> NodeRankScore:
    """Of `units` units of `need` on `node` as it is now."""
    gpus, cpus, memory = need.on(units)
    load = loads.get(node.name) if profile is not None else None
    return NodeRankScore(
        left=node.gpus_free - gpus,
        sockets=int(is_on_one_socket(node, gpus) is False),
        balance=_compute_balance(node, gpus, cpus, memory),
        clash=compute_clash(node, gpus, load, profile) if load is not None and profile is not None else 0.0,
    )


def is_on_one_socket(node: Node, gpus: int) -> bool | None:
    """Whether so many free GPUs hang on one socket. None: no one knows, or no socket has so many at all."""
    sockets, used = node.gpu_sockets, node.gpus_used_at
    if not sockets or len(used) != node.gpus_used:
        return None
    if _count_largest_socket(sockets) < gpus:
        return None
    free = [socket for at, socket in enumerate(sockets) if at not in used]
    return any(free.count(socket) >= gpus for socket in set(free))


@lru_cache(maxsize=1024)
def _count_largest_socket(sockets: tuple[int, ...]) -> int:
    """GPUs on the socket that has most."""
    return max(sockets.count(socket) for socket in set(sockets))


def _compute_balance(node: Node, gpus: int, cpus: int, mem_mib: int) -> float:
    """How much further CPUs and memory are from the free GPUs' share once so much is taken, in GPUs."""
    if not node.gpus or not node.cpus:
        return 0.0
    now, by_cpu = node.gpus_free, node.gpus / node.cpus
    by_mib = node.gpus / node.mem_mib if node.mem_mib else 0.0
    free_cpus, free_mib, then = node.cpus_free, node.mem_free_mib, now - gpus
    by_cpus = abs((free_cpus - cpus) * by_cpu - then) - abs(free_cpus * by_cpu - now)
    by_memory = abs((free_mib - mem_mib) * by_mib - then) - abs(free_mib * by_mib - now) if by_mib else 0.0
    return by_cpus + by_memory


def compute_clash(node: Node, gpus: int, load: NodeLoad, profile: ResourceProfile) -> float:
    """Of a job that takes so many GPUs with what is known to run on `node`."""
    cpus = _compute_part(load.cpus_busy, node.cpus) * _compute_part(gpus * (profile.cpus_per_gpu or 0.0), node.cpus)
    memory = _compute_part(load.mem_mib, node.mem_mib) * _compute_part(
        gpus * (profile.mem_mib_per_gpu or 0), node.mem_mib
    )
    return node.gpus * (cpus + memory)


def _compute_part(some: float, whole: float) -> float:
    return min(1.0, some / whole) if whole else 0.0
