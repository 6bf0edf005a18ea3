"""Turns a profile into CPUs and memory per GPU that help and never harm. Pure.

The rules, in words (design 4, "Tuning may help, never harm"):

CPUs. Raised to the measured need, but not above the GPU-proportional share of the node: what lies above it belongs to
the node's other GPUs. Lowered only if the job asked for more than it needs, and then
- after a pre-run alone (a few steps, one GPU) not below the proportional share;
- after complete runs down to the need;
- not at all while the job used all CPUs it had (the need is then only known to be higher), and
- not below the proportional share where the job owns all GPUs of the node: nobody else could use them.

Memory. Raised to the measured peak with the configured margin, up to what every node that could run the job has: to be
killed is worse than to wait. Lowered below what was asked only after `tuning.runs_before_shrink` complete successful
runs, and not below the proportional share where the job owns all GPUs of the node.

Without a profile everything stays as asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from slurmwrap.cluster.node import Node
from slurmwrap.config import Config
from slurmwrap.job.request import CpuUnit, MemUnit, ResourceShape
from slurmwrap.profiling.profile import ResourceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """CPUs and MiB per GPU to ask for; None: leave as asked. The reasons are whole clauses for `--explain`."""

    cpus_per_gpu: float | None = None
    mem_mib_per_gpu: int | None = None
    cpu_reason: str = ""
    mem_reason: str = ""


def allocate(shape: ResourceShape, profile: ResourceProfile | None, node: Node, config: Config) -> Allocation:
    """What one GPU of the job gets on nodes like `node` (the smallest that could run it)."""
    if profile is None or shape.exclusive or not node.gpus or not shape.gpus_per_node:
        return Allocation()
    cpus, cpu_reason = _cpus(shape, profile, node)
    memory, mem_reason = _memory(shape, profile, node, config)
    return Allocation(cpus_per_gpu=cpus, mem_mib_per_gpu=memory, cpu_reason=cpu_reason, mem_reason=mem_reason)


def _cpus(shape: ResourceShape, profile: ResourceProfile, node: Node) -> tuple[float | None, str]:
    asked = asked_cpus_per_gpu(shape)
    # with --mem-per-cpu a change of the CPUs would change the memory too
    if profile.cpus_per_gpu is None or asked is None or shape.mem_unit is MemUnit.PER_CPU:
        return None, ""
    need, share = max(1.0, profile.cpus_per_gpu), node.cpus / node.gpus
    if need > asked or (profile.cpu_bound and share > asked):
        target = min(share, share if profile.cpu_bound else need)
        if target <= asked:
            return None, ""
        used = "used all the CPUs it had" if profile.cpu_bound else f"needs {need:.1f} CPUs per GPU"
        return target, f"it {used} ({_source(profile)}) and asked for {asked:.3g}; its share is {share:.3g}"
    if profile.cpu_bound:
        return None, ""
    floor = share if not profile.runs or shape.gpus_per_node == node.gpus else 1.0
    target = max(need, floor)
    if target >= asked:
        return None, ""
    return target, f"it needs {need:.1f} CPUs per GPU ({_source(profile)}) and asked for {asked:.3g}"


def _memory(shape: ResourceShape, profile: ResourceProfile, node: Node, config: Config) -> tuple[int | None, str]:
    gpus = shape.gpus_per_node or 1
    if profile.mem_mib_per_gpu is None or shape.mem_mib == 0:  # --mem=0: all of the node, on purpose
        return None, ""
    tuning = config.tuning
    peak = profile.mem_mib_per_gpu
    need = max(ceil(peak * tuning.memory_margin), ceil(tuning.memory_floor_mib / gpus))
    asked = asked_mem_mib_per_gpu(shape)
    measured = f"its peak was {peak} MiB per GPU ({_source(profile)})"
    if asked is not None and need > asked:
        target = min(need, node.mem_mib // gpus)
        return (target, f"{measured}, more than {asked} MiB with a margin") if target > asked else (None, "")
    # said nothing: Slurm's default holds, often the whole node
    ceiling = node.mem_mib // gpus if asked is None else asked
    if profile.runs < tuning.runs_before_shrink or shape.mem_unit is MemUnit.PER_CPU:
        return None, ""
    share = node.mem_mib // node.gpus
    target = max(need, min(ceiling, share) if gpus == node.gpus else 0)
    return (target, f"{measured} in {profile.runs} complete runs") if target < ceiling else (None, "")


def asked_cpus_per_gpu(shape: ResourceShape) -> float | None:
    """CPUs per GPU as asked; None where the request does not fix it. Said nothing: Slurm gives one per task."""
    if shape.cpu_unit is CpuUnit.PER_GPU:
        return float(shape.cpus) if shape.cpus else None
    tasks = tasks_per_node(shape)
    if not tasks or not shape.gpus_per_node:
        return None
    return tasks * (shape.cpus or 1) / shape.gpus_per_node


def asked_mem_mib_per_gpu(shape: ResourceShape) -> int | None:
    """MiB per GPU as asked; None where the request does not fix it."""
    if not shape.mem_mib or not shape.gpus_per_node:
        return None
    if shape.mem_unit is MemUnit.PER_GPU:
        return shape.mem_mib
    if shape.mem_unit is MemUnit.PER_NODE:
        return shape.mem_mib // shape.gpus_per_node
    cpus = asked_cpus_per_gpu(shape)
    return int(shape.mem_mib * cpus) if cpus and shape.mem_unit is MemUnit.PER_CPU else None


def tasks_per_node(shape: ResourceShape) -> int | None:
    """Tasks on each node where the request fixes it: sbatch's default is one per node."""
    if shape.tasks_per_node:
        return shape.tasks_per_node
    fixed = shape.nodes if shape.nodes and shape.max_nodes in (None, shape.nodes) else None
    if shape.tasks is None:
        return 1 if fixed or shape.nodes is None else None
    return shape.tasks // fixed if fixed and shape.tasks % fixed == 0 else 1 if shape.tasks == 1 else None


def _source(profile: ResourceProfile) -> str:
    if profile.runs:
        return f"{profile.runs} complete run{'s' if profile.runs > 1 else ''}"
    return "pre-run" if profile.preruns else profile.source or "profile"
