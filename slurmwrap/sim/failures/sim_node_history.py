"""The history of nodes in one world, judged by production: strikes, lemon scores, and which nodes jobs avoid.

`strikes_of` says what counts against a node, `health` scores the fleet once a day as the published page would, and
placement's `avoid` turns that into the nodes that a job of some shape is kept away from, within the site's cap.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from slurmwrap.config import Config
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.node import Node, NodeHealth, Partition, Snapshot
from slurmwrap.model.run import JobRun, StrikeRecord
from slurmwrap.placement.candidates import CandidateNodes, find_candidate_nodes
from slurmwrap.placement.demand import Server
from slurmwrap.placement.node_ranking import avoid
from slurmwrap.placement.resource_units import compute_resource_units
from slurmwrap.policy.node_history import Exposure, NodeHistory
from slurmwrap.policy.strikes import health, strikes_of
from slurmwrap.sbatch.request import GpuUnit, JobRequest, ResourceShape, Script
from slurmwrap.sim.failures.sim_judge import EPOCH_S

_DAY_S = 86_400.0
_PARTITION = "gpu"


def nodes_of(servers: Sequence[Server]) -> tuple[Node, ...]:
    """The servers as Slurm would show them, idle."""
    return tuple(
        Node(name=s.name, state="IDLE", cpus=s.cpus, mem_mib=s.mem_mib, gpus=s.gpus, partitions=(_PARTITION,))
        for s in servers
    )


class SimNodeHistory:
    """Times are the trace's seconds and must not go back between two calls of `excluded`."""

    def __init__(self, nodes: Sequence[Node], config: Config) -> None:
        self._nodes, self._config = tuple(nodes), config
        self._snapshot = Snapshot(
            taken_at=0.0, nodes=self._nodes, default_partition=_PARTITION, partitions=(Partition(name=_PARTITION),)
        )
        self._place = {node.name: at for at, node in enumerate(nodes)}
        self._strikes: list[StrikeRecord] = []
        # Day of their ends → node → [runs, hours].
        self._held: dict[int, dict[str, list[float]]] = {}
        self._health: tuple[NodeHealth, ...] = ()
        self._day = -1
        self._fields: dict[tuple[int, int], tuple[JobRequest, CandidateNodes] | None] = {}
        self._avoided: dict[tuple[int, int], frozenset[int]] = {}
        # Nodes that were suspect or lemons, day by day.
        self.days: deque[frozenset[int]] = deque()

    def ran(self, nodes: Sequence[str], began_s: float, ended_s: float) -> None:
        """A run held these nodes."""
        day = self._held.setdefault(int(ended_s // _DAY_S), {})
        for node in nodes:
            held = day.setdefault(node, [0.0, 0.0])
            held[0] += 1
            held[1] += (ended_s - began_s) / 3600

    def failed(self, diagnosis: Diagnosis, record: JobRun, ended_s: float) -> None:
        """A run failed; its strike, if there is one, is known from its end on."""
        for strike in strikes_of(diagnosis, record):
            self._strikes.append(
                StrikeRecord(
                    node=strike.node, cause=strike.cause, conclusive=strike.conclusive, text=strike.text,
                    at=EPOCH_S + ended_s,
                    job_id=record.attempt.job_id, uid=record.uid,
                )
            )  # fmt: skip

    def excluded(self, now: float, *, nodes: int, gpus: int) -> frozenset[int]:
        """Places of the nodes that a job of so many nodes and GPUs in all is kept away from at `now`."""
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
        known = self._field(shape)
        if known is None:
            return frozenset()
        request, field = known
        named = avoid(request, field, self._health, self._config).nodes
        return frozenset(self._place[name] for name in named if name in self._place)

    def _field(self, shape: tuple[int, int]) -> tuple[JobRequest, CandidateNodes] | None:
        if shape not in self._fields:
            request = _make_request(*shape)
            need = compute_resource_units(request)
            self._fields[shape] = (request, find_candidate_nodes(request, need, self._snapshot)) if need else None
        return self._fields[shape]


def _make_request(nodes: int, gpus: int) -> JobRequest:
    shape = ResourceShape(
        nodes=nodes, max_nodes=nodes, gpus=gpus, gpus_per_node=max(1, gpus // nodes), gpu_unit=GpuUnit.GRES
    )
    return JobRequest(script=Script(path=None, name="sim", content=b""), shape=shape)
