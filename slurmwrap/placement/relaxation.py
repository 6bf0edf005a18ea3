"""Relax what a pending job insists on, level by level, back to what its user asked for. Pure.

A level of the plan is reached when the time of the levels before it is over (`Level.wait_s`, counted from when the job
became eligible); several levels at once if no pass took place meanwhile. Which of a level's values are in force is read
from Slurm's own record of the job. So no state has to be kept, and being killed between two updates loses nothing.

Plan and levels come from the job's user and are not trusted:
- only keys of `KEYS` are changed, only those that the plan itself set, and of these only one whose value in force is
  the plan's (otherwise the user changed it since);
- only to a value that is less strict than the one in force (`is_less_strict`), in a grammar of its own for each key;
- any caller that applies the actions asks Slurm in the owner's name.

The effect of each update on Slurm was measured on 22.05.8 (tests/slurm/test_relax_lab.py). All keys work on a pending
job. `NumNodes=2-4` leaves CPUs, memory and tasks alone, and srun works wherever Slurm then starts the job. A job that
has started meanwhile refuses every key, but in newer releases a smaller minimum of nodes or a node list would shrink
it. So the minimum stays, and a node list is only ever cleared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.hostlist import expand
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.placement_plan import OPTION_OF, Level, PlacementPlan
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

# Slurm's reasons (squeue, %r) that name what the job asked for, not what is busy: such a job could wait for ever.
BLOCKED = re.compile(
    r"BadConstraints|PartitionConfig|PartitionNodeLimit|ReqNodeNotAvail|Nodes[ _]required[ _]for[ _]job[ _]are[ _]DOWN"
    r"|(QOS|Assoc)(Max|Grp)(Cpu|CPU|Mem|Node)",
    re.ASCII,
)
_NODES_MISSING = re.compile(r"ReqNodeNotAvail|Nodes[ _]required", re.ASCII)
KEYS = frozenset(OPTION_OF)  # keys of `scontrol update`
# Keys that count against limits of QOS and association.
SIZES = frozenset(("NumNodes", "MinMemoryNode", "CPUsPerTask", "MinCPUsNode"))
_TUNED = frozenset(("MinMemoryNode", "CPUsPerTask", "MinCPUsNode"))
# Greatest number of levels, and of updates in one level.
_MOST = 16
_NODES = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_RANGES = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9 ,.&-]+", re.ASCII)
# Greatest length of a host list, and greatest number of its names, that is parsed.
_LONGEST, _NAMES = 8192, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRequest:
    """What was submitted for one job.

    `own`: option → value that the user had set before the plan changed it (None: not set). `place`, `tune`: whether the
    user allows placement and tuning.
    """

    plan: PlacementPlan
    own: Mapping[str, str | None] = field(default_factory=dict)
    shape: ResourceShape = field(default_factory=ResourceShape)
    place: bool = True
    tune: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgent:
    """Why the next level must not wait for its deadline.

    `everything`: go back to all that the user asked for; otherwise only the node list is cleared.
    """

    reason: str
    everything: bool = True


# Actions that must be applied together: all of them, or none.
Group = tuple[SlurmAction, ...]


def relax(
    asked: SubmittedRequest,
    record: JobRecord,
    *,
    now: float,
    unseen: Mapping[str, str] | None = None,
    urgent: Urgent | None = None,
    pin_s: float = 60.0,
    keeps: bool | None = None,
) -> tuple[Group, ...]:
    """Return the updates that are due now, in order, one key per action; () if none is.

    `unseen`: key → value that earlier actions set, for keys that squeue does not show (Switches). `pin_s`: for how many
    seconds slurmwrap's node list may stay in force, whatever the plan says. `keeps`: whether the job goes on insisting
    on few nodes (placement/locality_wait.py); None: its deadline decides.
    """
    if not may_be_touched(record, now):
        return ()
    # All levels up to the due one are applied together. A key is updated only if its value in force is one that
    # slurmwrap set before, so the result does not depend on what earlier passes did. The node list has a deadline of
    # its own (`pin_s`).
    levels = (*check_levels(asked.plan.levels), *_make_requested_level(asked, record))
    goal = _find_goal_level(levels, now - float(record.eligible_time or 0), urgent)
    if keeps is not None and urgent is None:
        goal = _keep_few_nodes(levels, goal, keeps)
    in_force = {**list_submitted_values(asked, record), **(unseen or {}), **list_values_in_force(record)}
    wanted = [*_list_wanted_keys(levels[: goal + 1], asked, record, in_force)]
    if "ReqNodeList" not in wanted and in_force.get("ReqNodeList") and _is_pin_over(record, now, pin_s, urgent):
        wanted.insert(0, "ReqNodeList")
    values = {**_list_level_values(levels[: goal + 1]), "ReqNodeList": ""}
    reason = urgent.reason if urgent else _format_wait_reason(levels[goal], now - float(record.eligible_time or 0))
    actions = {
        key: SlurmAction(verb=Verb.UPDATE_JOB, target=record.waiting_address, key=key, value=values[key], reason=reason)
        for key in wanted
        if _is_own_key(key, asked, record) and is_less_strict(key, in_force.get(key, ""), values[key], record)
    }
    return tuple(_group_actions(actions, asked.shape, record))


def find_due_level(levels: Sequence[Level], waited_s: float) -> int:
    """Return the index of the level that is due after so many seconds of waiting. Deadlines never decrease."""
    deadline, reached = 0.0, 0
    for index, level in enumerate(levels[:-1]):
        deadline = max(deadline, level.wait_s)
        if waited_s < deadline:
            break
        reached = index + 1
    return reached


def find_blocking_reason(asked: SubmittedRequest, record: JobRecord) -> str:
    """Return Slurm's reason if what slurmwrap asked for may block the job; else ""."""
    planned = {wish.option for wish in asked.plan.lines if wish.value is not None}
    nodes_alone = _NODES_MISSING.search(record.reason) and not planned & {"nodelist", "constraint"}
    return record.reason if planned and BLOCKED.search(record.reason) and not nodes_alone else ""


def list_submitted_values(asked: SubmittedRequest, record: JobRecord) -> dict[str, str]:
    """Return key → value for every key that the plan set."""
    wishes = {wish.option: wish.value for wish in asked.plan.lines if wish.value is not None}
    found = {key: wishes[option] for key, option in OPTION_OF.items() if option in wishes and key != "MinCPUsNode"}
    values = {key: _to_slurm_form(key, value) for key, value in found.items()}
    if "CPUsPerTask" in values and record.cpus_per_task:
        values["MinCPUsNode"] = str(_parse_number(values["CPUsPerTask"]) * _count_tasks_per_node(asked.shape, record))
    return values


def list_values_in_force(record: JobRecord) -> dict[str, str]:
    """Return key → value in force by Slurm's own record. Keys that squeue does not show (Switches) are missing."""
    return {
        "ExcNodeList": record.exc_nodes,
        "ReqNodeList": record.req_nodes,
        "NumNodes": f"{record.num_nodes}-{record.max_nodes or record.num_nodes}",
        "Features": record.features,
        "MinMemoryNode": str(record.mem_mib_per_node or 0),
        "CPUsPerTask": str(record.cpus_per_task),
        "MinCPUsNode": str(record.min_cpus),
    }


def is_same_value(key: str, one: str, other: str) -> bool:
    """Return whether two values of a key mean the same to Slurm."""
    if key in ("ExcNodeList", "ReqNodeList"):
        return one == other or ((names := _parse_names(one)) is not None and names == _parse_names(other))
    if key == "NumNodes":
        return _parse_range(one) == _parse_range(other)
    return one == other


def is_less_strict(key: str, old: str, new: str, record: JobRecord) -> bool:
    """Return whether `new` lets the job run wherever `old` did, and in more places. False for a value that is not
    understood.
    """
    if key == "ReqNodeList":
        return bool(old) and not new
    if key == "ExcNodeList":
        before, after = _parse_names(old), _parse_names(new)
        return before is not None and after is not None and after < before
    if key == "Switches":
        return new == "0" and old not in ("", "0")
    if key == "NumNodes":
        (least, most), (lower, upper) = _parse_range(old), _parse_range(new)
        return 0 < least == lower == record.num_nodes and upper > most
    if key == "Features":
        return bool(old) and (not new or old.startswith((f"{new}&", f"({new})&")))
    return key in SIZES and 0 < _parse_number(new) < _parse_number(old)


def check_levels(levels: Sequence[Level]) -> tuple[Level, ...]:
    """Return `levels` without anything that is not an update by slurmwrap. At least one level."""
    kept = [
        Level(
            name=_PLAIN.sub(" ", level.name)[:60].strip(),
            wait_s=min(max(level.wait_s, 0), 30 * 86400),
            updates=tuple((k, v) for k, v in level.updates[:_MOST] if k in KEYS and len(v) <= _LONGEST),
        )
        for level in levels[:_MOST]
    ]
    return tuple(kept) or (Level(name="as submitted", wait_s=0),)


def may_be_touched(record: JobRecord, now: float) -> bool:
    """Return whether the job may be updated.

    It is pending, eligible, not held and no component of a heterogeneous job, and the address of its pending tasks is
    short enough.
    """
    return is_waiting(record, now) and 0 < len(record.waiting_address) <= _LONGEST and not record.het_job_id


def is_waiting(record: JobRecord, now: float) -> bool:
    """Return whether the job is pending, eligible and not held.

    Slurm keeps priority 0 for a held job, and for one with BadConstraints, which gets its priority back when the
    constraint is removed (22.05.8).
    """
    eligible = record.eligible_time is not None and record.eligible_time <= now
    held = "held" in record.reason.lower() or (record.priority == 0 and record.reason != "BadConstraints")
    return record.pending and eligible and not held


def complete_cpu_updates(
    actions: Sequence[SlurmAction], shape: ResourceShape, record: JobRecord
) -> tuple[SlurmAction, ...]:
    """Return `actions` with both CPUsPerTask and MinCPUsNode if it contains one of them.

    The two keys are set, and undone, together.
    """
    by_key = {action.key: action for action in actions}
    tasks = _count_tasks_per_node(shape, record)
    if "CPUsPerTask" in by_key:
        first = by_key["CPUsPerTask"]
        by_key["MinCPUsNode"] = replace(first, key="MinCPUsNode", value=str(_parse_number(first.value) * tasks))
    elif "MinCPUsNode" in by_key:
        second = by_key.pop("MinCPUsNode")
        by_key["CPUsPerTask"] = replace(second, key="CPUsPerTask", value=str(_parse_number(second.value) // tasks))
        by_key["MinCPUsNode"] = second
    return tuple(by_key.values())


# ---------------------------------------------------------------------------------------------------- the due level


def _find_goal_level(levels: Sequence[Level], waited_s: float, urgent: Urgent | None) -> int:
    """Return the index of the level to reach. The last of `levels` is the user's request; only an urgent case goes that
    far.
    """
    return len(levels) - 1 if urgent and urgent.everything else find_due_level(levels[:-1], waited_s)


def _keep_few_nodes(levels: Sequence[Level], goal: int, keeps: bool) -> int:
    """Return the level to reach if the number of nodes is kept or dropped now, whatever its deadline."""
    place = next((at for at, level in enumerate(levels[:-1]) if any(k == "NumNodes" for k, _ in level.updates)), None)
    if place is None:
        return goal
    return min(goal, place - 1) if keeps else max(goal, place)


def _make_requested_level(asked: SubmittedRequest, record: JobRecord) -> tuple[Level]:
    """Return the level after the plan's last one: everything that slurmwrap changed is as the user had it."""
    shape, updates = asked.shape, [("ReqNodeList", ""), ("Switches", "0")]
    own = {option: value for option, value in asked.own.items() if isinstance(value, str)}
    updates += [(key, own.get(OPTION_OF[key], "")) for key in ("ExcNodeList", "Features")]
    if shape.mem_unit is MemUnit.PER_NODE and shape.mem_mib:
        updates.append(("MinMemoryNode", str(shape.mem_mib)))
    if shape.cpu_unit is CpuUnit.PER_TASK or asked.own.get("cpus-per-task", "") is None:
        cpus = shape.cpus or 1
        updates += [("CPUsPerTask", str(cpus)), ("MinCPUsNode", str(cpus * _count_tasks_per_node(shape, record)))]
    if shape.max_nodes and shape.max_nodes > record.num_nodes:
        updates.append(("NumNodes", f"{record.num_nodes}-{shape.max_nodes}"))
    return (Level(name="as asked", wait_s=0, updates=tuple(updates)),)


def _list_level_values(levels: Sequence[Level]) -> dict[str, str]:
    """Return key → value after all of `levels` were applied."""
    return {key: value for level in levels for key, value in level.updates}


def _list_wanted_keys(
    levels: Sequence[Level], asked: SubmittedRequest, record: JobRecord, in_force: Mapping[str, str]
) -> Iterator[str]:
    """Yield the keys to update: the value in force was set by the plan or an earlier level, and differs from the wanted
    one.
    """
    before, values = list_submitted_values(asked, record), _list_level_values(levels)
    for key in values:
        path = [value for level in levels for k, value in level.updates if k == key]
        on_the_way = [before[key], *path[:-1]] if key in before else []
        if any(is_same_value(key, in_force.get(key, ""), value) for value in on_the_way) and not is_same_value(
            key, in_force.get(key, ""), values[key]
        ):
            yield key


def _is_pin_over(record: JobRecord, now: float, pin_s: float, urgent: Urgent | None) -> bool:
    return urgent is not None or now - float(record.eligible_time or 0) >= pin_s


def _is_own_key(key: str, asked: SubmittedRequest, record: JobRecord) -> bool:
    """Return whether the plan set the key, nothing changed it since, and the user allows the update."""
    before = list_submitted_values(asked, record)
    if key not in before or not (asked.tune if key in _TUNED else asked.place):
        return False
    if key == "ReqNodeList":
        return is_same_value(key, record.req_nodes, before[key])
    return key not in _TUNED or (asked.shape.mem_unit is MemUnit.PER_NODE and not asked.shape.exclusive)


def _group_actions(actions: Mapping[str, SlurmAction], shape: ResourceShape, record: JobRecord) -> Iterator[Group]:
    """Yield groups of actions: CPUsPerTask and MinCPUsNode only together and in this order, every other key alone.

    Either of the two alone makes every srun fail (placement/retune.py). MinCPUsNode alone is what remains if slurmwrap
    was killed after the first of the two updates.
    """
    for key, action in actions.items():
        if key not in ("CPUsPerTask", "MinCPUsNode"):
            yield (action,)
    cpus = tuple(actions[key] for key in ("CPUsPerTask", "MinCPUsNode") if key in actions)
    per_task = _parse_number(actions["CPUsPerTask"].value) if "CPUsPerTask" in actions else record.cpus_per_task
    if (
        cpus
        and cpus[-1].key == "MinCPUsNode"
        and _parse_number(cpus[-1].value) == per_task * _count_tasks_per_node(shape, record)
    ):
        yield cpus


def _format_wait_reason(level: Level, waited_s: float) -> str:
    name = "anywhere" if level.name == "any" else level.name or "the next level"
    return f"it waited {waited_s / 60:.0f} min: now {name}"


# ---------------------------------------------------------------------------------------------------- Slurm's forms


def _to_slurm_form(key: str, value: str) -> str:
    """Return sbatch's value in the form of scontrol: memory in MiB, nodes as a range."""
    if key == "MinMemoryNode":
        return value.removesuffix("M")
    if key == "NumNodes":
        least, most = _parse_range(value)
        return f"{least}-{most}"
    return value


def _count_tasks_per_node(shape: ResourceShape, record: JobRecord) -> int:
    """Return the tasks per node by the request.

    Slurm's record is not used: between the two updates of CPUs it shows neither the old nor the new number.
    """
    return shape.tasks_per_node or max(1, (shape.tasks or 1) // max(1, record.num_nodes))


def _parse_range(value: str) -> tuple[int, int]:
    """Return (least, most); (0, 0) if the value is no number of nodes."""
    match = _NODES.fullmatch(value)
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


def _parse_number(value: str) -> int:
    return int(value) if value.isdecimal() and len(value) < 10 else 0


def _parse_names(hostlist: str) -> frozenset[str] | None:
    """Return the names; None for what is no host list, names a file, or stands for more nodes than any cluster has."""
    spread = sum(max(0, int(high) - int(low)) for low, high in _RANGES.findall(hostlist))
    if len(hostlist) > _LONGEST or spread > _NAMES or "/" in hostlist or re.search(r"\][^,]*\[", hostlist):
        return None
    try:
        return frozenset(expand(hostlist))
    except ValueError:
        return None
