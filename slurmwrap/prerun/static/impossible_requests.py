"""Find requests that this cluster cannot meet: compare a JobRequest with a Snapshot and suggest a possible one. Pure.

All findings are warnings, because sbatch itself decides. It refuses most of these requests immediately ("Requested node
configuration is not available"), but suggests nothing. By default (EnforcePartLimits=NO, slurm.conf(5)) it accepts a
time limit or a number of nodes above the partition's, and the job waits forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.cluster import Node, Partition, Snapshot

_GPU_OPTIONS = {
    GpuUnit.GRES: "gres",
    GpuUnit.GPUS: "gpus",
    GpuUnit.PER_NODE: "gpus-per-node",
    GpuUnit.PER_TASK: "gpus-per-task",
    GpuUnit.PER_SOCKET: "gpus-per-socket",
}


def find_impossible_requests(request: JobRequest, snapshot: Snapshot, script: str) -> Iterator[Finding]:
    """Yield one finding for each resource of which no node of the job's partitions has enough."""
    if request.hetjob or request.value("clusters"):
        return
    wanted = [p for p in (request.value("partition") or snapshot.default_partition).split(",") if p]
    members = tuple(n for n in snapshot.nodes if not wanted or not set(wanted).isdisjoint(n.partitions))
    limits = tuple(p for p in snapshot.partitions if p.name in wanted)
    if not members:
        yield from _check_partitions(request, wanted, snapshot, script)
        return
    for option, message, fix in (*_check_per_node(request, members), *_check_totals(request, members, limits)):
        yield _make_finding(request, option, message, fix, script)


def _make_finding(request: JobRequest, option: str, message: str, fix: str, script: str) -> Finding:
    setting = request.setting(option)
    line = setting.line or 0 if setting else 0
    file = script if line or setting is None else setting.where
    return Finding(severity=Severity.WARNING, message=message, file=file, line=line, fix=fix)


def _check_partitions(request: JobRequest, wanted: Sequence[str], snapshot: Snapshot, script: str) -> Iterator[Finding]:
    names = {p.name for p in snapshot.partitions} | {name for node in snapshot.nodes for name in node.partitions}
    missing = [name for name in wanted if name not in names]
    near = find_nearest(missing[0], names) if missing else ""
    # Without a similar name, sbatch's own message already says that the partition does not exist.
    if near:
        yield _make_finding(
            request, "partition", f"there is no partition {missing[0]}", f"did you mean {near}?", script
        )


def _check_per_node(request: JobRequest, members: Sequence[Node]) -> Iterator[tuple[str, str, str]]:
    """Yield (option, what is impossible, the nearest possible request)."""
    shape, option = request.shape, _GPU_OPTIONS.get(request.shape.gpu_unit, "gpus")
    types = sorted({t for n in members for t in n.gpu_type.split(",") if t})
    most = max(n.gpus for n in members)
    if shape.gpu_type and types and shape.gpu_type not in types:
        near = find_nearest(shape.gpu_type, types) or types[0]
        yield (
            option,
            f"no node has GPUs of type {shape.gpu_type}",
            f"available: {', '.join(types)}; did you mean {near}?",
        )
    elif shape.gpus and not most:
        yield option, "no node of this partition has GPUs", "choose a partition with GPUs"
    elif shape.gpus_per_node and shape.gpus_per_node > most:
        nodes = ceil((shape.gpus or shape.gpus_per_node) / most)
        message = f"{shape.gpus_per_node} GPUs on one node: the largest has {most}"
        yield option, message, f"ask for {nodes} nodes with {most} each"
    cpus, memory = _count_cpus_of_a_node(request), _compute_memory_of_a_node(request)
    most_cpus, most_mem = max(n.cpus for n in members), max(n.mem_mib for n in members)
    if cpus > most_cpus > 0:
        unit = "cpus-per-gpu" if shape.cpu_unit is CpuUnit.PER_GPU else "cpus-per-task"
        yield unit, f"{cpus} CPUs on one node: the largest has {most_cpus}", f"ask for at most {most_cpus} on a node"
    if memory > most_mem > 0:
        message = f"{memory} MiB of memory on one node: the largest has {most_mem}"
        yield shape.mem_unit.value, message, f"--mem={most_mem} is the most"


def _count_cpus_of_a_node(request: JobRequest) -> int:
    """Return the least number of CPUs that one node must have."""
    shape = request.shape
    if shape.cpu_unit is CpuUnit.PER_GPU:
        return (shape.cpus or 1) * (shape.gpus_per_node or 1)
    tasks = shape.tasks_per_node or 1
    if shape.tasks and shape.max_nodes and not shape.tasks_per_node:
        tasks = ceil(shape.tasks / shape.max_nodes)
    return tasks * (shape.cpus or 1)


def _compute_memory_of_a_node(request: JobRequest) -> int:
    shape = request.shape
    each = {
        MemUnit.PER_NODE: 1,
        MemUnit.PER_CPU: _count_cpus_of_a_node(request),
        MemUnit.PER_GPU: shape.gpus_per_node or 1,
        MemUnit.NONE: 0,
    }
    return (shape.mem_mib or 0) * each[shape.mem_unit]


def _check_totals(
    request: JobRequest, members: Sequence[Node], limits: Sequence[Partition]
) -> Iterator[tuple[str, str, str]]:
    shape = request.shape
    nodes = shape.nodes or 0
    if nodes > len(members):
        yield "nodes", f"{nodes} nodes: the partition has {len(members)}", f"ask for at most {len(members)}"
    elif limits and all(p.max_nodes is not None and nodes > p.max_nodes for p in limits):
        most = max(p.max_nodes or 0 for p in limits)
        yield "nodes", f"{nodes} nodes: the partition allows {most}; the job would wait for ever", f"--nodes={most}"
    most_gpus = sum(n.gpus for n in members)
    if shape.gpus > most_gpus > 0 and nodes <= len(members):
        yield (
            _GPU_OPTIONS.get(shape.gpu_unit, "gpus"),
            f"{shape.gpus} GPUs: all nodes have {most_gpus}",
            "ask for fewer",
        )
    asked = shape.time_limit_s
    if asked and limits and all(p.max_time_s is not None and asked > p.max_time_s for p in limits):
        most = max(p.max_time_s or 0 for p in limits)
        allowed = _format_clock(most)
        message = f"time limit {_format_clock(asked)}: the partition allows {allowed}; the job would wait for ever"
        yield "time", message, f"--time={_format_clock(most)}"


def _format_clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
