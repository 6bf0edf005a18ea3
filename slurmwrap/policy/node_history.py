"""NodeHistory: faults, failures, removals and repairs of nodes within the window, as records. Times in Unix seconds.

store/database.py fills it, node_score.py judges it. It has only what kernel, NVML and Slurm reported, no user's claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from slurmwrap.diagnosis.amdgpu import parse_amdgpu
from slurmwrap.diagnosis.network_facts import format_port_lines, list_broken_links
from slurmwrap.diagnosis.node_facts import format_clock_lines, is_slowed_for_long
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.model.observation import Context, Observation

REPAIRED, LIFTED, CLEARED = "repaired", "lifted", "cleared"
CHECK_PASSED, CHECK_FAILED = "check_passed", "check_failed"
# How many lines of one run on one node are kept, and how many characters of each.
_LINES, _CAP = 64, 500
# Number of lines over which the driver prints that a GPU fell off the bus.
_SPREAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFault:
    """One line of an Epilog about a fault on `node` while the job ran: a kernel line about a GPU, a port, or clocks."""

    node: str
    at: float
    job_id: int
    uid: int  # the job's user; -1 if unknown
    text: str
    # Incident of a run of this job, as far as is known.
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailure:
    """One run that Slurm ended because of a node. `named`: the node that kernel, NVML or Slurm blame, "" if none."""

    nodes: tuple[str, ...]
    at: float
    job_id: int
    uid: int
    named: str = ""
    text: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What ran on a node within the window: number of runs that ended there, and their hours on it."""

    node: str
    runs: int
    hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One time out of service for a node (drained, failed or down), as seen in Slurm's state."""

    node: str
    began: float
    reason: str = ""
    ours: bool = False
    # None: it is still out of service
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A person's mark on a node. `kind`: REPAIRED, LIFTED (they lifted slurmwrap's drain) or CLEARED."""

    node: str
    at: float
    who: str
    kind: str = REPAIRED
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """One part of a node's check (node_hooks/node_check.py). `state`: "ok", "fail" or "skipped"."""

    name: str
    state: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """One check of a node before its return to service. `kind`: CHECK_PASSED or CHECK_FAILED; `note`: what failed."""

    node: str
    at: float
    who: str
    kind: str
    note: str = ""
    parts: tuple[CheckedPart, ...] = ()
    # NVML asks for a reboot of the node.
    reboot: bool = False

    @property
    def passed(self) -> bool:
        """Whether no part failed."""
        return self.kind == CHECK_PASSED


def make_node_check(node: str, at: float, who: str, parts: Iterable[CheckedPart], *, reboot: bool = False) -> NodeCheck:
    """Return the record of a check with these parts. A check without parts has failed."""
    made = tuple(parts)
    failed = [part for part in made if part.state == "fail"]
    kind = CHECK_PASSED if made and not failed else CHECK_FAILED
    note = "; ".join(f"{part.name}: {part.text}" for part in failed)
    return NodeCheck(node=node, at=at, who=who, kind=kind, note=note, parts=made, reboot=reboot)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """The history of all nodes, or of one. `exposure` is always that of the whole fleet, for the comparison."""

    strikes: tuple[StrikeRecord, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()
    failures: tuple[NodeFailure, ...] = ()
    removals: tuple[Removal, ...] = ()
    repairs: tuple[Repair, ...] = ()
    exposure: tuple[Exposure, ...] = ()


def list_gpu_faults(observation: Observation) -> tuple[GpuFault, ...]:
    """Return what an Epilog reports about GPUs (kernel lines, held clocks) and broken links; () for other records."""
    found = observation.facts.get("kernel")
    if observation.context is not Context.EPILOG or not observation.node:
        return ()
    texts = (
        [str(line.get("text", "")) for line in found if isinstance(line, Mapping)]
        if isinstance(found, list | tuple)
        else []
    )
    others = [event.text for event in list_broken_links(tuple(format_port_lines(observation)))]
    others += [event.text for event in parse_amdgpu(texts) if event.category]
    others += filter(is_slowed_for_long, format_clock_lines(observation))
    uid = observation.facts.get("uid")
    return tuple(
        GpuFault(
            node=observation.node,
            at=observation.at,
            job_id=observation.job_id,
            uid=uid if isinstance(uid, int) else -1,
            text=text,
        )
        for text in list(dict.fromkeys((*others, *_select_gpu_lines(texts))))[:_LINES]
    )


def _select_gpu_lines(texts: list[str]) -> Iterable[str]:
    for at, text in enumerate(texts):
        if "NVRM: The NVIDIA GPU" in text:
            yield " ".join(texts[at : at + _SPREAD])[:_CAP]
        elif "Xid" in text or ("NVRM" in text and "fallen off the bus" in text):
            yield text[:_CAP]


def find_changed_removals(
    known: Iterable[Removal], out: Mapping[str, tuple[str, bool]], checked: Collection[str], *, now: float
) -> tuple[Removal, ...]:
    """Return the removals that began or ended since `known` was written.

    `known`: the removals that are still open. `out`: node -> (Reason, whether slurmwrap drained it). `checked`: nodes
    that are in service only for their check. The removal of a node that Slurm does not have any more ends too.
    """
    still = {one.node: one for one in known}
    began = [Removal(node=n, began=now, reason=why, ours=ours) for n, (why, ours) in out.items() if n not in still]
    ended = [replace(one, ended=now) for node, one in still.items() if node not in checked and node not in out]
    return (*began, *ended)


def list_lifted_drains(
    changed: Iterable[Removal], by_us: Mapping[str, float], nodes: Collection[str]
) -> tuple[Repair, ...]:
    """Return slurmwrap's drains that someone else lifted, as marks: that person has looked at the node.

    `by_us`: node -> when slurmwrap last resumed it. `nodes`: those that Slurm has; a renamed node was not looked at.
    """
    return tuple(
        Repair(node=one.node, at=one.ended, who="the person who lifted slurmwrap's drain", kind=LIFTED, note=one.reason)
        for one in changed
        if one.node in nodes and one.ours and one.ended is not None and by_us.get(one.node, 0.0) < one.began
    )
