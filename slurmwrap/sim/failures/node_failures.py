"""Nodes that fail: which are lemons, on which nodes a run lies, and which node fails under it. Pure.

A run lies on nodes drawn at random among those that it may use. No queue is played: the study counts GPU time, and who
waits for whom changes which node a job gets, not how often nodes fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log

from slurmwrap.placement.demand import Server
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.sim_job import SimJob

_DAY_S = 86_400.0
# Draws per node that is wanted, before the rest is taken in order.
_TRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The nodes of one seed. Rates are failures per second that a node is held."""

    names: tuple[str, ...]
    gpus: int  # of a node
    mem_mib: int  # of a node
    lemons: frozenset[int]  # places in `names`
    healthy_rate: float
    lemon_rate: float

    def rate(self, nodes: Sequence[int]) -> float:
        """Of them together."""
        bad = sum(node in self.lemons for node in nodes)
        return bad * self.lemon_rate + (len(nodes) - bad) * self.healthy_rate


def hardware_of(servers: Sequence[Server], settings: FailureSettings, seed: int) -> Hardware:
    """Lemons fail so much oftener that they cause `lemons_cause` of all failures. ValueError: no servers."""
    if not servers:
        raise ValueError("no servers")
    low, high = settings.lemon_share
    wanted = (low + (high - low) * draw_uniform(seed, 0, 0, Purpose.LEMONS)) * len(servers)
    count = int(wanted) + (draw_uniform(seed, 1, 0, Purpose.LEMONS) < wanted % 1)
    lemons: set[int] = set()
    for at in range(len(servers) * _TRIES):
        if len(lemons) >= count:
            break
        lemons.add(int(draw_uniform(seed, 2 + at, 0, Purpose.LEMONS) * len(servers)))
    daily, share = settings.node_failures_per_day, (low + high) / 2
    by_lemons = settings.lemons_cause if share > 0 else 0.0
    return Hardware(
        names=tuple(server.name for server in servers),
        gpus=max(server.gpus for server in servers),
        mem_mib=max(server.mem_mib for server in servers),
        lemons=frozenset(lemons),
        healthy_rate=daily * (1 - by_lemons) / (1 - share) / _DAY_S if share < 1 else 0.0,
        lemon_rate=daily * by_lemons / share / _DAY_S if share > 0 else 0.0,
    )


def nodes_wanted(job: SimJob, hardware: Hardware) -> int:
    """As asked, else as few as hold its GPUs; never more than there are."""
    return max(1, min(len(hardware.names), job.nodes or ceil(job.gpus / hardware.gpus)))


def draw_nodes(
    hardware: Hardware, count: int, excluded: frozenset[int], seed: int, number: int, run: int
) -> tuple[int, ...]:
    """The first `count` of this run's own sequence of nodes that are not excluded: the same nodes in every arm, but
    where one of them is excluded there."""
    total, found = len(hardware.names), list[int]()
    for place in range(count * _TRIES):
        node = int(draw_uniform(seed, number, run, Purpose.NODE + place) * total)
        if node not in excluded and node not in found:
            found.append(node)
            if len(found) == count:
                return tuple(found)
    rest = [n for n in range(total) if n not in found]
    rest.sort(key=lambda n: n in excluded)
    return (*found, *rest[: count - len(found)])


def fails_after(hardware: Hardware, nodes: Sequence[int], seed: int, number: int, run: int) -> float:
    """Seconds until the first of them fails; inf: never."""
    rate = hardware.rate(nodes)
    return -log(1 - draw_uniform(seed, number, run, Purpose.HAZARD)) / rate if rate > 0 else inf


def draw_struck_node(hardware: Hardware, nodes: Sequence[int], seed: int, number: int, run: int) -> int:
    """Which of them it was, by their rates."""
    left = draw_uniform(seed, number, run, Purpose.STRUCK) * hardware.rate(nodes)
    for node in nodes:
        left -= hardware.lemon_rate if node in hardware.lemons else hardware.healthy_rate
        if left < 0:
            return node
    return nodes[-1]


def blames_gpu(seed: int, number: int, run: int) -> bool:
    """Whether the kernel names a GPU for it (Xid); else Slurm only says that the node is gone."""
    gpu = sum(published_rates.NODE_CAUSES[cause] for cause in published_rates.GPU_CAUSES) / sum(
        published_rates.NODE_CAUSES.values()
    )
    return draw_uniform(seed, number, run, Purpose.NODE_CAUSE) < gpu
