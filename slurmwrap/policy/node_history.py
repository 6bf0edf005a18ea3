"""NodeHistory: what kernel, NVML and Slurm said about nodes within the window, as records; times in Unix seconds.

Filled by store/database.py, judged by node_score.py. Nothing in it is a user's claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.model.observation import Context, Observation

REPAIRED, LIFTED, CLEARED = "repaired", "lifted", "cleared"
# Lines of one run on one node that are kept, and characters of each.
_LINES, _CAP = 64, 500
# Lines over which the driver prints that a GPU fell off the bus.
_SPREAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """One kernel line about a GPU (Xid, SXid) that an Epilog read on `node` while the job held it."""

    node: str
    at: float
    job_id: int
    # Of the job; -1 when unknown.
    uid: int
    text: str
    # Of a run of this job, as far as is known.
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """One run that Slurm ended because of a node. `named`: the node that kernel, NVML or Slurm blame, "" for none."""

    nodes: tuple[str, ...]
    at: float
    job_id: int
    uid: int
    named: str = ""
    text: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What ran on a node within the window: runs that ended there, and the hours they held it."""

    node: str
    runs: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """A time that a node was taken out of service (drained, failed or down), as Slurm was seen to say."""

    node: str
    began: float
    reason: str = ""
    ours: bool = False
    # None: it is still out.
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A mark that people left on a node. `kind`: REPAIRED, LIFTED (they lifted a drain of slurmwrap's), CLEARED."""

    node: str
    at: float
    who: str
    kind: str = REPAIRED
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """All of it, for all nodes or one. `exposure` is always the whole fleet's: a node is compared with the others."""

    strikes: tuple[StrikeRecord, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    removals: tuple[Removal, ...] = ()
    repairs: tuple[Repair, ...] = ()
    exposure: tuple[Exposure, ...] = ()


def list_gpu_faults(observation: Observation) -> tuple[GpuFault, ...]:
    """What an Epilog's kernel lines say about GPUs; () for what any other hook or a user wrote."""
    found = observation.facts.get("kernel")
    if observation.context is not Context.EPILOG or not observation.node or not isinstance(found, list | tuple):
        return ()
    texts = [str(line.get("text", "")) for line in found if isinstance(line, Mapping)]
    uid = observation.facts.get("uid")
    return tuple(
        GpuFault(
            node=observation.node,
            at=observation.at,
            job_id=observation.job_id,
            uid=uid if isinstance(uid, int) else -1,
            text=text,
        )
        for text in list(dict.fromkeys(_select_gpu_lines(texts)))[:_LINES]
    )


def _select_gpu_lines(texts: list[str]) -> Iterable[str]:
    for at, text in enumerate(texts):
        if "NVRM: The NVIDIA GPU" in text:
            yield " ".join(texts[at : at + _SPREAD])[:_CAP]
        elif "Xid" in text or ("NVRM" in text and "fallen off the bus" in text):
            yield text[:_CAP]


def find_changed_removals(
    known: Iterable[Removal], out: Mapping[str, tuple[str, bool]], nodes: Iterable[str], *, now: float
) -> tuple[Removal, ...]:
    """Removals that began or ended since `known` (those still open) was written. `out`: node -> (Reason, ours)."""
    names = frozenset(nodes)
    still = {one.node: one for one in known}
    began = [Removal(node=n, began=now, reason=why, ours=ours) for n, (why, ours) in out.items() if n not in still]
    ended = [replace(one, ended=now) for node, one in still.items() if node in names and node not in out]
    return (*began, *ended)


def list_lifted_drains(changed: Iterable[Removal], by_us: Mapping[str, float]) -> tuple[Repair, ...]:
    """List drains of slurmwrap's that someone else lifted: they have looked at the node.

    `by_us`: node -> when slurmwrap last resumed it.
    """
    return tuple(
        Repair(node=one.node, at=one.ended, who="whoever lifted our drain", kind=LIFTED, note=one.reason)
        for one in changed
        if one.ours and one.ended is not None and by_us.get(one.node, 0.0) < one.began
    )
