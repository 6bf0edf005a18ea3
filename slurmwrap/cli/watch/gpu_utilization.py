"""Utilization of a job's GPUs, parsed from the lines that node_hooks/watch_gpus.py prints on its nodes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.hostlist import fold
from slurmwrap.report.text_format import flat, sparkline

STALE_S = 20.0  # a GPU without a report for this long is left out
IDLE_S = 60.0  # a GPU at 0 % for this long is idle
_MOST_MEANS = 60  # number of means that are kept
_LARGEST_NUMBER = 1 << 24  # larger numbers in a node's report are ignored
_MOST_GPUS_PER_NODE = 256
_SILENT_PREFIX = "nothing heard of it for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """The last report of one GPU. None: the driver does not report it (MIG, vGPU). Times: Unix seconds of this host."""

    node: str
    # The device minor number, which Slurm uses as well.
    index: int
    at: float
    # When it was last above 0 %; if it never was, when it was first reported.
    busy_at: float
    uuid: str = ""
    percent: float | None = None
    memory_mib: int | None = None
    total_mib: int | None = None
    power_w: int | None = None
    programs: int | None = None  # number of processes that compute on it

    @property
    def name(self) -> str:
        """Node and index, such as "n3:2"."""
        return f"{self.node}:{self.index}"

    @property
    def idle(self) -> bool:
        """Whether no program uses it, or it was at 0 % for IDLE_S."""
        return self.programs == 0 or (self.percent == 0 and self.at - self.busy_at >= IDLE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpuUse:
    """Utilization of a running job's GPUs. `given_up`: why the measurement ended; "" while it continues."""

    nodes: tuple[str, ...]  # nodes that are measured
    of_nodes: int  # number of nodes of the job
    gpus: tuple[Gpu, ...] = ()  # by node and index
    troubles: Mapping[str, str] | None = None  # node → what is wrong there
    means: tuple[float, ...] = ()  # percent over all GPUs, the newest last
    given_up: str = ""

    @property
    def percent(self) -> float | None:
        """The mean over the GPUs that report their utilization; None if none does."""
        known = [gpu.percent for gpu in self.gpus if gpu.percent is not None]
        return sum(known) / len(known) if known else None

    @property
    def idle(self) -> tuple[Gpu, ...]:
        """The GPUs that are idle."""
        return tuple(gpu for gpu in self.gpus if gpu.idle)

    @property
    def all_heard(self) -> bool:
        """Whether every measured node has reported a GPU or an error."""
        return set(self.nodes) <= {gpu.node for gpu in self.gpus} | set(self.troubles or {})


def add_reports(use: JobGpuUse, lines: list[bytes], now: float) -> JobGpuUse:
    """Return `use` with the reports in these lines. Other lines, such as output of a TaskProlog, are ignored."""
    order = {node: at for at, node in enumerate(use.nodes)}
    gpus = {(gpu.node, gpu.index): gpu for gpu in use.gpus}
    troubles = dict(use.troubles or {})
    for line in lines:
        report = _parse_node_line(line)
        node = report.get("node")
        if not isinstance(node, str) or node not in order:
            continue
        if isinstance(report.get("error"), str):
            troubles[node] = report["error"][:200]
        elif report.get("index") in range(_MOST_GPUS_PER_NODE):
            troubles.pop(node, None)
            gpus[node, report["index"]] = _make_gpu(report, gpus.get((node, report["index"])), now)
    ordered = sorted(gpus.values(), key=lambda gpu: (order[gpu.node], gpu.index))
    return replace(use, gpus=tuple(gpu for gpu in ordered if now - gpu.at <= STALE_S), troubles=troubles)


def add_mean(use: JobGpuUse) -> JobGpuUse:
    """Return `use` with the present mean added to `means`. To be called once per period."""
    percent = use.percent
    return use if percent is None else replace(use, means=(*use.means[1 - _MOST_MEANS :], percent))


def add_silent_nodes(use: JobGpuUse, now: float, since: Mapping[str, float]) -> JobGpuUse:
    """Return `use` with a trouble for each node that has reported no GPU for STALE_S, unless another one is known.

    `since`: when each node last reported a GPU.
    """
    late = {node: int(now - at) // 10 * 10 for node, at in since.items() if now - at > STALE_S}
    known = {node: text for node, text in (use.troubles or {}).items() if not text.startswith(_SILENT_PREFIX)}
    new = {node: f"{_SILENT_PREFIX} {seconds} s" for node, seconds in late.items()}
    return add_troubles(replace(use, troubles=known), new) if new else use


def add_troubles(use: JobGpuUse, new: Mapping[str, str]) -> JobGpuUse:
    """Return `use` with the troubles `new`; those that are known already are kept."""
    return replace(use, troubles={**new, **(use.troubles or {})}) if new else use


def gpu_use_to_json_dict(use: JobGpuUse) -> dict[str, Any]:
    """Return the object for --json; null means not known."""
    return {
        "nodes": list(use.nodes),
        "of_nodes": use.of_nodes,
        "gpus": [_gpu_to_json_dict(gpu) for gpu in use.gpus],
        "idle": [gpu.name for gpu in use.idle],
        "troubles": dict(use.troubles or {}),
        "given_up": use.given_up or None,
    }


def _gpu_to_json_dict(gpu: Gpu) -> dict[str, Any]:
    names = ("node", "index", "uuid", "percent", "memory_mib", "total_mib", "power_w", "programs")
    return {name: getattr(gpu, name) for name in names}


def _parse_node_line(line: bytes) -> dict[str, Any]:
    """Parse a line of a node: JSON of slurmwrap's program, or a row of nvidia-smi (see gpu_watcher.BOOTSTRAP).

    {} for any other line.
    """
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("smi "):
        return _parse_nvidia_smi_row(text[4:])
    try:
        report = json.loads(text) if text.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def _parse_nvidia_smi_row(text: str) -> dict[str, Any]:
    """Parse "n0, 2, GPU-…, 91, 61440, 81920, 350.12"; "[N/A]" and "[Not Supported]" become None."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) != 7 or not cells[1].isdecimal():
        return {"node": cells[0], "error": f"nvidia-smi says: {text.partition(',')[2].strip()}"}
    percent, used, total, power = (_parse_float(cell) for cell in cells[3:])
    found = {"used_mib": used, "total_mib": total, "power_w": power}
    whole = {name: None if value is None else int(value) for name, value in found.items()}
    return {"node": cells[0], "index": int(cells[1]), "uuid": cells[2], "percent": percent, **whole}


def _parse_float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _make_gpu(report: Mapping[str, Any], before: Gpu | None, now: float) -> Gpu:
    percent, uuid = _get_number(report, "percent"), report.get("uuid")
    began = before.busy_at if before is not None else now
    whole = {name: None if (n := _get_number(report, name)) is None else int(n) for name in _WHOLE}
    return Gpu(
        node=report["node"], index=report["index"], at=now, busy_at=now if percent else began,
        uuid=uuid[:96] if isinstance(uuid, str) else "", percent=percent, memory_mib=whole["used_mib"],
        total_mib=whole["total_mib"], power_w=whole["power_w"], programs=whole["programs"],
    )  # fmt: skip


_WHOLE = ("used_mib", "total_mib", "power_w", "programs")


def _get_number(report: Mapping[str, Any], name: str) -> float | None:
    value = report.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST_NUMBER
    return value if known else None


# The rows of `slurmwrap watch --gpus`.
# Number of idle GPUs that are named, after folding.
_MOST_NAMED = 4
_BARS = 10
# The least busy GPU is named if it is this many percentage points below the mean.
_LAG_PERCENT = 5.0

Row = tuple[str, str, str]  # label, text, style


def format_gpu_rows(use: JobGpuUse, unicode: bool) -> Iterator[Row]:
    """Yield rows with utilization, memory, idle GPUs, and the troubles of nodes."""
    if use.given_up:
        yield "GPU use", f"not measured{' any more' if use.means else ''}: {flat(use.given_up)}", "yellow"
        return
    if use.gpus:
        yield "GPU use", f"{format_utilization(use)}  {sparkline(use.means, unicode, _BARS, most=100.0)}".rstrip(), ""
        if fullest := format_gpu_memory(use.gpus):
            yield "GPU mem", fullest, ""
    elif not use.troubles:
        yield "GPU use", "its nodes are being asked, by a small step in the job", "dim"
    if use.idle:
        yield "idle", format_idle_gpus(use.idle), "yellow"
    for trouble, nodes in _group_nodes_by_trouble(use).items():
        yield "trouble" if use.gpus else "GPU use", f"{flat(fold(nodes))}: {flat(trouble)}", "yellow"


def format_utilization(use: JobGpuUse) -> str:
    """Return the mean utilization, such as "91 % of 16 (lowest n3:2 4 %)"."""
    of = f" of {len(use.gpus)}" if len(use.gpus) > 1 else ""
    part = f" on {len(use.nodes)} of {use.of_nodes} nodes" if len(use.nodes) < use.of_nodes else ""
    percent = "not reported by the driver" if use.percent is None else f"{use.percent:.0f} %"
    return f"{percent}{of}{part}{_format_lowest(use.gpus, use.percent or 0.0)}"


def _format_lowest(gpus: Sequence[Gpu], mean: float) -> str:
    """Return the least busy GPU if it is far below the mean, else ""."""
    known = [(gpu.percent, gpu.name) for gpu in gpus if gpu.percent is not None]
    percent, name = min(known, key=lambda one: one[0], default=(mean, ""))
    return f" (lowest {flat(name)} {percent:.0f} %)" if mean - percent >= _LAG_PERCENT else ""


def format_gpu_memory(gpus: Sequence[Gpu]) -> str:
    """Return the memory of the fullest GPU, such as "up to 61 of 80 GiB"; "" if no GPU reports it."""
    known = [(gpu.memory_mib, gpu.total_mib) for gpu in gpus if gpu.memory_mib is not None and gpu.total_mib]
    if not known:
        return ""
    used, total = max(known, key=lambda one: one[0] / one[1])
    return f"{'up to ' if len(known) > 1 else ''}{_format_gib(used)} of {_format_gib(total)} GiB"


def _format_gib(mib: int) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0") if mib < 10 * 1024 else f"{mib / 1024:.0f}"


def format_idle_gpus(idle: Sequence[Gpu]) -> str:
    """Return the idle GPUs, such as "n3:2,5, n[4-7]:0-7 (no program on them)"."""
    names = fold_gpus(idle)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    empty = all(gpu.programs == 0 for gpu in idle)
    why = " (no program on " + ("it)" if len(idle) == 1 else "them)") if empty else ""
    return f"{flat(', '.join(names[:_MOST_NAMED]))}{more}{why}"


def fold_gpus(gpus: Sequence[Gpu]) -> list[str]:
    """Return the GPUs by name, folding nodes with the same indexes: "n[4-7]:0-7"."""
    by_node: dict[str, list[int]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu.index)
    same: dict[str, list[str]] = {}
    for node, indexes in by_node.items():
        same.setdefault(_fold_numbers(indexes), []).append(node)
    return [f"{fold(nodes)}:{indexes}" for indexes, nodes in same.items()]


def _fold_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as ranges: "0,2-4"."""
    folded = fold(f"n{number}" for number in sorted(numbers))
    return folded.removeprefix("n").removeprefix("[").removesuffix("]")


def _group_nodes_by_trouble(use: JobGpuUse) -> dict[str, list[str]]:
    """Return the nodes with each trouble."""
    found: dict[str, list[str]] = {}
    for node, trouble in (use.troubles or {}).items():
        found.setdefault(trouble, []).append(node)
    return found
