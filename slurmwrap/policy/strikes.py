"""What failures say about nodes: strikes, drains we may ask for, and the health that is published. Pure.

Only the kernel, NVML and Slurm are believed about a node; a log is the user's claim.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurmwrap.config.load_config import Config
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import Node, NodeHealth, Snapshot
from slurmwrap.model.decision import DRAIN_PREFIX, PlannedAction, SlurmAction, Strike, Verb
from slurmwrap.model.evidence import Citation, Diagnosis
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.node_history import NodeHistory
from slurmwrap.policy.node_score import LEMON, OK, NodeScore, compute_node_scores

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


def blamed_node(diagnosis: Diagnosis, run: JobRun) -> str:
    """The node at fault, "" for none: named by kernel, NVML or Slurm, and one that Slurm says the job ran on."""
    vouched = diagnosis.conclusive or any(_vouched(citation) for citation in diagnosis.evidence)
    return diagnosis.node if vouched and diagnosis.node in run.nodes else ""


def lost_node(diagnosis: Diagnosis, run: JobRun, fleet: Fleet) -> str:
    """For a node failure that names no node: the only one of the job's nodes that Slurm says is down, else ""."""
    if diagnosis.category != "node_failure" or diagnosis.node:
        return ""
    own = [node for node in fleet.nodes if node.name in run.nodes]
    down = [node.name for node in own if node.state == "DOWN" or "NOT_RESPONDING" in node.flags]
    return down[0] if len(down) == 1 else ""


def strikes_of(diagnosis: Diagnosis, run: JobRun) -> tuple[Strike, ...]:
    """At most one: a fault of the node that was blamed."""
    node = blamed_node(diagnosis, run)
    if not node or not (diagnosis.conclusive or diagnosis.decision == "retry_elsewhere"):
        return ()
    text = next((c.text for c in diagnosis.evidence if _vouched(c)), "")
    return (Strike(node=node, cause=diagnosis.category, conclusive=diagnosis.conclusive, text=text),)


def drains_of(diagnosis: Diagnosis, run: JobRun) -> tuple[PlannedAction, ...]:
    """The drain that a conclusive fault asks for. The Reason holds ids only: a kernel line names the user's program."""
    node = blamed_node(diagnosis, run)
    if not node or not diagnosis.conclusive:
        return ()
    what = diagnosis.category + (f" ({diagnosis.signature})" if diagnosis.signature else "")
    text = f"{DRAIN_PREFIX} {what}, seen by job {run.attempt.job_id}"
    return (
        PlannedAction(
            rule="drain",
            action=SlurmAction(verb=Verb.DRAIN, target=node, value=text, reason=f"conclusive fault: {what}"),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node that is not ok. `published` False: the cap is used up, so that no one is asked to avoid it."""

    health: NodeHealth
    published: bool
    # None: drained by us, without evidence in the window.
    score: NodeScore | None = None


def health(history: NodeHistory, nodes: Iterable[Node], config: Config, *, now: float) -> tuple[NodeHealth, ...]:
    """What is published about nodes, by name: drained by us > lemon > suspect, within placement.exclude_cap."""
    found = (one.health for one in standings(history, nodes, config, now=now) if one.published)
    return tuple(sorted(found, key=lambda entry: entry.node))


def standings(history: NodeHistory, nodes: Iterable[Node], config: Config, *, now: float) -> tuple[NodeStatus, ...]:
    """All nodes that are not ok, worst first. The cap counts drained, lemons and suspects together.

    What is drained is published whatever the cap says: it is so. Nodes that Slurm does not know are left out: an
    unknown name in --exclude makes sbatch refuse the job.
    """
    members = tuple(nodes)
    known = {node.name for node in members}
    judged = {s.node: s for s in compute_node_scores(history, config.nodes, now=now) if not known or s.node in known}
    drained = [_drained(node, judged.get(node.name), now) for node in members if drained_by_us(node)]
    gone = {one.health.node for one in drained}
    doubted = [s for s in judged.values() if s.status != OK and s.node not in gone]
    room = max(0, Fleet(nodes=members).allowance(config.placement.exclude_cap) - len(drained))
    found = [NodeStatus(health=_health(s), published=at < room, score=s) for at, s in enumerate(doubted)]
    return (*drained, *found)


def out_of_service(nodes: Iterable[Node]) -> dict[str, tuple[str, bool]]:
    """Nodes that Slurm says are drained, failed or down, with the Reason and whether the drain is ours."""
    out = (n for n in nodes if n.state == "DOWN" or n.flags & {"DRAIN", "FAIL"})
    return {node.name: (node.reason, drained_by_us(node)) for node in out}


def _vouched(citation: Citation) -> bool:
    return citation.source.partition(":")[0].lower() in _VOUCHED


def _drained(node: Node, score: NodeScore | None, now: float) -> NodeStatus:
    since = max((term.at for term in score.terms), default=now) if score is not None else now
    told = NodeHealth(node=node.name, status="drained", since=since, reason=node.reason)
    return NodeStatus(health=told, published=True, score=score)


def _health(score: NodeScore) -> NodeHealth:
    """The reason holds numbers and causes only: it is published, and a kernel line names the user's program."""
    status = "lemon" if score.status == LEMON else "suspect"
    struck = f"{score.jobs} job{'s' * (score.jobs != 1)} of {score.users} user{'s' * (score.users != 1)}"
    reason = f"faults of {struck} within the window, {score.ratio:.1f} times the fleet's rate"
    return NodeHealth(node=score.node, status=status, since=score.since, reason=reason)
