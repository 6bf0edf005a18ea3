"""Loosens what a waiting job insists on, level by level, back to what its user asked for. Pure.

A level of the plan is reached when its predecessors' time is over (`Level.wait_s`, counted from when the job became
eligible); several at once where no one looked meanwhile. Which of its values are in force is read from Slurm's own
word on the job, so nothing has to be remembered, and being killed between two updates loses nothing.

Plan and levels are claims of the job's user. Nothing of it is believed:
- only keys of `KEYS`, only those that the plan itself set, and of these only one whose value in force is the plan's
  (else its user changed it since);
- only what is looser than what is in force (`loosens`), in a grammar of its own for each key;
- anyone who applies it asks Slurm in the owner's name.

What Slurm makes of each update was measured on 22.05.8 (tests/slurm/test_relax_lab.py): all keys on a pending job;
`NumNodes=2-4` leaves CPUs, memory and tasks alone and srun works wherever Slurm then starts it; a job that has started
meanwhile refuses every key, but in newer releases a smaller minimum of nodes or a node list would shrink it, so the
minimum stays and a node list is only ever cleared.
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

# Slurm's reasons (squeue, %r) that name what was asked for, not what is busy: it could wait for ever.
BLOCKED = re.compile(
    r"BadConstraints|PartitionConfig|PartitionNodeLimit|ReqNodeNotAvail|Nodes[ _]required[ _]for[ _]job[ _]are[ _]DOWN"
    r"|(QOS|Assoc)(Max|Grp)(Cpu|CPU|Mem|Node)",
    re.ASCII,
)
_NODES_MISSING = re.compile(r"ReqNodeNotAvail|Nodes[ _]required", re.ASCII)
KEYS = frozenset(OPTION_OF)  # of scontrol update
# Limits of QOS and association count them.
SIZES = frozenset(("NumNodes", "MinMemoryNode", "CPUsPerTask", "MinCPUsNode"))
_TUNED = frozenset(("MinMemoryNode", "CPUsPerTask", "MinCPUsNode"))
# Levels, and updates of one.
_MOST = 16
_NODES = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)
_RANGES = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9 ,.&-]+", re.ASCII)
# Of a host list that is looked at.
_LONGEST, _NAMES = 8192, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRequest:
    """What was submitted for one job. `own`: option → what the user himself had set (None: nothing), where we changed
    it. `place`, `tune`: whether its user allows it."""

    plan: PlacementPlan
    own: Mapping[str, str | None] = field(default_factory=dict)
    shape: ResourceShape = field(default_factory=ResourceShape)
    place: bool = True
    tune: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgent:
    """Why not to wait for a deadline. `everything`: back to what the user asked for; else only the node list goes."""

    reason: str
    everything: bool = True


# Belong together: all of them, or none.
Group = tuple[SlurmAction, ...]


def relax(
    asked: SubmittedRequest,
    record: JobRecord,
    *,
    now: float,
    unseen: Mapping[str, str] | None = None,
    urgent: Urgent | None = None,
    pin_s: float = 60.0,
) -> tuple[Group, ...]:
    """What to ask of Slurm now, in order, one key per action; () where nothing is due.

    `unseen`: key → value that earlier actions set, for those that squeue does not show (Switches). `pin_s`: how long a
    node list of slurmwrap's may stand, whatever the plan says.
    """
    if not may_be_touched(record, now):
        return ()
    levels = (*check_levels(asked.plan.levels), *_make_requested_level(asked, record))
    goal = _find_goal_level(levels, now - float(record.eligible_time or 0), urgent)
    in_force = {**list_submitted_values(asked, record), **(unseen or {}), **list_values_in_force(record)}
    wanted = [*_list_wanted_keys(levels[: goal + 1], asked, record, in_force)]
    if "ReqNodeList" not in wanted and in_force.get("ReqNodeList") and _is_pin_over(record, now, pin_s, urgent):
        wanted.insert(0, "ReqNodeList")
    values = {**_list_level_values(levels[: goal + 1]), "ReqNodeList": ""}
    reason = urgent.reason if urgent else _format_wait_reason(levels[goal], now - float(record.eligible_time or 0))
    actions = {
        key: SlurmAction(verb=Verb.UPDATE_JOB, target=record.waiting_address, key=key, value=values[key], reason=reason)
        for key in wanted
        if _is_own_key(key, asked, record) and is_loosening(key, in_force.get(key, ""), values[key], record)
    }
    return tuple(_group_actions(actions, asked.shape, record))


def find_due_level(levels: Sequence[Level], waited_s: float) -> int:
    """The index of the level that holds after so many seconds of waiting. Deadlines never go back."""
    deadline, reached = 0.0, 0
    for index, level in enumerate(levels[:-1]):
        deadline = max(deadline, level.wait_s)
        if waited_s < deadline:
            break
        reached = index + 1
    return reached


def find_blocking_reason(asked: SubmittedRequest, record: JobRecord) -> str:
    """Slurm's reason where it may be what we asked for that blocks the job; else ""."""
    ours = {wish.option for wish in asked.plan.lines if wish.value is not None}
    nodes_alone = _NODES_MISSING.search(record.reason) and not ours & {"nodelist", "constraint"}
    return record.reason if ours and BLOCKED.search(record.reason) and not nodes_alone else ""


def list_submitted_values(asked: SubmittedRequest, record: JobRecord) -> dict[str, str]:
    """Key → value that the plan set, for every key that it set."""
    wishes = {wish.option: wish.value for wish in asked.plan.lines if wish.value is not None}
    found = {key: wishes[option] for key, option in OPTION_OF.items() if option in wishes and key != "MinCPUsNode"}
    values = {key: _to_slurm_form(key, value) for key, value in found.items()}
    if "CPUsPerTask" in values and record.cpus_per_task:
        values["MinCPUsNode"] = str(_parse_number(values["CPUsPerTask"]) * _count_tasks_per_node(asked.shape, record))
    return values


def list_values_in_force(record: JobRecord) -> dict[str, str]:
    """Key → value in force by Slurm's own record; what squeue does not show (Switches) is not in it."""
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
    """Whether two values of a key mean the same to Slurm."""
    if key in ("ExcNodeList", "ReqNodeList"):
        return one == other or ((names := _parse_names(one)) is not None and names == _parse_names(other))
    if key == "NumNodes":
        return _parse_range(one) == _parse_range(other)
    return one == other


def is_loosening(key: str, old: str, new: str, record: JobRecord) -> bool:
    """Whether `new` lets the job run wherever `old` did, and in more places. False for all that is not understood."""
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
    """Levels with what is no update of slurmwrap's cut away. At least one."""
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
    """Pending, eligible, not held, no component of a heterogeneous job, and its waiting tasks can be named briefly."""
    return is_waiting(record, now) and 0 < len(record.waiting_address) <= _LONGEST and not record.het_job_id


def is_waiting(record: JobRecord, now: float) -> bool:
    """Pending, eligible and not held. Slurm keeps priority 0 for a held job, and for one with BadConstraints, which
    gets its priority back when the constraint goes (22.05.8)."""
    eligible = record.eligible_time is not None and record.eligible_time <= now
    held = "held" in record.reason.lower() or (record.priority == 0 and record.reason != "BadConstraints")
    return record.pending and eligible and not held


def complete_cpu_updates(
    actions: Sequence[SlurmAction], shape: ResourceShape, record: JobRecord
) -> tuple[SlurmAction, ...]:
    """`actions` with both CPUsPerTask and MinCPUsNode where one is among them: made, and undone, together."""
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


# ---------------------------------------------------------------------------------------------------- the goal


def _find_goal_level(levels: Sequence[Level], waited_s: float, urgent: Urgent | None) -> int:
    """The last of `levels` is what the user asked for; only what is urgent goes so far."""
    return len(levels) - 1 if urgent and urgent.everything else find_due_level(levels[:-1], waited_s)


def _make_requested_level(asked: SubmittedRequest, record: JobRecord) -> tuple[Level]:
    """One level more than the plan has: all that we changed, as its user had it."""
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
    """Key → value once all of `levels` are reached."""
    return {key: value for level in levels for key, value in level.updates}


def _list_wanted_keys(
    levels: Sequence[Level], asked: SubmittedRequest, record: JobRecord, in_force: Mapping[str, str]
) -> Iterator[str]:
    """Keys whose value in force is one that the plan set on the way to the last of `levels`, and not its value."""
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
    """Whether the plan set it, no one changed it since, and its user lets us."""
    before = list_submitted_values(asked, record)
    if key not in before or not (asked.tune if key in _TUNED else asked.place):
        return False
    if key == "ReqNodeList":
        return is_same_value(key, record.req_nodes, before[key])
    return key not in _TUNED or (asked.shape.mem_unit is MemUnit.PER_NODE and not asked.shape.exclusive)


def _group_actions(actions: Mapping[str, SlurmAction], shape: ResourceShape, record: JobRecord) -> Iterator[Group]:
    """CPUsPerTask and MinCPUsNode only together and in this order: one alone kills every srun (placement/retune.py).
    The second alone is what is left of it when we were killed after the first."""
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
    """sbatch's value as scontrol has it: memory in MiB, nodes as a range."""
    if key == "MinMemoryNode":
        return value.removesuffix("M")
    if key == "NumNodes":
        least, most = _parse_range(value)
        return f"{least}-{most}"
    return value


def _count_tasks_per_node(shape: ResourceShape, record: JobRecord) -> int:
    """Not from Slurm's record: between the two updates of CPUs that is neither the old nor the new."""
    return shape.tasks_per_node or max(1, (shape.tasks or 1) // max(1, record.num_nodes))


def _parse_range(value: str) -> tuple[int, int]:
    """(0, 0) for what is no number of nodes."""
    match = _NODES.fullmatch(value)
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


def _parse_number(value: str) -> int:
    return int(value) if value.isdecimal() and len(value) < 10 else 0


def _parse_names(hostlist: str) -> frozenset[str] | None:
    """None for what is no host list, names a file, or stands for more nodes than any cluster has."""
    spread = sum(max(0, int(high) - int(low)) for low, high in _RANGES.findall(hostlist))
    if len(hostlist) > _LONGEST or spread > _NAMES or "/" in hostlist or re.search(r"\][^,]*\[", hostlist):
        return None
    try:
        return frozenset(expand(hostlist))
    except ValueError:
        return None
