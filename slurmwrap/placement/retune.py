"""Compute the updates that take a pending job from one plan to another. Pure.

Measured on 22.05.8, 24.11.5 and 26.05.5 with `-N2 --ntasks-per-node=2 -c4 --mem=10000 --gres=gpu:2` (the test for the
installed Slurm: tests/slurm/test_retune.py):

- `MinMemoryNode` is right for a job submitted with --mem: SLURM_MEM_PER_NODE agrees and srun runs.
- `CPUsPerTask=8`, then `MinCPUsNode=8 x tasks per node` is right for one submitted with -c: SLURM_CPUS_PER_TASK,
  SLURM_TRES_PER_TASK and SLURM_JOB_CPUS_PER_NODE agree, and NumCPUs follows. Either of the two alone is wrong:
  CPUsPerTask alone gives 15 and 8 CPUs on two nodes and a failing `srun -c8`; MinCPUsNode alone keeps the job pending
  for ever (BadConstraints). TresPerTask changes nothing or is ignored.
- `ExcNodeList`, `ReqNodeList` and `Switches` are replaced as a whole; `ExcNodeList=` and `ReqNodeList=` clear them.
  `Switches=0` clears the number, but in 24.11.5 and 26.05.5 the job keeps waiting; so slurmwrap sends this value as
  `Switches=1@0`, which releases the job in all three.
- Slurm may refuse an update ("Requested partition configuration not available now") and keep the refused values all
  the same, or accept what no node can give (MinMemoryNode=999999999). So plans stay within what every able node has,
  and a caller that applies these updates answers a refusal with `undo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.hostlist import expand
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.placement.allocation_options import share_of
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.throughput import find_speed
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, JobRequest, MemUnit, OptionChange, ResourceShape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.model.job_record import JobRecord


def make_retune_actions(
    old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord
) -> tuple[SlurmAction, ...]:
    """Return the updates from plan `old` to plan `new`, one key per action, in order.

    Values that the user changed since the submission are left alone.
    """
    if not record.pending or request.hetjob:
        return ()
    updates = (
        *_update_exclude(old, new, request, record),
        *_update_switches(old, new, request),
        *_update_node_list(old, new, request, record),
    )
    if request.own.tune:
        updates = (*updates, *_update_memory(old, new, request, record), *_update_cpus(old, new, request, record))
    return tuple(
        SlurmAction(verb=Verb.UPDATE_JOB, target=record.address, key=key, value=value, reason=reason)
        for key, value, reason in updates
    )


def undo(
    actions: Sequence[SlurmAction], old: PlacementPlan, request: JobRequest, record: JobRecord
) -> tuple[SlurmAction, ...]:
    """Return the actions that set the keys of `actions` back to `record`.

    `record` was taken before `actions`, the result of `make_retune_actions(old, ..., request, record)`, were applied.
    """
    keys = {action.key for action in actions}
    back = {
        "ExcNodeList": record.exc_nodes,
        "Switches": _get_submitted_value(old, request, "switches") or "0",
        "ReqNodeList": record.req_nodes,
        "MinMemoryNode": str(record.mem_mib_per_node or 0),
    }
    if (cpus := _get_task_cpus(old, request)) and (tasks := count_fixed_tasks(request.shape)):
        # In reverse order: Slurm checks the job after each key, and would refuse the first of them again.
        back |= {"MinCPUsNode": str(cpus * tasks), "CPUsPerTask": str(cpus)}
    return tuple(
        SlurmAction(verb=Verb.UPDATE_JOB, target=record.address, key=key, value=value, reason="the update was refused")
        for key, value in back.items()
        if key in keys
    )


def list_restoring_updates(wishes: Sequence[OptionChange], request: JobRequest) -> tuple[tuple[str, str], ...]:
    """Return (key, value) of the updates that set what `wishes` raised back to the request; () if none is proven to
    work.
    """
    shape, tasks = request.shape, count_fixed_tasks(request.shape)
    plan = PlacementPlan(lines=tuple(wishes))
    if not request.own.tune or shape.mem_unit is not MemUnit.PER_NODE or not is_proven_shape(shape):
        return ()
    updates: list[tuple[str, str]] = []
    if (_get_mem_mib(plan, request) or 0) > (shape.mem_mib or 0) > 0:
        updates.append(("MinMemoryNode", str(shape.mem_mib)))
    if tasks and shape.cpus and (_get_task_cpus(plan, request) or 0) > shape.cpus:
        updates += [("CPUsPerTask", str(shape.cpus)), ("MinCPUsNode", str(shape.cpus * tasks))]
    return tuple(updates)


_CPU_KEYS = frozenset(("CPUsPerTask", "MinCPUsNode"))


def group_calls(actions: Sequence[SlurmAction]) -> tuple[tuple[SlurmAction, ...], ...]:
    """Return `actions` grouped into scontrol calls: one key each, but both keys of the CPUs in one call.

    The job may start at any moment. A job that starts between the two has CPUs that match neither value: srun fails, or
    runs three tasks instead of one (22.05.8; in one call both are set under slurmctld's lock). All other keys go alone,
    since a bad one aborts the rest of a call.
    """
    calls: list[tuple[SlurmAction, ...]] = []
    for action in actions:
        last = calls[-1] if calls else ()
        if len(last) == 1 and {last[0].key, action.key} == _CPU_KEYS and last[0].target == action.target:
            calls[-1] = (*last, action)
        else:
            calls.append((action,))
    return tuple(calls)


Update = tuple[str, str, str]  # key, value, reason


def _update_exclude(old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord) -> Iterator[Update]:
    before, after = (
        _parse_names(_get_submitted_value(old, request, "exclude")),
        _parse_names(_get_submitted_value(new, request, "exclude")),
    )
    if before is None or after is None or before == after or _parse_names(record.exc_nodes) != before:
        return
    value = _get_submitted_value(new, request, "exclude") or ""
    yield "ExcNodeList", value, _find_reason(new, "exclude") or "the nodes are no longer in doubt"


def _update_switches(old: PlacementPlan, new: PlacementPlan, request: JobRequest) -> Iterator[Update]:
    before, after = _get_submitted_value(old, request, "switches"), _get_submitted_value(new, request, "switches")
    if before != after and request.value("switches") is None:
        yield "Switches", after or "0", _find_reason(new, "switches") or "one switch cannot hold the job now"


def _update_node_list(
    old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord
) -> Iterator[Update]:
    before, after = _get_submitted_value(old, request, "nodelist"), _get_submitted_value(new, request, "nodelist")
    fixed_by_user = request.setting("nodelist") or request.setting("nodefile") or record.array_job_id is not None
    if before != after and not fixed_by_user and _parse_names(record.req_nodes) == _parse_names(before):
        yield "ReqNodeList", after or "", _find_reason(new, "nodelist") or "other nodes may be as good now"


def _update_memory(old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord) -> Iterator[Update]:
    if request.shape.mem_unit is not MemUnit.PER_NODE or not is_proven_shape(request.shape):
        return
    before, after = _get_mem_mib(old, request), _get_mem_mib(new, request)
    if after and before != after and record.mem_mib_per_node == before:
        yield "MinMemoryNode", str(after), _find_reason(new, "mem") or "back to what was asked for"


def _update_cpus(old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord) -> Iterator[Update]:
    tasks = count_fixed_tasks(request.shape)
    if request.shape.mem_unit is not MemUnit.PER_NODE or not tasks or not is_proven_shape(request.shape):
        return
    before, after = _get_task_cpus(old, request), _get_task_cpus(new, request)
    if not before or not after or before == after or record.cpus != before * tasks * record.num_nodes:
        return
    reason = _find_reason(new, "cpus-per-task") or "back to what was asked for"
    yield "CPUsPerTask", str(after), reason
    yield "MinCPUsNode", str(after * tasks), reason


def is_proven_shape(shape: ResourceShape) -> bool:
    """Return whether the job has -c and --mem with GPUs per node.

    Updates of other units make every later srun fail, or were not tested.
    """
    return (
        shape.cpu_unit is CpuUnit.PER_TASK
        and shape.gpu_unit in (GpuUnit.GRES, GpuUnit.PER_NODE)
        and not shape.exclusive
        and (shape.max_nodes or shape.nodes) == shape.nodes
    )


def count_fixed_tasks(shape: ResourceShape) -> int | None:
    """Return the tasks per node if Slurm can spread them in one way only, else None.

    This is stricter than tuning_bounds.get_tasks_per_node: of 4 tasks on 2 nodes one node may have 3.
    """
    if shape.tasks_per_node:
        return shape.tasks_per_node
    nodes = shape.nodes or 1
    if shape.tasks is None or shape.tasks == nodes:
        return 1
    return shape.tasks if shape.nodes == 1 else None


def _get_submitted_value(plan: PlacementPlan, request: JobRequest, option: str) -> str | None:
    """Return what Slurm was asked for: the plan's value, else the user's."""
    wished = (wish.value for wish in plan.lines if wish.option == option and wish.value is not None)
    return next(wished, None) or request.value(option)


def _find_reason(plan: PlacementPlan, option: str) -> str:
    return next((wish.reason for wish in plan.lines if wish.option == option and wish.value is not None), "")


def _get_mem_mib(plan: PlacementPlan, request: JobRequest) -> int | None:
    wished = (wish.value for wish in plan.lines if wish.option == "mem" and wish.value)
    value = next(wished, None)
    return int(value.removesuffix("M")) if value else request.shape.mem_mib


def _get_task_cpus(plan: PlacementPlan, request: JobRequest) -> int | None:
    wished = (wish.value for wish in plan.lines if wish.option == "cpus-per-task" and wish.value)
    value = next(wished, None)
    return int(value) if value else request.shape.cpus if request.shape.cpu_unit is CpuUnit.PER_TASK else None


def _parse_names(hostlist: str | None) -> frozenset[str] | None:
    """Return the names; None for a file of nodes or for what is no host list. Then nothing is changed."""
    try:
        return None if "/" in (hostlist or "") else frozenset(expand(hostlist or ""))
    except ValueError:
        return None


# Rules for the jobs of a queue whose CPUs and memory are divided together while they wait.
#
# The site's reconciler (reconcile/tune_pending.py) and the simulator (sim/engines) share them. A change of speed below
# this fraction is not worth an update of a job that cannot start yet.
MATTERS = 0.05


def limit_to_share_of_servers(demand: JobDemand, servers: Sequence[Server]) -> JobDemand:
    """Return `demand` with upper bounds at its share of the servers where it may run.

    The job may get less than it asks for, but what it got above its share would be missing for other jobs.
    """
    names = demand.servers
    may_run = [s for s in servers if s.gpus >= demand.gpus_per_node and (names is None or s.name in names)]
    share = share_of(demand, may_run)
    if share is None or not demand.speeds:
        return demand
    return replace(
        demand,
        most_cpus=min(share.most_cpus, max(share.cpus, demand.cpus)),
        most_mem_mib=min(share.most_mem_mib, max(share.mem_mib, demand.mem_mib)),
    )


def list_hurried_jobs(queue: Iterable[tuple[str, Set[str], bool]]) -> frozenset[str]:
    """Return the tuned jobs with an untuned job behind them in the queue that wants the same servers.

    Such a job gets no more than its share, and does not wait for more, because the untuned job behind it gains nothing
    by that. `queue`: (job, servers where it may run, whether it is tuned), the lowest priority first.
    """
    found, wanted = set[str](), set[str]()
    for job, servers, tuned in queue:
        if not tuned:
            wanted |= servers
        elif not wanted.isdisjoint(servers):
            found.add(job)
    return frozenset(found)


def is_worth_an_update(demand: JobDemand, allocation: Allocation, cpus: float, mem_mib: float) -> bool:
    """Return whether a job that asks for `cpus` and `mem_mib` per GPU should be updated to its allocation.

    Always if it could start now. Otherwise only a gain in speed, or resources given back, are worth an update.
    """
    if allocation.servers:
        return True
    now, then = find_speed(demand.speeds, cpus, mem_mib), find_speed(demand.speeds, allocation.cpus, allocation.mem_mib)
    if abs(then - now) > MATTERS * now:
        return True
    return cpus - allocation.cpus >= 1 or mem_mib > allocation.mem_mib * (1 + MATTERS)
