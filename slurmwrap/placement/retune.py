"""Turns two plans for one waiting job into the updates that carry it from the first to the second. Pure.

Measured on 22.05.8, 24.11.5 and 26.05.5 with `-N2 --ntasks-per-node=2 -c4 --mem=10000 --gres=gpu:2` (the proof for
the installed Slurm: tests/slurm/test_retune.py):

- `MinMemoryNode` is right for a job submitted with --mem: SLURM_MEM_PER_NODE agrees and srun runs.
- `CPUsPerTask=8`, then `MinCPUsNode=8 x tasks per node` is right for one submitted with -c: SLURM_CPUS_PER_TASK,
  SLURM_TRES_PER_TASK and SLURM_JOB_CPUS_PER_NODE agree, NumCPUs follows by itself. Either of the two alone is wrong:
  CPUsPerTask alone gives 15 and 8 CPUs on two nodes and a failing `srun -c8`; MinCPUsNode alone pends for ever
  (BadConstraints). TresPerTask changes nothing or is ignored.
- `ExcNodeList`, `ReqNodeList` and `Switches` are replaced as a whole; `ExcNodeList=` and `ReqNodeList=` clear them.
  `Switches=0` does, but in 24.11.5 and 26.05.5 the job waits on all the same; our action of that value is sent as
  `Switches=1@0`, which releases it in all three.
- Slurm may refuse ("Requested partition configuration not available now") and keep the refused values all the same, or
  accept what no node can give (MinMemoryNode=999999999). So plans stay within what every able node has, and who
  applies these updates answers a refusal with `undo`.
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
    """What to change, one key per action, in order. Nothing that the user changed themselves since the submission."""
    if not record.pending or request.hetjob:
        return ()
    updates = (
        *_exclude(old, new, request, record),
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
    """Back to `record`, taken before `actions` of `retune(old, ..., request, record)`, for the keys they touched."""
    keys = {action.key for action in actions}
    back = {
        "ExcNodeList": record.exc_nodes,
        "Switches": _get_submitted_value(old, request, "switches") or "0",
        "ReqNodeList": record.req_nodes,
        "MinMemoryNode": str(record.mem_mib_per_node or 0),
    }
    if (cpus := _get_task_cpus(old, request)) and (tasks := count_fixed_tasks(request.shape)):
        # the other way round: Slurm checks the job after each key, and would refuse the first of them again
        back |= {"MinCPUsNode": str(cpus * tasks), "CPUsPerTask": str(cpus)}
    return tuple(
        SlurmAction(verb=Verb.UPDATE_JOB, target=record.address, key=key, value=value, reason="the update was refused")
        for key, value in back.items()
        if key in keys
    )


def list_restoring_updates(wishes: Sequence[OptionChange], request: JobRequest) -> tuple[tuple[str, str], ...]:
    """(key, value) of the updates that take what `wishes` raised back to the request; () where none is proven."""
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
    """`actions` as calls, for a job that may start at any moment: one key each, but both keys of its CPUs in one.

    A job that starts between the two has CPUs that fit neither: srun fails, or runs three tasks for one (22.05.8; in
    one call both are set under slurmctld's lock). All other keys go alone, since a bad one aborts the rest of a call.
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


def _exclude(old: PlacementPlan, new: PlacementPlan, request: JobRequest, record: JobRecord) -> Iterator[Update]:
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
    theirs = request.setting("nodelist") or request.setting("nodefile") or record.array_job_id is not None
    if before != after and not theirs and _parse_names(record.req_nodes) == _parse_names(before):
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
    """-c and --mem with GPUs per node: the updates of other units kill every later srun, or were not tried."""
    return (
        shape.cpu_unit is CpuUnit.PER_TASK
        and shape.gpu_unit in (GpuUnit.GRES, GpuUnit.PER_NODE)
        and not shape.exclusive
        and (shape.max_nodes or shape.nodes) == shape.nodes
    )


def count_fixed_tasks(shape: ResourceShape) -> int | None:
    """Tasks per node where Slurm can only spread them one way, so stricter than bounds.tasks_per_node: of 4 tasks on 2
    nodes one may have 3."""
    if shape.tasks_per_node:
        return shape.tasks_per_node
    nodes = shape.nodes or 1
    if shape.tasks is None or shape.tasks == nodes:
        return 1
    return shape.tasks if shape.nodes == 1 else None


def _get_submitted_value(plan: PlacementPlan, request: JobRequest, option: str) -> str | None:
    """What Slurm was asked for: the plan's wish, else the user's."""
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
    """None for a file of nodes or what is no host list: then nothing is known and nothing is changed."""
    try:
        return None if "/" in (hostlist or "") else frozenset(expand(hostlist or ""))
    except ValueError:
        return None


# Rules for the jobs of a queue whose CPUs and memory are divided together while they wait.
#
# The same for the site's reconciler (reconcile/tune_pending.py) and the simulator (sim/engines).
# A change of speed below this is not worth an update of a job that cannot start yet.
MATTERS = 0.05


def limit_to_share_of_servers(demand: JobDemand, servers: Sequence[Server]) -> JobDemand:
    """It may be given less than it asks, but no more than its share: of what lies above others would be short."""
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
    """Tuned jobs with a job behind them that wants the same servers and is not tuned: no job gets more than its share,
    nor waits for it, in front of such a job, which gains nothing by it. (job, servers where it may run, whether it is
    tuned), the lowest priority first."""
    found, wanted = set[str](), set[str]()
    for job, servers, tuned in queue:
        if not tuned:
            wanted |= servers
        elif not wanted.isdisjoint(servers):
            found.add(job)
    return frozenset(found)


def is_worth_an_update(demand: JobDemand, grant: Allocation, cpus: float, mem_mib: float) -> bool:
    """Whether a job that asks for `cpus` and `mem_mib` per GPU now should ask for its grant instead: always where it
    could start now. Else only a gain in speed, or something given back, is worth an update."""
    if grant.servers:
        return True
    now, then = find_speed(demand.speeds, cpus, mem_mib), find_speed(demand.speeds, grant.cpus, grant.mem_mib)
    if abs(then - now) > MATTERS * now:
        return True
    return cpus - grant.cpus >= 1 or mem_mib > grant.mem_mib * (1 + MATTERS)
