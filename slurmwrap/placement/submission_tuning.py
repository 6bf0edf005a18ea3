"""Choose CPUs and memory of one job at submission, in the user's own unit: --cpus-per-task, --mem etc. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil, inf

from slurmwrap.config.load_config import Tuning
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.cluster import Node
from slurmwrap.model.limits import NO_LIMITS, Limits
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import (
    Allocation,
    GradedSettings,
    JobDemand,
    Server,
    limit_to_share,
    make_empty_server,
    make_job_demand,
)
from slurmwrap.placement.quota import keep
from slurmwrap.placement.resource_units import CPU_OPAQUE, has_mixed_gpu_options
from slurmwrap.placement.throughput import find_speed
from slurmwrap.placement.tuning_bounds import (
    Bounds,
    compute_asked_mem_mib_per_gpu,
    compute_tuning_bounds,
    describe_basis,
    get_tasks_per_node,
    make_least_node,
)
from slurmwrap.sbatch.job_request import CpuUnit, JobRequest, MemUnit, OptionChange, ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.placement.candidates import CandidateNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRequestPlan:
    """The option changes, and what one GPU gets by them."""

    wishes: tuple[OptionChange, ...] = ()
    given: Bounds = field(default_factory=Bounds)


def tune(
    request: JobRequest,
    profile: ResourceProfile | None,
    nodes: CandidateNodes,
    config: Config,
    limits: Limits = NO_LIMITS,
) -> TunedRequestPlan:
    """Return the option changes for CPUs and memory.

    They stay within what each node that could run the job has, and within `limits`: a tuned request must not exclude a
    node or make the job wait for its raise.
    """
    alone = any(partition.exclusive for partition in nodes.partitions)
    if not config.tuning.enabled or not request.own.tune or not nodes.able or alone or has_mixed_gpu_options(request):
        return TunedRequestPlan()
    node = make_least_node(nodes.able, nodes.partitions)
    if any(request.setting(option) for option in CPU_OPAQUE):
        given = compute_tuning_bounds(request.shape, profile, node, config)
        # With these options it is unknown how much memory a node would give per CPU.
        by_cpu = request.shape.mem_unit is MemUnit.PER_CPU
        given = replace(given, cpus_per_gpu=None, mem_mib_per_gpu=None if by_cpu else given.mem_mib_per_gpu)
    else:
        given = _compute_bounds(request.shape, profile, node, config)
    kept = keep(given, request.shape, limits)
    share = node.cpus / node.gpus
    cap = share if kept.cpu_cap is None else min(share, kept.cpu_cap)
    wishes = (
        *_list_option_changes(request.shape, kept.given, cap, node.mem_mib),
        *_keep_as_requested(request.shape, kept.reasons),
    )
    return TunedRequestPlan(wishes=wishes, given=kept.given)


def _keep_as_requested(shape: ResourceShape, reasons: Sequence[tuple[str, str]]) -> Iterator[OptionChange]:
    for what, why in reasons:
        unit: CpuUnit | MemUnit = shape.cpu_unit if what == "cpus" else shape.mem_unit
        default = CpuUnit.PER_TASK if what == "cpus" else MemUnit.PER_NODE
        yield OptionChange(option=(default if unit.value == "none" else unit).value, value=None, reason=why)


def _compute_bounds(shape: ResourceShape, profile: ResourceProfile | None, node: Node, config: Config) -> Bounds:
    """Return the bounds by the job's speed if that is known, else by tuning_bounds.py alone."""
    given = compute_tuning_bounds(shape, profile, node, config)
    # The policy changes nothing, but a raise of memory is kept: being killed for memory must be prevented.
    if config.tuning.policy == "proportional":
        more = (given.mem_mib_per_gpu or 0) > (compute_asked_mem_mib_per_gpu(shape) or inf)
        return replace(given, cpus_per_gpu=None, mem_mib_per_gpu=given.mem_mib_per_gpu if more else None)
    if profile is None or not (profile.surface or profile.cpu_curve):
        return given

    return tune_single_job(shape, profile, node, config.tuning, given)


def _list_option_changes(shape: ResourceShape, given: Bounds, most_cpus: float, most_mem: int) -> list[OptionChange]:
    """Return the changes in the user's own unit, because Slurm's units for one resource exclude each other."""
    wishes = []
    if given.cpus_per_gpu is not None and (cpus := _convert_to_cpu_unit(shape, given.cpus_per_gpu, most_cpus)):
        wishes.append(OptionChange(option=cpus[0], value=cpus[1], reason=given.cpu_reason))
    if given.mem_mib_per_gpu is not None and (memory := _convert_to_mem_unit(shape, given.mem_mib_per_gpu, most_mem)):
        wishes.append(OptionChange(option=memory[0], value=memory[1], reason=given.mem_reason))
    return wishes


def _convert_to_cpu_unit(shape: ResourceShape, per_gpu: float, share: float) -> tuple[str, str] | None:
    """Return (option, value) rounded up to whole CPUs, or down if rounding up would raise the job above the node's
    share.
    """
    tasks, gpus = get_tasks_per_node(shape), shape.gpus_per_node
    if shape.cpu_unit is CpuUnit.PER_GPU:
        tasks = gpus = 1
    if not tasks or not gpus:
        return None
    asked, exact = shape.cpus or 1, per_gpu * gpus / tasks
    value = ceil(exact)
    if value > asked and value * tasks > share * gpus:
        value = int(exact)
    option = "cpus-per-gpu" if shape.cpu_unit is CpuUnit.PER_GPU else "cpus-per-task"
    # Rounding may cancel the change, but must never reverse it.
    return (option, str(value)) if value >= 1 and (value - asked) * (exact - asked) > 0 else None


def _convert_to_mem_unit(shape: ResourceShape, per_gpu: int, node_mib: int) -> tuple[str, str] | None:
    """Return (option, value) in the user's own unit; None if tasks per node are unknown or rounding leaves none."""
    gpus = shape.gpus_per_node or 1
    if shape.mem_unit is MemUnit.PER_GPU:
        return "mem-per-gpu", f"{per_gpu}M"
    if shape.mem_unit is MemUnit.PER_CPU:
        tasks = get_tasks_per_node(shape)
        if tasks is None:
            return None
        # Each task still gets at least one CPU.
        by_gpu = shape.cpu_unit is CpuUnit.PER_GPU
        cpus = max(tasks, (shape.cpus or 1) * gpus) if by_gpu else (shape.cpus or 1) * tasks
        exact, asked = per_gpu * gpus / cpus, shape.mem_mib or 0
        if exact <= asked:
            return "mem-per-cpu", f"{ceil(exact)}M"
        # Not rounded up above a node's memory. Slurm gives both threads of a core with two threads, each with its
        # memory.
        value = min(int(exact), node_mib // (cpus + cpus % 2))
        return ("mem-per-cpu", f"{value}M") if value > asked else None
    return "mem", f"{per_gpu * gpus}M"


# CPUs and memory of one job at submission, by the function that divides them among all pending jobs.
#
# Most jobs have no known speeds and do not need it. Its imports take gsub 10 ms, so plan_placement.py imports this
# module only for a job with a profile.
Divide = Callable[[Sequence[JobDemand], Sequence[Server]], Sequence[Allocation]]


def tune_single_job(
    shape: ResourceShape, profile: ResourceProfile, node: Node, tuning: Tuning, bounds: Bounds
) -> Bounds:
    """Return what allocate() gives the job on an empty `node`, never above its share.

    Only the reconciler allocates more than the share, because it can take it back while the job is pending
    (reconcile/tune_pending.py). `bounds`: the bounds of tuning_bounds.py, which hold if the speed is unknown.
    """
    demand = make_job_demand(shape, profile, node, tuning)
    if demand is None:
        return bounds
    settings = GradedSettings(assumed_run_s=tuning.assumed_run_s)
    cpus, memory = allocate_single_job(demand, node, partial(allocate, policy=tuning.policy, settings=settings))
    why, share = f"{_describe_effect(demand, cpus, memory)} ({describe_basis(profile)})", node.cpus / node.gpus
    cpu_reason = f"with {cpus:.3g} CPUs per GPU instead of {demand.cpus:.3g} {why}; its share is {share:.3g}"
    # Without a surface tuning_bounds.py arrives at the same memory.
    cached = bool(profile.surface) and memory != demand.mem_mib
    return Bounds(
        cpus_per_gpu=None if cpus == demand.cpus else cpus,
        mem_mib_per_gpu=memory if cached else bounds.mem_mib_per_gpu,
        cpu_reason=bounds.cpu_reason if cpus == bounds.cpus_per_gpu else cpu_reason,
        mem_reason=f"with {memory} MiB per GPU instead of {demand.mem_mib} {why}" if cached else bounds.mem_reason,
    )


def allocate_single_job(demand: JobDemand, node: Node, divide: Divide) -> tuple[float, int]:
    """Return the CPUs and MiB per GPU that `divide` gives the job on an empty `node`, never above its share there."""
    (allocation,) = divide([limit_to_share(demand, node)], [make_empty_server(node)])
    return _drop_useless_raises(demand, allocation)


def _drop_useless_raises(demand: JobDemand, allocation: Allocation) -> tuple[float, int]:
    """Return CPUs and MiB per GPU without raises that are not known to make the job faster."""
    cpus, memory, plain = allocation.cpus, allocation.mem_mib, max(demand.cpus, demand.least_cpus)
    known = find_speed(demand.speeds, cpus, memory)
    if cpus > plain and known <= find_speed(demand.speeds, plain, memory):
        cpus = plain
    if memory > demand.mem_mib and known <= find_speed(demand.speeds, cpus, demand.mem_mib):
        memory = demand.mem_mib
    return cpus, memory


def _describe_effect(demand: JobDemand, cpus: float, mem_mib: int) -> str:
    before, after = find_speed(demand.speeds, demand.cpus, demand.mem_mib), find_speed(demand.speeds, cpus, mem_mib)
    return f"it runs {after / before:.3g} times as fast" if before and after > before * 1.005 else "it is as fast"
