"""Split what a job asks for into units, each of which must lie on one node. Pure.

A unit is what Slurm cannot split: the whole share of a node (--gres, --gpus-per-node, --gpus-per-socket), a task
(--gpus-per-task), or a GPU (--gpus). If Slurm computes a number only when it allocates, the least possible value is
used, and `sure` is False.
"""

from __future__ import annotations

from math import ceil

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit, ResourceShape

# With one of these options --cpus-per-task alone does not determine a task's CPUs.
CPU_OPAQUE = (
    *("ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core", "ntasks-per-tres", "mincpus", "overcommit", "hint"),
    *("extra-node-info", "sockets-per-node", "cores-per-socket", "threads-per-core", "core-spec", "thread-spec"),
    *("gres-flags", "resources"),
)
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gres", "gpus-per-task", "tres-per-task", "gpus-per-socket")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUnits:
    """What a job takes, in units, with CPUs and MiB. `node_*` is taken once on each node in addition to its units."""

    # Number of units in the whole job: all of them are placed, or none.
    units: int
    # GPUs, CPUs and MiB of one unit.
    gpus: int
    cpus: float = 0.0
    mem_mib: float = 0.0
    node_cpus: int = 0
    node_mem_mib: int = 0
    # Greatest number of units on one node; None: as many as fit.
    per_node: int | None = None
    least_nodes: int = 1
    most_nodes: int | None = None  # None: Slurm decides
    whole: bool = False  # the job needs its nodes for itself
    all_memory: bool = False  # --mem=0
    # Number of tasks in the whole job if the request names it, else 0; they must fit on the nodes too.
    tasks: int = 0
    task_cpus: int = 1
    task_mem_mib: int = 0
    # --cpus-per-gpu: a node's tasks have no other CPUs (24.11; 22.05 gives them more).
    gpus_bring_cpus: bool = False
    sure: bool = True  # every number is known
    # Options that are not evaluated here decide how tasks and CPUs are distributed.
    blurred: bool = False

    @property
    def exact(self) -> bool:
        """Whether the request fixes the number of nodes."""
        return self.most_nodes == self.least_nodes

    def fitting(self, gpus: int, cpus: int, mem_mib: int) -> int:
        """Return how many units fit into so many free GPUs, CPUs and MiB of one node."""
        count = min(gpus // self.gpus, self.units)
        if self.per_node is not None and count > self.per_node:
            count = self.per_node
        if count <= 0 or cpus < self.node_cpus or mem_mib < self.node_mem_mib:
            return 0
        if self.cpus:
            count = min(count, int((cpus - self.node_cpus) / self.cpus))
        if self.mem_mib:
            count = min(count, int((mem_mib - self.node_mem_mib) / self.mem_mib))
        return count

    def on(self, units: int) -> tuple[int, int, int]:
        """Return (GPUs, CPUs, MiB) that so many units take of one node."""
        cpus = self.node_cpus + ceil(units * self.cpus)
        return units * self.gpus, cpus, self.node_mem_mib + ceil(units * self.mem_mib)


def compute_resource_units(request: JobRequest) -> ResourceUnits | None:
    """Return what `request` takes; None for a job without GPUs, or one whose numbers contradict each other."""
    shape = request.shape
    if shape.gpus <= 0:
        return None
    need = _split_into_units(shape)
    if need.gpus <= 0 or need.units <= 0:
        return None
    blurred = has_mixed_gpu_options(request) or any(request.setting(option) for option in CPU_OPAQUE)
    return replace(
        need,
        most_nodes=shape.max_nodes,
        whole=shape.exclusive,
        all_memory=shape.mem_mib == 0 and shape.mem_unit is MemUnit.PER_NODE,
        tasks=shape.tasks or 0,
        task_cpus=(shape.cpus or 1) if shape.cpu_unit is not CpuUnit.PER_GPU else 1,
        task_mem_mib=(shape.mem_mib or 0) * (shape.cpus or 1) if shape.mem_unit is MemUnit.PER_CPU else 0,
        gpus_bring_cpus=shape.cpu_unit is CpuUnit.PER_GPU,
        blurred=blurred,
        sure=need.sure and shape.mem_mib is not None and not blurred,
    )


def has_mixed_gpu_options(request: JobRequest) -> bool:
    """Return whether GPUs are asked for in two ways at once, as in `--gpus=8 --gpus-per-node=4`.

    It is not clear then which of them determines CPUs and memory (22.05.8 accepts --mem-per-gpu=16G there and refuses
    255000M on nodes that have it).
    """
    return sum(request.setting(option) is not None for option in _GPU_OPTIONS) > 1


def _split_into_units(shape: ResourceShape) -> ResourceUnits:
    """Return the units by the option that asks for GPUs."""
    if shape.gpu_unit is GpuUnit.PER_TASK:
        return _count_units_by_task(shape)
    if shape.gpu_unit is GpuUnit.GPUS and not shape.gpus_per_node:
        return _count_units_by_gpu(shape)
    return _count_units_by_node(shape)


def _count_units_by_node(shape: ResourceShape) -> ResourceUnits:
    """Return one unit per node: each node has the same share."""
    least = shape.nodes or _count_nodes_of_tasks(shape)
    if shape.gpu_unit is GpuUnit.GPUS and shape.gpus_per_node:
        least = max(least, ceil(shape.gpus / shape.gpus_per_node))
    gpus = shape.gpus_per_node or shape.gpus // least
    tasks, sure = _count_tasks_on_a_node(shape, least)
    cpus = _count_cpus(shape, gpus=gpus, tasks=tasks)
    return ResourceUnits(
        units=least,
        gpus=gpus,
        cpus=cpus,
        mem_mib=_compute_memory(shape, gpus=gpus, cpus=cpus),
        node_mem_mib=_get_memory_of_a_node(shape),
        per_node=1,
        least_nodes=least,
        sure=sure and shape.gpu_unit is not GpuUnit.PER_SOCKET,
    )


def _count_units_by_task(shape: ResourceShape) -> ResourceUnits:
    """Return one unit per task with its GPUs, on whichever nodes they fit."""
    least = shape.nodes or _count_nodes_of_tasks(shape)
    units = shape.tasks or least * (shape.tasks_per_node or 1)
    gpus = shape.gpus // units
    cpus = _count_cpus(shape, gpus=gpus, tasks=1)
    return ResourceUnits(
        units=units,
        gpus=gpus,
        cpus=cpus,
        mem_mib=_compute_memory(shape, gpus=gpus, cpus=cpus),
        node_mem_mib=_get_memory_of_a_node(shape),
        per_node=shape.tasks_per_node,
        least_nodes=least,
    )


def _count_units_by_gpu(shape: ResourceShape) -> ResourceUnits:
    """Return one unit per GPU. The CPUs of tasks are spread as the GPUs are, or are taken once on each node."""
    least = shape.nodes or _count_nodes_of_tasks(shape)
    one_node = least == 1 == shape.max_nodes
    per_gpu, on_node, sure = 0.0, 0, True
    if shape.cpu_unit is CpuUnit.PER_GPU:
        # Every task needs a CPU too, on whichever node it runs.
        per_gpu, sure = float(shape.cpus or 1), shape.tasks is None and shape.tasks_per_node is None
    elif shape.tasks and not one_node:
        per_gpu, sure = shape.tasks * (shape.cpus or 1) / shape.gpus, False
    else:
        on_node = (shape.tasks or shape.tasks_per_node or 1) * (shape.cpus or 1)
    of_cpus = (shape.mem_mib or 0) if shape.mem_unit is MemUnit.PER_CPU else 0
    return ResourceUnits(
        units=shape.gpus,
        gpus=1,
        cpus=per_gpu,
        mem_mib=of_cpus * per_gpu + ((shape.mem_mib or 0) if shape.mem_unit is MemUnit.PER_GPU else 0),
        node_cpus=on_node,
        node_mem_mib=of_cpus * on_node + _get_memory_of_a_node(shape),
        least_nodes=least,
        sure=sure,
    )


def _count_nodes_of_tasks(shape: ResourceShape) -> int:
    """Return the least number of nodes when the request names none."""
    return max(1, ceil(shape.tasks / shape.tasks_per_node)) if shape.tasks and shape.tasks_per_node else 1


def _count_tasks_on_a_node(shape: ResourceShape, nodes: int) -> tuple[int, bool]:
    """Return (tasks on a node, whether that is certain). sbatch's default is one task per node."""
    if shape.tasks_per_node:
        return shape.tasks_per_node, shape.tasks is None or shape.tasks == nodes * shape.tasks_per_node
    if shape.tasks is None or shape.tasks == 1:
        return 1, True
    if shape.nodes is None or shape.max_nodes != shape.nodes:
        return 1, False
    return ceil(shape.tasks / nodes), shape.tasks % nodes == 0


def _count_cpus(shape: ResourceShape, *, gpus: int, tasks: int) -> int:
    """Return the CPUs of a unit. Without an own number Slurm gives one per task, and never fewer."""
    return max(tasks, (shape.cpus or 1) * gpus) if shape.cpu_unit is CpuUnit.PER_GPU else (shape.cpus or 1) * tasks


def _compute_memory(shape: ResourceShape, *, gpus: int, cpus: int) -> int:
    factor = {MemUnit.PER_GPU: gpus, MemUnit.PER_CPU: cpus}.get(shape.mem_unit, 0)
    return (shape.mem_mib or 0) * factor


def _get_memory_of_a_node(shape: ResourceShape) -> int:
    return (shape.mem_mib or 0) if shape.mem_unit is MemUnit.PER_NODE else 0
