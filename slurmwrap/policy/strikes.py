"""What failures say about nodes: strikes, drains to request, and the health that is published. Pure.

Only kernel, NVML and Slurm are trusted about a node; a log is the user's claim.
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

_TRUSTED_SOURCES = ("kernel", "nvml", "network", "slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes on which a job could have run: those of its partition."""

    nodes: tuple[Node, ...] = ()

    @property
    def largest_mem_mib(self) -> int:
        """Return the most memory that a job can have on one node, in MiB; 0 if unknown."""
        return max((node.mem_mib for node in self.nodes), default=0)

    def allowance(self, share: float) -> int:
        """Return how many nodes slurmwrap may exclude or drain: `share` of them, at least one; none if `share` is 0."""
        return max(1, int(share * len(self.nodes))) if share > 0 else 0


def make_fleet(snapshot: Snapshot, partition: str) -> Fleet:
    """Return the nodes of `partition` ("a,b" means both); all nodes if none is known in it."""
    wanted = set(partition.split(","))
    return Fleet(nodes=tuple(n for n in snapshot.nodes if wanted & set(n.partitions)) or snapshot.nodes)


def is_drained_by_slurmwrap(node: Node) -> bool:
    """Return True if the drain is slurmwrap's own, by its Reason. slurmwrap changes no other drain."""
    return "DRAIN" in node.flags and node.reason.startswith(DRAIN_PREFIX)


def find_blamed_node(diagnosis: Diagnosis, run: JobRun) -> str:
    """Return the node at fault, "" if none: named by kernel, NVML or Slurm, and allocated to the job."""
    trusted = diagnosis.conclusive or any(_is_trusted(citation) for citation in diagnosis.evidence)
    return diagnosis.node if trusted and diagnosis.node in run.nodes else ""


def find_down_node(diagnosis: Diagnosis, run: JobRun, fleet: Fleet) -> str:
    """Return the only one of the job's nodes that is down, for a node failure that names no node; else ""."""
    if diagnosis.category != "node_failure" or diagnosis.node:
        return ""
    own = [node for node in fleet.nodes if node.name in run.nodes]
    down = [node.name for node in own if node.state == "DOWN" or "NOT_RESPONDING" in node.flags]
    return down[0] if len(down) == 1 else ""


def make_strikes(diagnosis: Diagnosis, run: JobRun) -> tuple[Strike, ...]:
    """Return the strikes of a failure, at most one: a fault of the blamed node."""
    node = find_blamed_node(diagnosis, run)
    if not node or not (diagnosis.conclusive or diagnosis.decision == "retry_elsewhere"):
        return ()
    text = next((c.text for c in diagnosis.evidence if _is_trusted(c)), "")
    return (Strike(node=node, cause=diagnosis.category, conclusive=diagnosis.conclusive, text=text),)


def make_drain_actions(diagnosis: Diagnosis, run: JobRun) -> tuple[PlannedAction, ...]:
    """Return the drain for a conclusive fault. The Reason holds only ids: a kernel line names the user's program."""
    node = find_blamed_node(diagnosis, run)
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
    """One node that is not ok. `published` False: the cap is used up, so users are not asked to avoid it."""

    health: NodeHealth
    published: bool
    # None: drained by slurmwrap, without evidence in the window.
    score: NodeScore | None = None


def health(history: NodeHistory, nodes: Iterable[Node], config: Config, *, now: float) -> tuple[NodeHealth, ...]:
    """Return what is published about nodes, by name: drained > lemon > suspect, within placement.exclude_cap."""
    found = (one.health for one in standings(history, nodes, config, now=now) if one.published)
    return tuple(sorted(found, key=lambda entry: entry.node))


def standings(history: NodeHistory, nodes: Iterable[Node], config: Config, *, now: float) -> tuple[NodeStatus, ...]:
    """Return all nodes that are not ok, worst first. The cap counts drained nodes, lemons and suspects together.

    Drained nodes are published whatever the cap, because they are out of service anyway. Nodes that Slurm does not know
    are left out: an unknown name in --exclude makes sbatch refuse the job.
    """
    members = tuple(nodes)
    known = {node.name for node in members}
    judged = {s.node: s for s in compute_node_scores(history, config.nodes, now=now) if not known or s.node in known}
    drained = [
        _make_drained_status(node, judged.get(node.name), now) for node in members if is_drained_by_slurmwrap(node)
    ]
    gone = {one.health.node for one in drained}
    doubted = [s for s in judged.values() if s.status != OK and s.node not in gone]
    left = max(0, Fleet(nodes=members).allowance(config.placement.exclude_cap) - len(drained))
    found = [NodeStatus(health=_make_health(s), published=at < left, score=s) for at, s in enumerate(doubted)]
    return (*drained, *found)


def out_of_service(nodes: Iterable[Node]) -> dict[str, tuple[str, bool]]:
    """Return the nodes that are drained, failed or down, with the Reason and whether slurmwrap drained them."""
    out = (n for n in nodes if n.state == "DOWN" or n.flags & {"DRAIN", "FAIL"})
    return {node.name: (node.reason, is_drained_by_slurmwrap(node)) for node in out}


def _is_trusted(citation: Citation) -> bool:
    return citation.source.partition(":")[0].lower() in _TRUSTED_SOURCES


def _make_drained_status(node: Node, score: NodeScore | None, now: float) -> NodeStatus:
    since = max((term.at for term in score.terms), default=now) if score is not None else now
    node_health = NodeHealth(node=node.name, status="drained", since=since, reason=node.reason)
    return NodeStatus(health=node_health, published=True, score=score)


def _make_health(score: NodeScore) -> NodeHealth:
    """Return the published health of a judged node: numbers and causes only, no kernel line with a program's name."""
    status = "lemon" if score.status == LEMON else "suspect"
    struck = f"{score.jobs} job{'s' * (score.jobs != 1)} of {score.users} user{'s' * (score.users != 1)}"
    reason = f"faults of {struck} within the window, {score.ratio:.1f} times the fleet's rate"
    return NodeHealth(node=score.node, status=status, since=score.since, reason=reason)
