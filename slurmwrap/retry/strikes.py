"""What failures say about nodes: strikes, drains we may ask for, and the health that is published. Pure.

Only the kernel, NVML and Slurm are believed about a node; a log is the user's word.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurmwrap.cluster.action import DRAIN_PREFIX, SlurmAction, Verb
from slurmwrap.cluster.node import Node, NodeHealth, Snapshot
from slurmwrap.diagnosis.evidence import Citation, Diagnosis
from slurmwrap.retry.attempt import AttemptRecord, StrikeRecord
from slurmwrap.retry.decision import Ruled, Strike

WINDOW_S = 28 * 86400.0  # the window of Meta's lemon node detection (Kokolis et al. 2024)
SUSPECT_JOBS = 2  # strikes of so many distinct jobs make a node suspect
_VOUCHED = ("kernel", "nvml", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes a job could have run on: those of its partition."""

    nodes: tuple[Node, ...] = ()

    @property
    def largest_mem_mib(self) -> int:
        """The most memory a job can have on one node; 0 when unknown."""
        return max((node.mem_mib for node in self.nodes), default=0)

    def allowance(self, share: float) -> int:
        """How many nodes may be excluded or drained by us: `share` of them, one in the smallest cluster; 0 is none."""
        return max(1, int(share * len(self.nodes))) if share > 0 else 0


def fleet_of(snapshot: Snapshot, partition: str) -> Fleet:
    """The nodes of `partition` ("a,b" is both); all of them when nothing is known of it."""
    wanted = set(partition.split(","))
    return Fleet(nodes=tuple(n for n in snapshot.nodes if wanted & set(n.partitions)) or snapshot.nodes)


def drained_by_us(node: Node) -> bool:
    """True when the drain is ours: its Reason says so, and no other is ever touched."""
    return "DRAIN" in node.flags and node.reason.startswith(DRAIN_PREFIX)


def blamed_node(diagnosis: Diagnosis, record: AttemptRecord) -> str:
    """The node at fault, "" for none: named by kernel, NVML or Slurm, and one that Slurm says the job ran on."""
    vouched = diagnosis.conclusive or any(_vouched(citation) for citation in diagnosis.evidence)
    return diagnosis.node if vouched and diagnosis.node in record.nodes else ""


def lost_node(diagnosis: Diagnosis, record: AttemptRecord, fleet: Fleet) -> str:
    """For a node failure that names no node: the only one of the job's nodes that Slurm says is down, else ""."""
    if diagnosis.category != "node_failure" or diagnosis.node:
        return ""
    own = [node for node in fleet.nodes if node.name in record.nodes]
    down = [node.name for node in own if node.state == "DOWN" or "NOT_RESPONDING" in node.flags]
    return down[0] if len(down) == 1 else ""


def strikes_of(diagnosis: Diagnosis, record: AttemptRecord) -> tuple[Strike, ...]:
    """At most one: a fault of the node that was blamed."""
    node = blamed_node(diagnosis, record)
    if not node or not (diagnosis.conclusive or diagnosis.decision == "retry_elsewhere"):
        return ()
    text = next((c.text for c in diagnosis.evidence if _vouched(c)), "")
    return (Strike(node=node, cause=diagnosis.category, conclusive=diagnosis.conclusive, text=text),)


def drains_of(diagnosis: Diagnosis, record: AttemptRecord) -> tuple[Ruled, ...]:
    """The drain that a conclusive fault asks for. The Reason holds ids only: a kernel line names the user's program."""
    node = blamed_node(diagnosis, record)
    if not node or not diagnosis.conclusive:
        return ()
    what = diagnosis.category + (f" ({diagnosis.signature})" if diagnosis.signature else "")
    reason = f"{DRAIN_PREFIX} {what}, seen by job {record.attempt.job_id}"
    because = f"conclusive fault: {what}"
    return (Ruled(rule="drain", action=SlurmAction(verb=Verb.DRAIN, target=node, value=reason, because=because)),)


def health(strikes: Iterable[StrikeRecord], nodes: Iterable[Node], *, now: float) -> tuple[NodeHealth, ...]:
    """What is published about nodes, by name: drained by us, else suspect by the strikes of several jobs."""
    counted: dict[str, list[StrikeRecord]] = {}
    for strike in strikes:
        if strike.at >= now - WINDOW_S:
            counted.setdefault(strike.node, []).append(strike)
    found = {name: _suspect(name, struck) for name, struck in counted.items() if _jobs(struck) >= SUSPECT_JOBS}
    for node in nodes:
        if drained_by_us(node):
            since = max((strike.at for strike in counted.get(node.name, [])), default=now)
            found[node.name] = NodeHealth(node=node.name, status="drained", since=since, reason=node.reason)
    return tuple(entry for _, entry in sorted(found.items()))


def _vouched(citation: Citation) -> bool:
    return citation.source.partition(":")[0].lower() in _VOUCHED


def _jobs(strikes: list[StrikeRecord]) -> int:
    return len({strike.job_id for strike in strikes})


def _suspect(name: str, strikes: list[StrikeRecord]) -> NodeHealth:
    causes = ", ".join(sorted({strike.cause for strike in strikes}))
    reason = f"{len(strikes)} strikes by {_jobs(strikes)} jobs within 28 days: {causes}"
    return NodeHealth(node=name, status="suspect", since=strikes[0].at, reason=reason)
