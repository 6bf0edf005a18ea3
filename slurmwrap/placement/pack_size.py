"""Choose how many members of an array share a GPU (gsub --pack=auto), from the resource profile of one of them. Pure.

It is a prediction: no two members are run together before. The limits are those under which 1,388 measured pairs
never had a combined throughput below 1.60: the utilizations alone add up to less than 100 %.
"""

from __future__ import annotations

import re

from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.colocation import MEMORY_SHARE
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit

_MOST_MEMBERS = 16
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


def find_card_mib(gpu_type: str) -> int | None:
    """Return the memory in MiB of a GPU by its type in Slurm; None if it is not known."""
    name = gpu_type.lower()
    size = _SIZE.search(name)
    words = re.split(r"[^a-z0-9]+", name)
    gib = int(size[1]) if size else next((_CARD_GIB[word] for word in words if word in _CARD_GIB), None)
    return None if gib is None else gib * 1000  # cards show some percent less than their nominal GiB


def choose_members(request: JobRequest, profile: ResourceProfile | None, snapshot: Snapshot) -> tuple[int, str]:
    """Return (members on each GPU, reason). 1 if anything that the choice needs is not known."""
    if profile is None:
        return 1, "no profile of this job is known yet; a pre-run measures it"
    if profile.gpu_mem_mib is None or profile.gpu_util is None:
        return 1, "its profile has no GPU memory or no GPU utilization"
    nodes = [node for node in snapshot.nodes if node.gpus]
    types = {request.shape.gpu_type} if request.shape.gpu_type else {node.gpu_type for node in nodes}
    cards = [find_card_mib(kind or profile.gpu_type) for kind in types]
    known = [card for card in cards if card is not None]
    if not known or len(known) < len(cards):
        return 1, f"the memory of GPU type {', '.join(sorted(map(str, types))) or 'unknown'} is not known"
    limits = {
        "GPU memory": int(MEMORY_SHARE * min(known) / max(1, profile.gpu_mem_mib)),
        "GPU utilization": int(1.0 / max(0.01, profile.gpu_util)),
        "CPUs": min((int(node.cpus / node.gpus / _cpus_of_member(request)) for node in nodes), default=1),
        "memory of the node": min((_fit_memory(request, profile, n.mem_mib // n.gpus) for n in nodes), default=1),
    }
    name, members = min(limits.items(), key=lambda item: item[1])
    members = max(1, min(members, _MOST_MEMBERS))
    return members, (
        f"by its profile, limited by {name}: {profile.gpu_mem_mib:,} MiB of {min(known):,} MiB and "
        f"{100 * profile.gpu_util:.0f} % of a GPU for each; not measured together"
    )


def _cpus_of_member(request: JobRequest) -> int:
    unit = request.shape.cpu_unit
    return (request.shape.cpus or 1) if unit in (CpuUnit.PER_TASK, CpuUnit.PER_GPU) else 1


def _fit_memory(request: JobRequest, profile: ResourceProfile, share_mib: int) -> int:
    """Return how many members fit into the memory that a node has for each of its GPUs."""
    shape = request.shape
    given = shape.mem_mib
    if given and shape.mem_unit is MemUnit.PER_CPU:
        given *= _cpus_of_member(request)
    need = given or profile.mem_mib_per_gpu
    return int(share_mib / need) if need else 1
