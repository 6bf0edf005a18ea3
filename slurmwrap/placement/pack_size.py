"""Choose how many members of an array share a GPU (gsub --pack=auto), from the resource profile of one of them. Pure.

A table of speeds that a pre-run measured decides. Without one it is a prediction, with the limits under which 1,388
measured pairs never had a combined throughput below 1.60: the utilizations alone add up to less than 100 %.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.resource_profile import PACK_ENDS, PackPoint, ResourceProfile
from slurmwrap.profiling.colocation import MEMORY_SHARE
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit

MOST_MEMBERS = 16
# Of two numbers of members whose speed together differs by less than this share, the smaller one is taken.
_SAME = 0.05
# Memory of GPUs in GiB, by the words of their type in Slurm; of two sizes the smaller one (NVIDIA's and AMD's data
# sheets). A type that names its size, as in a100-80gb, is taken by that.
_CARD_GIB = {
    "b300": 268,
    "b200": 180,
    "h200": 141,
    "gh200": 96,
    "h100": 80,
    "a100": 40,
    "v100": 16,
    "p100": 12,
    "a30": 24,
    "a40": 48,
    "l40s": 48,
    "l40": 48,
    "l4": 24,
    "t4": 16,
    "a10": 24,
    "a6000": 48,
    "mi300x": 192,
    "mi250x": 64,
}
_SIZE = re.compile(r"(\d{2,3})gb?\b", re.ASCII)
# A slice of a GPU by MIG, as NVIDIA names its profiles: 1g.10gb has one of seven parts of the processors.
_SLICE = re.compile(r"(?<![0-9a-z])(\d)g\.(\d{1,3})gb\b", re.ASCII)
_SLICES_OF_GPU = 7


def find_card_mib(gpu_type: str) -> int | None:
    """Return the memory in MiB of a GPU, or of a slice of one, by its type in Slurm; None if it is not known."""
    name = gpu_type.lower()
    part = _SLICE.search(name)
    size = _SIZE.search(name)
    words = re.split(r"[^a-z0-9]+", name)
    gib = int(size[1]) if size else next((_CARD_GIB[word] for word in words if word in _CARD_GIB), None)
    gib = int(part[2]) if part else gib
    return None if gib is None else gib * 1000  # cards show some percent less than their nominal GiB


def choose_members(
    request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot, least_gain: float
) -> tuple[int, str]:
    """Return (members on each GPU, reason). 1 if anything that the choice needs is not known.

    `least_gain`: members are packed if a pre-run measured that all of them together are so many times as fast as one.
    """
    kinds = _list_types(request, snapshot)
    if is_of_slices(request, snapshot):
        return 1, f"GPU type {', '.join(sorted(kinds))} is a slice of a GPU (MIG): one member on each slice"
    if profile is None:
        return 1, "no profile of this job is known yet"
    if profile.pack_speeds:
        limits = _list_limits(request, profile, snapshot)
        fitting = [point for point in profile.pack_speeds if point.members <= min(limits.values())]
        members, reason = choose_measured_members(fitting, least_gain)
        return members, f"{reason}: {describe_speeds(profile.pack_speeds, profile.pack_end)}"
    if profile.pack_end:
        return 1, f"its pre-run could not measure it: {PACK_ENDS.get(profile.pack_end, profile.pack_end)}"
    if profile.gpu_mem_mib is None or profile.gpu_util is None:
        return 1, "its profile has no GPU memory or no GPU utilization"
    card = _find_smallest_card(request, profile, snapshot)
    if card is None:
        return 1, f"the memory of GPU type {', '.join(sorted(kinds)) or 'unknown'} is not known"
    if find_member_mib(request, profile) is None:
        return 1, "the memory that one member needs on its node is not known"
    name, members = min(_list_limits(request, profile, snapshot).items(), key=lambda item: item[1])
    return max(1, min(members, MOST_MEMBERS)), (
        f"by its profile, limited by {name}: {profile.gpu_mem_mib:,} MiB of {card:,} MiB and "
        f"{100 * profile.gpu_util:.0f} % of a GPU for each; not measured together"
    )


def choose_measured_members(points: Sequence[PackPoint], least_gain: float) -> tuple[int, str]:
    """Return (members on each GPU, reason) by the speeds of members side by side.

    The fastest together count; of numbers within 5 % of it the smallest. One member, if the gain is too small.
    """
    alone = next((point.steps_per_s for point in points if point.members == 1), None)
    if alone is None:
        return 1, "not measured for one member"
    together = {point.members: point.members * point.steps_per_s / alone for point in points}
    best = max(together.values())
    members = min(number for number, gain in together.items() if gain >= (1 - _SAME) * best)
    if members == 1 or together[members] < least_gain:
        return 1, f"measured: no number of members is {least_gain:g} times as fast as one"
    return members, f"measured: {members} together are {together[members]:.2f} times as fast as one"


def describe_speeds(points: Sequence[PackPoint], end: str) -> str:
    """Return the table of measured speeds in one line."""
    rows = [
        f"{point.steps_per_s:.3g} steps/s alone"
        if point.members == 1
        else f"{point.members} with {point.steps_per_s:.3g} each = {point.members * point.steps_per_s:.3g}"
        for point in points
    ]
    return "; ".join((*([", ".join(rows)] if rows else []), *([PACK_ENDS[end]] if end in PACK_ENDS else [])))


def find_most_members(request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot) -> int:
    """Return how many members may be tried together on a GPU: what is not known does not limit them."""
    return max(1, min(MOST_MEMBERS, *_list_limits(request, profile, snapshot).values()))


def is_of_slices(request: JobRequest, snapshot: Snapshot) -> bool:
    """Return whether all GPUs that a task may get are slices of GPUs (MIG)."""
    kinds = _list_types(request, snapshot)
    return bool(kinds) and all(_SLICE.search(kind.lower()) for kind in kinds)


def propose_slice(request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot) -> str:
    """Return advice to use slices of GPUs (MIG) that the job's nodes have and that one member fits into; "" if none.

    It fits with its GPU memory, and with its utilization of a whole GPU if that is known.
    """
    if profile is None or profile.gpu_mem_mib is None:
        return ""
    slices = [
        (int(found[2]), kind)
        for node in _list_nodes(request, snapshot)
        for kind in node.gpu_type.split(",")
        if (found := _SLICE.search(kind.lower()))
        and profile.gpu_mem_mib <= MEMORY_SHARE * int(found[2]) * 1000
        and (profile.gpu_util or 0) <= int(found[1]) / _SLICES_OF_GPU
    ]
    if not slices or _SLICE.search((request.shape.gpu_type or "").lower()):
        return ""
    gib, kind = min(slices)
    return (
        f"a member fits into a slice of a GPU (MIG) of its own, with {profile.gpu_mem_mib:,} of {gib * 1000:,} MiB: "
        f"--gres=gpu:{kind}:1 without --pack takes one for each member, instead of time slices"
    )


def _list_nodes(request: JobRequest, snapshot: Snapshot) -> list[Node]:
    """Return the nodes with GPUs of the job's partitions; those of all partitions if none of them is known."""
    partitions = set((request.value("partition") or snapshot.default_partition).split(",")) - {""}
    nodes = [node for node in snapshot.nodes if node.gpus]
    return [node for node in nodes if not partitions.isdisjoint(node.partitions)] or nodes


def _list_types(request: JobRequest, snapshot: Snapshot) -> set[str]:
    """Return the types of the GPUs that a task may get."""
    if request.shape.gpu_type:
        return {request.shape.gpu_type}
    return {kind for node in _list_nodes(request, snapshot) for kind in node.gpu_type.split(",") if kind}


def _find_smallest_card(request: JobRequest, profile: ResourceProfile, snapshot: Snapshot) -> int | None:
    kinds = _list_types(request, snapshot) or {profile.gpu_type}
    cards = [find_card_mib(kind) for kind in kinds]
    known = [card for card in cards if card is not None]
    return min(known) if known and len(known) == len(cards) else None


def _list_limits(request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot) -> dict[str, int]:
    """Return how many members fit by each resource of which the need and the amount are known."""
    kind = request.shape.gpu_type
    nodes = [n for n in _list_nodes(request, snapshot) if not kind or not n.gpu_type or kind in n.gpu_type.split(",")]
    limits = {"CPUs": min((int(node.cpus / node.gpus / count_cpus(request)) for node in nodes), default=1)}
    if need := find_member_mib(request, profile):
        limits["memory of the node"] = min((node.mem_mib // node.gpus // need for node in nodes), default=1)
    if profile is not None and profile.gpu_util is not None:
        limits["GPU utilization"] = int(1.0 / max(0.01, profile.gpu_util))
    if profile is not None and profile.gpu_mem_mib is not None:
        card = _find_smallest_card(request, profile, snapshot)
        if card is not None:
            limits["GPU memory"] = int(MEMORY_SHARE * card / max(1, profile.gpu_mem_mib))
    return limits


def count_cpus(request: JobRequest) -> int:
    """Return the CPUs of one member."""
    unit = request.shape.cpu_unit
    return (request.shape.cpus or 1) if unit in (CpuUnit.PER_TASK, CpuUnit.PER_GPU) else 1


def find_member_mib(request: JobRequest, profile: ResourceProfile | None) -> int | None:
    """Return the memory of one member in MiB, as requested or else as measured; None if it is not known."""
    shape = request.shape
    given = shape.mem_mib
    if given and shape.mem_unit is MemUnit.PER_CPU:
        given *= count_cpus(request)
    return given or (None if profile is None else profile.mem_mib_per_gpu)
