"""Compute the ResourceShape of sbatch settings: nodes, GPUs, CPUs, memory and time in numbers. Pure.

Numbers are parsed as sbatch 22.05 parses them (measured: `--mem=3gb`, `--nodes=' 3 '`, `--mem=+3G` are valid,
`--time=' 3'` is not). A number that sbatch refuses raises UsageError with sbatch's message, the source and the value.
If Slurm computes a number only at allocation, the least possible number is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmwrap.errors import UsageError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, Origin, ResourceShape, SbatchSetting

_MEM = re.compile(r"\s*\+?(\d+)(?:([kKmMgGtT])[bB]?)?")
_MEM_SCALE = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_COUNT_SCALE = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_NODES = re.compile(r"\s*\+?(\d+)([kK]?)([mM]?)\s*")
_TIME = r"(?:(?P<days>\d+)-(?P<clock>\d+(?::\d+){0,2})?|(?P<plain>\d+(?::\d+){0,2}))"
_GRES = re.compile(r"(?:gres[:/])?(?P<name>[^:=/,]+)(?:[:=](?P<one>[^:=,]+))?(?:[:=](?P<two>[^:=,]+))?")
_NO_LIMIT = frozenset({"-1", "infinite", "unlimited"})

_CPU_UNITS = {CpuUnit.PER_TASK.value: CpuUnit.PER_TASK, CpuUnit.PER_GPU.value: CpuUnit.PER_GPU}
_MEM_UNITS = {unit.value: unit for unit in (MemUnit.PER_NODE, MemUnit.PER_CPU, MemUnit.PER_GPU)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpus:
    """The GPUs that one option asks for: how many, and of which types ("" for any type)."""

    unit: GpuUnit
    types: tuple[str, ...]
    count: int


def compute_resource_shape(settings: Sequence[SbatchSetting]) -> ResourceShape:
    """Return the request in numbers. `settings` are in rising precedence. UsageError for a number that sbatch refuses.

    `time_limit_s` is None if there is no limit or none is given; it is rounded up to minutes, as in Slurm. `nodes` is
    also derived from --nodelist, whose length sbatch uses as the least number of nodes. `gpus` is the least number
    that the job can get.
    """
    force = {setting.option: setting for setting in settings}
    low, high = _parse_node_range(force)
    tasks, per_node = _parse_integer(force, "ntasks"), _parse_integer(force, "ntasks-per-node")
    asked = _list_gpu_requests(force)
    cpu, mem = _find_cpu_in_force(force), find_memory_in_force(settings)
    return ResourceShape(
        nodes=low,
        max_nodes=high,
        tasks=tasks,
        tasks_per_node=per_node,
        gpus=_compute_total_gpus(asked, low, tasks, per_node, _parse_integer(force, "sockets-per-node")),
        gpus_per_node=_compute_gpus_per_node(asked, per_node),
        gpu_type=_find_only_type(asked),
        gpu_unit=asked[0].unit if asked else GpuUnit.NONE,
        cpus=_parse_integer(force, cpu.option) if cpu else None,
        cpu_unit=_CPU_UNITS[cpu.option] if cpu else CpuUnit.NONE,
        mem_mib=parse_memory(mem) if mem else None,
        mem_unit=_MEM_UNITS[mem.option] if mem else MemUnit.NONE,
        time_limit_s=_parse_time_limit_setting(force.get("time")),
        exclusive=_is_exclusive(settings),
    )


# --- memory, time, counts -----------------------------------------------------------------------------------------


def find_memory_in_force(settings: Sequence[SbatchSetting]) -> SbatchSetting | None:
    """Return the memory option that applies. Script and command line override a variable of any unit (22.05.8)."""
    last = {s.option: s for s in settings if s.option in _MEM_UNITS}
    firm = [s for s in last.values() if s.origin is not Origin.ENVIRONMENT]
    return firm[-1] if firm else next(reversed(last.values()), None)


def parse_memory(setting: SbatchSetting) -> int:
    """Return the MiB of `--mem=180G` and the like. Default unit: MiB; K is rounded up. UsageError as in sbatch."""
    found = _MEM.fullmatch(setting.value or "")
    if found is None:
        raise _make_invalid_value_error(setting, f"Invalid --{setting.option} specification")
    amount = int(found[1]) * _MEM_SCALE[(found[2] or "").lower()]
    return -int(-amount // 1)


def parse_time_limit(text: str) -> int | None:
    """Return the seconds of a Slurm time limit, rounded up to minutes; None for no limit.

    The forms are minutes, m:s, h:m:s, d-h, d-h:m and d-h:m:s. ValueError for anything else.
    """
    if text.lower() in _NO_LIMIT:
        return None
    found = re.fullmatch(_TIME, text)
    if found is None:
        raise ValueError(text)
    if found["plain"]:
        parts = [int(part) for part in found["plain"].split(":")]
        parts = [0, *parts, 0][:3] if len(parts) == 1 else [0, *parts] if len(parts) == 2 else parts
        days = 0
    else:
        parts = ([int(part) for part in (found["clock"] or "0").split(":")] + [0, 0])[:3]
        days = int(found["days"])
    seconds = days * 86400 + parts[0] * 3600 + parts[1] * 60 + parts[2]
    return -(-seconds // 60) * 60 or None


def _parse_time_limit_setting(setting: SbatchSetting | None) -> int | None:
    if setting is None:
        return None
    try:
        return parse_time_limit(setting.value or "")
    except ValueError:
        raise _make_invalid_value_error(setting, "Invalid --time specification") from None


def _parse_integer(force: dict[str, SbatchSetting], option: str) -> int | None:
    setting = force.get(option)
    if setting is None:
        return None
    text = (setting.value or "").lstrip().removeprefix("+")
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        message = f'Invalid numeric value "{setting.value}" for --{option}.'
        raise _make_invalid_value_error(setting, message, exit_code=1)
    return int(text)


def _make_invalid_value_error(setting: SbatchSetting, message: str, exit_code: int = 255) -> UsageError:
    place = f"{setting.where}: --{setting.option}={setting.value}"
    return UsageError(f"{message} ({place})", exit_code=exit_code)


# --- nodes --------------------------------------------------------------------------------------------------------


def _parse_node_range(force: dict[str, SbatchSetting]) -> tuple[int | None, int | None]:
    """Return the least and greatest number of nodes: from --nodes, or else the length of --nodelist."""
    setting = force.get("nodes")
    if setting is None:
        listed = force.get("nodelist")
        return (_count_hosts(listed.value) if listed and listed.value else None), None
    low, high = _parse_range(setting)
    if high < low:
        message = f"Maximum node count {high} is less than minimum node count {low}"
        raise _make_invalid_value_error(setting, message)
    return low, high


def _parse_range(setting: SbatchSetting) -> tuple[int, int]:
    """Parse `2`, `2-4` or `1k`; of a list of sizes (`2,4-8`, newer than 22.05) return the least and greatest."""
    numbers = [_NODES.fullmatch(part) for part in re.split(r"[-,]", (setting.value or "").partition(":")[0])]
    counts = [int(n[1]) * (1024 if n[2] else 1) * (2**20 if n[3] else 1) for n in numbers if n]
    if len(counts) < len(numbers):
        raise _make_invalid_value_error(setting, f'"{setting.value}" is not a valid node count')
    if "," in (setting.value or ""):
        return min(counts), max(counts)
    return counts[0], counts[-1]


def _count_hosts(hosts: str) -> int | None:
    """Return how many hosts `n[0-3,7],m1` names; None for a file name or a form that is not understood."""
    if "/" in hosts or "{" in hosts:
        return None
    total = 0
    for name in re.findall(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*", hosts):
        count = 1
        for inside in re.findall(r"\[([^\]]*)\]", name):
            count *= sum(_count_range(part) for part in inside.split(","))
        total += count if name else 0
    return total or None


def _count_range(part: str) -> int:
    low, dash, high = part.partition("-")
    return int(high) - int(low) + 1 if dash and low.isdigit() and high.isdigit() else 1


# --- GPUs ---------------------------------------------------------------------------------------------------------


def _list_gpu_requests(force: dict[str, SbatchSetting]) -> list[_Gpus]:
    """Return all requests for GPUs: the total for the job first, then those per node, task and socket."""
    asked = [
        _parse_typed_gpus(force["gpus"].value, GpuUnit.GPUS) if "gpus" in force else None,
        _parse_typed_gpus(force["gpus-per-node"].value, GpuUnit.PER_NODE) if "gpus-per-node" in force else None,
        _parse_gres_gpus(force["gres"].value, GpuUnit.GRES) if "gres" in force else None,
        _parse_typed_gpus(force["gpus-per-task"].value, GpuUnit.PER_TASK) if "gpus-per-task" in force else None,
        _parse_gres_gpus(force["tres-per-task"].value, GpuUnit.PER_TASK) if "tres-per-task" in force else None,
        _parse_typed_gpus(force["gpus-per-socket"].value, GpuUnit.PER_SOCKET) if "gpus-per-socket" in force else None,
    ]
    return [one for one in asked if one and one.count > 0]


def _parse_typed_gpus(value: str | None, unit: GpuUnit) -> _Gpus:
    """Parse `8`, `a100:8` or `a100:4,v100:4`, as in --gpus and similar options."""
    return _sum_gpu_entries([f"gpu:{entry}" for entry in (value or "").split(",") if entry], unit)


def _parse_gres_gpus(value: str | None, unit: GpuUnit) -> _Gpus:
    """Parse `gpu`, `gpu:8`, `gpu:a100:8` or `gres/gpu=2` among other resources, as in --gres and --tres-per-task."""
    return _sum_gpu_entries([entry for entry in (value or "").split(",") if entry], unit)


def _sum_gpu_entries(entries: list[str], unit: GpuUnit) -> _Gpus:
    found = [match for match in map(_GRES.fullmatch, entries) if match and match["name"] == "gpu"]
    counts = [_parse_gpu_count(match) for match in found]
    types = tuple(_parse_gpu_type(match) for match in found)
    return _Gpus(unit=unit, types=types, count=sum(counts))


def _parse_gpu_type(match: re.Match[str]) -> str:
    one = match["one"] or ""
    return one if match["two"] or not one[:1].isdigit() or _parse_number(one) is None else ""


def _parse_gpu_count(match: re.Match[str]) -> int:
    """Return the count; 1 if it is left out; 0 if it cannot be parsed, because Slurm then refuses the job itself."""
    if match["two"]:
        return _parse_number(match["two"]) or 0
    number = _parse_number(match["one"]) if match["one"] else 1
    return 1 if number is None else number


def _parse_number(text: str) -> int | None:
    digits, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "")
    known = digits.isascii() and digits.isdigit() and unit in _COUNT_SCALE
    return int(digits) * _COUNT_SCALE[unit] if known else None


def _find_only_type(asked: Sequence[_Gpus]) -> str | None:
    types = {name for one in asked for name in one.types if name}
    return types.pop() if len(types) == 1 else None


def _compute_gpus_per_node(asked: Sequence[_Gpus], per_node: int | None) -> int | None:
    """Return the GPUs per node: as given, or tasks per node times GPUs per task; None if Slurm is free to choose."""
    said = next((one.count for one in asked if one.unit in (GpuUnit.PER_NODE, GpuUnit.GRES)), None)
    by_task = next((one.count for one in asked if one.unit is GpuUnit.PER_TASK), None)
    return said if said is not None or not (by_task and per_node) else by_task * per_node


def _compute_total_gpus(
    asked: Sequence[_Gpus], nodes: int | None, tasks: int | None, per_node: int | None, sockets: int | None
) -> int:
    """Return the GPUs of the whole job.

    If nodes are not given: as few as the tasks allow. If tasks are not given: one per node, as in sbatch.
    """
    if not asked:
        return 0
    first = asked[0]
    hosts = nodes or (-(-tasks // per_node) if tasks and per_node else 1)
    factor = {
        GpuUnit.GPUS: 1,
        GpuUnit.PER_NODE: hosts,
        GpuUnit.GRES: hosts,
        GpuUnit.PER_TASK: tasks or hosts * (per_node or 1),
        GpuUnit.PER_SOCKET: hosts * (sockets or 1),
    }
    return first.count * factor[first.unit]


# --- the rest -----------------------------------------------------------------------------------------------------


def _find_cpu_in_force(force: dict[str, SbatchSetting]) -> SbatchSetting | None:
    return force.get("cpus-per-task") or force.get("cpus-per-gpu")


def _is_exclusive(settings: Sequence[SbatchSetting]) -> bool:
    """Return whether the job has its nodes alone: --exclusive comes last, without a user or group scope."""
    last = next((s for s in reversed(settings) if s.option in ("exclusive", "oversubscribe")), None)
    return last is not None and last.option == "exclusive" and (last.value or "exclusive").lower() in _ALONE


_ALONE = frozenset({"exclusive", "topo"})
