"""Bounds on the CPUs and memory per GPU that one job may be given, by its profile: they help and never harm. Pure.

The rules (docs/placement.md; "Tuning may help, never harm"):

CPUs. Raised to the measured need, but not above the GPU-proportional share of the node: the rest belongs to the node's
other GPUs. Lowered only if the job asked for more than it needs, and then
- after a pre-run alone (a few steps, one GPU) not below the proportional share;
- after complete runs down to the need;
- not at all if the job used all CPUs it had (then it may need more), and
- not below the proportional share if the job owns all GPUs of the node: no other job could use them.

Memory. Raised to the measured peak with the configured margin, up to what every node that could run the job has: being
killed is worse than waiting. Lowered below the request only after `tuning.runs_before_shrink` complete successful runs,
and not below the proportional share if the job owns all GPUs of the node.

In an imported profile, memory is a wish for page cache and not a measured peak, so it is not used here.

If the speed of the job is known at several numbers of CPUs, placement/allocate.py divides within these bounds
(demand.py). Otherwise these bounds alone decide. Without a profile everything stays as the user asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.resource_profile import IMPORTED, ResourceProfile
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config, Tuning
    from slurmwrap.model.cluster import Node, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """CPUs and MiB per GPU to ask for; None: leave them as asked. The reasons are whole clauses for `--explain`."""

    cpus_per_gpu: float | None = None
    mem_mib_per_gpu: int | None = None
    cpu_reason: str = ""
    mem_reason: str = ""


def compute_tuning_bounds(shape: ResourceShape, profile: ResourceProfile | None, node: Node, config: Config) -> Bounds:
    """Return what one GPU of the job may get on nodes like `node` (make_least_node)."""
    if profile is None or shape.exclusive or not node.gpus or not shape.gpus_per_node:
        return Bounds()
    cpus, cpu_reason = _compute_cpus(shape, profile, node)
    memory, mem_reason = _compute_memory(shape, profile, node, config)
    return Bounds(cpus_per_gpu=cpus, mem_mib_per_gpu=memory, cpu_reason=cpu_reason, mem_reason=mem_reason)


def make_least_node(nodes: Sequence[Node], partitions: Sequence[Partition]) -> Node:
    """Return a node with what each of `nodes` has at least and `partitions` allow, for a job that may run on any of
    them.
    """
    cpus = min(node.cpus for node in nodes)
    memory = min(node.mem_mib for node in nodes)
    return replace(
        nodes[0],
        cpus=min([cpus, *(p.max_cpus_per_node for p in partitions if p.max_cpus_per_node)]),
        mem_mib=min([memory, *_list_memory_limits(partitions, cpus)]),
        gpus=max(node.gpus for node in nodes),
    )


def _compute_cpus(shape: ResourceShape, profile: ResourceProfile, node: Node) -> tuple[float | None, str]:
    """Return (CPUs per GPU to ask for, reason); (None, "") to leave them as asked. The rules are in the module
    docstring.
    """
    asked = compute_asked_cpus_per_gpu(shape)
    # With --mem-per-cpu a change of the CPUs would change the memory too.
    if profile.cpus_per_gpu is None or asked is None or shape.mem_unit is MemUnit.PER_CPU:
        return None, ""
    need, share = max(1.0, profile.cpus_per_gpu), node.cpus / node.gpus
    if need > asked or (profile.cpu_bound and share > asked):
        target = min(share, share if profile.cpu_bound else need)
        if target <= asked:
            return None, ""
        used = "used all the CPUs it had" if profile.cpu_bound else f"needs {need:.1f} CPUs per GPU"
        return target, f"it {used} ({describe_basis(profile)}) and asked for {asked:.3g}; its share is {share:.3g}"
    target = max(need, compute_least_cpus(shape, profile, node))
    if profile.cpu_bound or target >= asked:
        return None, ""
    return target, f"it needs {need:.1f} CPUs per GPU ({describe_basis(profile)}) and asked for {asked:.3g}"


def compute_least_cpus(shape: ResourceShape, profile: ResourceProfile, node: Node) -> float:
    """Return the CPUs per GPU that the job keeps, whatever its profile suggests.

    If all its CPUs were busy, that is at least the proportional share.
    """
    asked, share = compute_asked_cpus_per_gpu(shape) or 1.0, node.cpus / node.gpus
    if profile.cpu_bound:
        return max(asked, share)
    if not profile.runs or shape.gpus_per_node == node.gpus:
        return min(asked, share)
    return max(1.0, (get_tasks_per_node(shape) or 1) / (shape.gpus_per_node or 1))


def _compute_memory(
    shape: ResourceShape, profile: ResourceProfile, node: Node, config: Config
) -> tuple[int | None, str]:
    """Return (MiB per GPU to ask for, reason); (None, …) to leave it as asked. Rules: module docstring."""
    # --mem=0 asks for all memory of the node on purpose.
    if shape.mem_mib == 0:
        return None, ""
    asked = compute_asked_mem_mib_per_gpu(shape)
    # Without an own number Slurm's default applies, which is often the whole node.
    held = node.mem_mib // (shape.gpus_per_node or 1) if asked is None else asked
    target = compute_least_mem_mib(shape, profile, node, config.tuning)
    measured = f"its peak was {profile.mem_mib_per_gpu} MiB per GPU ({describe_basis(profile)})"
    if target > held:
        cut = target < ceil((profile.mem_mib_per_gpu or 0) * config.tuning.memory_margin)
        least = ", as far as node and partition allow" if cut else ""
        return target, f"{measured}; with a margin more than the {held} MiB asked for{least}"
    # A job with a measured surface reads faster what it keeps in memory; a cut to the peak would lose that.
    return (target, measured) if target < held and not profile.surface else (None, "")


def compute_least_mem_mib(shape: ResourceShape, profile: ResourceProfile, node: Node, tuning: Tuning) -> int:
    """Return the MiB per GPU that the job must have: its peak with the margin.

    No less than the request until enough runs have shown the peak.
    """
    gpus, asked = shape.gpus_per_node or 1, compute_asked_mem_mib_per_gpu(shape)
    held = node.mem_mib // gpus if asked is None else asked
    if profile.mem_mib_per_gpu is None or profile.source == IMPORTED:
        return held
    need = max(ceil(profile.mem_mib_per_gpu * tuning.memory_margin), ceil(tuning.memory_floor_mib / gpus))
    if need > held:
        return max(held, min(need, node.mem_mib // gpus))
    if profile.runs < tuning.runs_before_shrink or shape.mem_unit is MemUnit.PER_CPU:
        return held
    return max(need, min(held, node.mem_mib // node.gpus) if gpus == node.gpus else 0)


def compute_asked_cpus_per_gpu(shape: ResourceShape) -> float | None:
    """Return the CPUs per GPU that the request fixes, else None. Without an own number Slurm gives one CPU per task."""
    tasks = get_tasks_per_node(shape)
    if shape.cpu_unit is CpuUnit.PER_GPU:
        # Each task gets at least one CPU. With more tasks than CPUs, --cpus-per-gpu does not decide (22.05.8).
        known = shape.tasks is None or tasks is not None
        crowded = (tasks or 1) > (shape.cpus or 0) * (shape.gpus_per_node or shape.gpus)
        return float(shape.cpus) if shape.cpus and known and not crowded else None
    if not tasks or not shape.gpus_per_node:
        return None
    return tasks * (shape.cpus or 1) / shape.gpus_per_node


def compute_asked_mem_mib_per_gpu(shape: ResourceShape) -> int | None:
    """Return the MiB per GPU that the request fixes, else None."""
    if not shape.mem_mib or not shape.gpus_per_node:
        return None
    if shape.mem_unit is MemUnit.PER_GPU:
        return shape.mem_mib
    if shape.mem_unit is MemUnit.PER_NODE:
        return shape.mem_mib // shape.gpus_per_node
    cpus = compute_asked_cpus_per_gpu(shape)
    return int(shape.mem_mib * cpus) if cpus and shape.mem_unit is MemUnit.PER_CPU else None


def get_tasks_per_node(shape: ResourceShape) -> int | None:
    """Return the tasks on each node if the request fixes them, else None. sbatch's default is one per node."""
    if shape.tasks_per_node:
        return shape.tasks_per_node
    fixed = shape.nodes if shape.nodes and shape.max_nodes in (None, shape.nodes) else None
    if shape.tasks is None:
        return 1 if fixed or shape.nodes is None else None
    return shape.tasks // fixed if fixed and shape.tasks % fixed == 0 else 1 if shape.tasks == 1 else None


def describe_basis(profile: ResourceProfile) -> str:
    """Return what a number of the profile is based on, as part of a reason."""
    if profile.runs:
        return f"{profile.runs} complete run{'s' if profile.runs > 1 else ''}"
    return "pre-run" if profile.preruns else profile.source or "profile"


def _list_memory_limits(limits: Sequence[Partition], cpus: int) -> list[int]:
    per_node = [partition.max_mem_mib_per_node for partition in limits if partition.max_mem_mib_per_node]
    return per_node + [partition.max_mem_mib_per_cpu * cpus for partition in limits if partition.max_mem_mib_per_cpu]
