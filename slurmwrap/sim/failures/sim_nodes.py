"""Simulated nodes: which are lemons, which node fails during a run, and what node exclusion learns of them. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Node, NodeHealth, Partition, Snapshot
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import JobRun, StrikeRecord
from slurmwrap.placement.candidates import CandidateNodes, find_candidate_nodes
from slurmwrap.placement.demand import Server
from slurmwrap.placement.node_ranking import avoid
from slurmwrap.placement.resource_units import compute_resource_units
from slurmwrap.policy.node_history import Exposure, NodeHistory
from slurmwrap.policy.strikes import health, make_strikes
from slurmwrap.sbatch.job_request import GpuUnit, JobRequest, ResourceShape, Script
from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.failures.sim_judge import EPOCH_S
from slurmwrap.sim.sim_job import SimJob

_DAY_S = 86_400.0
# Draws per wanted node before the rest is taken in order.
_TRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The nodes of one seed. Rates are failures per second for which a node is held."""

    names: tuple[str, ...]
    gpus: int  # per node
    mem_mib: int  # per node
    lemons: frozenset[int]  # indices in `names`
    healthy_rate: float
    lemon_rate: float

    def rate(self, nodes: Sequence[int]) -> float:
        """Return the failure rate of all these nodes together."""
        bad = sum(node in self.lemons for node in nodes)
        return bad * self.lemon_rate + (len(nodes) - bad) * self.healthy_rate


def draw_hardware(servers: Sequence[Server], settings: FailureSettings, seed: int) -> Hardware:
    """Draw the lemons and compute the failure rates. ValueError if there are no servers.

    Lemons fail so much more often that they cause `lemons_cause` of all failures.
    """
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


def count_wanted_nodes(job: SimJob, hardware: Hardware) -> int:
    """Return the nodes as asked, else as few as hold the GPUs; never more than there are."""
    return max(1, min(len(hardware.names), job.nodes or ceil(job.gpus / hardware.gpus)))


def draw_nodes(
    hardware: Hardware, count: int, excluded: frozenset[int], seed: int, number: int, run: int
) -> tuple[int, ...]:
    """Return the first `count` nodes of this run's own random sequence that are not excluded.

    These are the same nodes in every arm, except for those that are excluded there.
    """
    total, found = len(hardware.names), list[int]()
    for position in range(count * _TRIES):
        node = int(draw_uniform(seed, number, run, Purpose.NODE + position) * total)
        if node not in excluded and node not in found:
            found.append(node)
            if len(found) == count:
                return tuple(found)
    rest = [n for n in range(total) if n not in found]
    rest.sort(key=lambda n: n in excluded)
    return (*found, *rest[: count - len(found)])


def draw_time_to_failure(hardware: Hardware, nodes: Sequence[int], seed: int, number: int, run: int) -> float:
    """Return the seconds until the first of the nodes fails; inf: never."""
    rate = hardware.rate(nodes)
    return -log(1 - draw_uniform(seed, number, run, Purpose.HAZARD)) / rate if rate > 0 else inf


def draw_struck_node(hardware: Hardware, nodes: Sequence[int], seed: int, number: int, run: int) -> int:
    """Return which of the nodes failed, drawn by their rates."""
    left = draw_uniform(seed, number, run, Purpose.STRUCK) * hardware.rate(nodes)
    for node in nodes:
        left -= hardware.lemon_rate if node in hardware.lemons else hardware.healthy_rate
        if left < 0:
            return node
    return nodes[-1]


def is_gpu_blamed(seed: int, number: int, run: int) -> bool:
    """Return whether the kernel log blames a GPU (Xid); otherwise Slurm only reports the node as lost."""
    gpu = sum(published_rates.NODE_CAUSES[cause] for cause in published_rates.GPU_CAUSES) / sum(
        published_rates.NODE_CAUSES.values()
    )
    return draw_uniform(seed, number, run, Purpose.NODE_CAUSE) < gpu


_PARTITION = "gpu"


def nodes_of(servers: Sequence[Server]) -> tuple[Node, ...]:
    """Return the servers as idle nodes of Slurm."""
    return tuple(
        Node(name=s.name, state="IDLE", cpus=s.cpus, mem_mib=s.mem_mib, gpus=s.gpus, partitions=(_PARTITION,))
        for s in servers
    )


class SimNodeHistory:
    """The history of the nodes, and which of them are excluded.

    Times are the trace's seconds and must not decrease between two calls of `excluded`.
    """

    def __init__(self, nodes: Sequence[Node], config: Config) -> None:
        self._nodes, self._config = tuple(nodes), config
        self._snapshot = Snapshot(
            taken_at=0.0, nodes=self._nodes, default_partition=_PARTITION, partitions=(Partition(name=_PARTITION),)
        )
        self._place = {node.name: at for at, node in enumerate(nodes)}
        self._strikes: list[StrikeRecord] = []
        # Day on which runs ended → node → [runs, hours].
        self._held: dict[int, dict[str, list[float]]] = {}
        self._health: tuple[NodeHealth, ...] = ()
        self._day = -1
        self._candidates: dict[tuple[int, int], tuple[JobRequest, CandidateNodes] | None] = {}
        self._avoided: dict[tuple[int, int], frozenset[int]] = {}
        # Nodes that were suspect or lemons on each day.
        self.days: deque[frozenset[int]] = deque()

    def ran(self, nodes: Sequence[str], began_s: float, ended_s: float) -> None:
        """Record that a run held these nodes."""
        day = self._held.setdefault(int(ended_s // _DAY_S), {})
        for node in nodes:
            held = day.setdefault(node, [0.0, 0.0])
            held[0] += 1
            held[1] += (ended_s - began_s) / 3600

    def failed(self, diagnosis: Diagnosis, run: JobRun, ended_s: float) -> None:
        """Record that a run failed; its strike, if there is one, counts from the end of the run."""
        for strike in make_strikes(diagnosis, run):
            self._strikes.append(
                StrikeRecord(
                    node=strike.node, cause=strike.cause, conclusive=strike.conclusive, text=strike.text,
                    at=EPOCH_S + ended_s,
                    job_id=run.attempt.job_id, uid=run.uid,
                )
            )  # fmt: skip

    def excluded(self, now: float, *, nodes: int, gpus: int) -> frozenset[int]:
        """Return the indices of the nodes that a job with so many nodes and GPUs in total avoids at `now`."""
        while self._day < int(now // _DAY_S):
            self._score(self._day + 1)
        if not self._health:
            return frozenset()
        shape = (nodes, gpus)
        if shape not in self._avoided:
            self._avoided[shape] = self._avoid(shape)
        return self._avoided[shape]

    def _score(self, day: int) -> None:
        self._day, now = day, EPOCH_S + day * _DAY_S
        since = now - self._config.nodes.window_days * _DAY_S
        strikes = tuple(s for s in self._strikes if since <= s.at <= now)
        self._held = {at: held for at, held in self._held.items() if EPOCH_S + at * _DAY_S >= since}
        found = health(self._history(strikes, day), self._nodes, self._config, now=now) if strikes else ()
        if found != self._health:
            self._health, self._avoided = found, {}
        self.days.append(frozenset(self._place[one.node] for one in found if one.node in self._place))

    def _history(self, strikes: tuple[StrikeRecord, ...], day: int) -> NodeHistory:
        runs: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for at, held in self._held.items():
            for node, (count, hours) in held.items() if at < day else ():
                runs[node][0] += count
                runs[node][1] += hours
        exposure = tuple(Exposure(node=node, runs=int(count), hours=hours) for node, (count, hours) in runs.items())
        return NodeHistory(strikes=strikes, exposure=exposure)

    def _avoid(self, shape: tuple[int, int]) -> frozenset[int]:
        known = self._find_candidates(shape)
        if known is None:
            return frozenset()
        request, field = known
        named = avoid(request, field, self._health, self._config).nodes
        return frozenset(self._place[name] for name in named if name in self._place)

    def _find_candidates(self, shape: tuple[int, int]) -> tuple[JobRequest, CandidateNodes] | None:
        if shape not in self._candidates:
            request = _make_request(*shape)
            need = compute_resource_units(request)
            self._candidates[shape] = (request, find_candidate_nodes(request, need, self._snapshot)) if need else None
        return self._candidates[shape]


def _make_request(nodes: int, gpus: int) -> JobRequest:
    shape = ResourceShape(
        nodes=nodes, max_nodes=nodes, gpus=gpus, gpus_per_node=max(1, gpus // nodes), gpu_unit=GpuUnit.GRES
    )
    return JobRequest(script=Script(path=None, name="sim", content=b""), shape=shape)
