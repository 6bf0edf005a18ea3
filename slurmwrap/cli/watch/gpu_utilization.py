"""How busy a job's GPUs are, as its nodes report it line by line (slurmwrap/node_hooks/watch_gpus.py). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.hostlist import fold
from slurmwrap.report.text_format import flat, sparkline

STALE_S = 20.0  # a GPU without a report for so long counts no more
IDLE_S = 60.0  # at 0 % for so long
_KEPT = 60  # means over time
_MOST = 1 << 24  # of any number that a node reports
_INDEXES = 256  # GPUs of a node
_SILENT = "nothing heard of it for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as it was reported last. None: its driver does not say (MIG, vGPU). Times: Unix seconds of our clock."""

    node: str
    # The device minor: Slurm's number.
    index: int
    at: float
    # When it was last above 0 %; before that: when it was first reported.
    busy_at: float
    uuid: str = ""
    percent: float | None = None
    memory_mib: int | None = None
    total_mib: int | None = None
    power_w: int | None = None
    programs: int | None = None  # that compute on it

    @property
    def name(self) -> str:
        """n3:2"""
        return f"{self.node}:{self.index}"

    @property
    def idle(self) -> bool:
        """No program is on it, or it did nothing for a minute."""
        return self.programs == 0 or (self.percent == 0 and self.at - self.busy_at >= IDLE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpuUse:
    """What is known of a running job's GPUs. `given_up`: why nothing more comes; "" while it goes on."""

    nodes: tuple[str, ...]  # that are asked
    of_nodes: int  # nodes of the job
    gpus: tuple[Gpu, ...] = ()  # by node and index
    troubles: Mapping[str, str] | None = None  # node → what is wrong there
    means: tuple[float, ...] = ()  # percent over all GPUs, the newest last
    given_up: str = ""

    @property
    def percent(self) -> float | None:
        """The mean of the GPUs that say so."""
        told = [gpu.percent for gpu in self.gpus if gpu.percent is not None]
        return sum(told) / len(told) if told else None

    @property
    def idle(self) -> tuple[Gpu, ...]:
        """Those that do nothing."""
        return tuple(gpu for gpu in self.gpus if gpu.idle)

    @property
    def all_heard(self) -> bool:
        """Every node that is asked has said something."""
        return set(self.nodes) <= {gpu.node for gpu in self.gpus} | set(self.troubles or {})


def heard(use: JobGpuUse, lines: list[bytes], now: float) -> JobGpuUse:
    """`use` after these lines. What is no line of slurmwrap's is passed over: a TaskProlog may print into them."""
    order = {node: at for at, node in enumerate(use.nodes)}
    gpus = {(gpu.node, gpu.index): gpu for gpu in use.gpus}
    troubles = dict(use.troubles or {})
    for line in lines:
        said = _object(line)
        node = said.get("node")
        if not isinstance(node, str) or node not in order:
            continue
        if isinstance(said.get("error"), str):
            troubles[node] = said["error"][:200]
        elif said.get("index") in range(_INDEXES):
            troubles.pop(node, None)
            gpus[node, said["index"]] = _gpu(said, gpus.get((node, said["index"])), now)
    ordered = sorted(gpus.values(), key=lambda gpu: (order[gpu.node], gpu.index))
    return replace(use, gpus=tuple(gpu for gpu in ordered if now - gpu.at <= STALE_S), troubles=troubles)


def with_mean(use: JobGpuUse) -> JobGpuUse:
    """One more value over time: to be called once in a period."""
    percent = use.percent
    return use if percent is None else replace(use, means=(*use.means[1 - _KEPT :], percent))


def silent(use: JobGpuUse, now: float, since: Mapping[str, float]) -> JobGpuUse:
    """Nodes that have reported no GPU for a while, and nothing is known of why. `since`: when each did last."""
    late = {node: int(now - at) // 10 * 10 for node, at in since.items() if now - at > STALE_S}
    known = {node: words for node, words in (use.troubles or {}).items() if not words.startswith(_SILENT)}
    told = {node: f"{_SILENT} {seconds} s" for node, seconds in late.items()}
    return with_troubles(replace(use, troubles=known), told) if told else use


def with_troubles(use: JobGpuUse, told: Mapping[str, str]) -> JobGpuUse:
    """These nodes' troubles, where nothing is known of any yet."""
    return replace(use, troubles={**told, **(use.troubles or {})}) if told else use


def as_plain(use: JobGpuUse) -> dict[str, Any]:
    """For programs; null where it is not known."""
    return {
        "nodes": list(use.nodes),
        "of_nodes": use.of_nodes,
        "gpus": [_plain_gpu(gpu) for gpu in use.gpus],
        "idle": [gpu.name for gpu in use.idle],
        "troubles": dict(use.troubles or {}),
        "given_up": use.given_up or None,
    }


def _plain_gpu(gpu: Gpu) -> dict[str, Any]:
    names = ("node", "index", "uuid", "percent", "memory_mib", "total_mib", "power_w", "programs")
    return {name: getattr(gpu, name) for name in names}


def _object(line: bytes) -> dict[str, Any]:
    """A line of a node: our own program's object, or a row of `nvidia-smi` (see gpu_watcher.BOOTSTRAP)."""
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("smi "):
        return _row(text[4:])
    try:
        said = json.loads(text) if text.startswith("{") else {}
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _row(text: str) -> dict[str, Any]:
    """ "n0, 2, GPU-…, 91, 61440, 81920, 350.12"; "[N/A]" or "[Not Supported]" is no number."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) != 7 or not cells[1].isdecimal():
        return {"node": cells[0], "error": f"nvidia-smi says: {text.partition(',')[2].strip()}"}
    percent, used, total, power = (_float(cell) for cell in cells[3:])
    found = {"used_mib": used, "total_mib": total, "power_w": power}
    whole = {name: None if value is None else int(value) for name, value in found.items()}
    return {"node": cells[0], "index": int(cells[1]), "uuid": cells[2], "percent": percent, **whole}


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _gpu(said: Mapping[str, Any], before: Gpu | None, now: float) -> Gpu:
    percent, uuid = _number(said, "percent"), said.get("uuid")
    began = before.busy_at if before is not None else now
    whole = {name: None if (n := _number(said, name)) is None else int(n) for name in _WHOLE}
    return Gpu(
        node=said["node"], index=said["index"], at=now, busy_at=now if percent else began,
        uuid=uuid[:96] if isinstance(uuid, str) else "", percent=percent, memory_mib=whole["used_mib"],
        total_mib=whole["total_mib"], power_w=whole["power_w"], programs=whole["programs"],
    )  # fmt: skip


_WHOLE = ("used_mib", "total_mib", "power_w", "programs")


def _number(said: Mapping[str, Any], name: str) -> float | None:
    value = said.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    return value if known else None


# The rows of `slurmwrap watch --gpus`: GpuUse → text.
# Idle GPUs that are named, after folding.
_NAMED = 4
_BARS = 10
# Percent points below the mean: less is no news.
_LAGS = 5.0

Row = tuple[str, str, str]  # label, text, style


def gpu_rows(use: JobGpuUse, unicode: bool) -> Iterator[Row]:
    """How busy they are, which are idle, and what is wrong on a node."""
    if use.given_up:
        yield "GPU use", f"not measured{' any more' if use.means else ''}: {flat(use.given_up)}", "yellow"
        return
    if use.gpus:
        yield "GPU use", f"{summary(use)}  {sparkline(use.means, unicode, _BARS, most=100.0)}".rstrip(), ""
        if fullest := memory(use.gpus):
            yield "GPU mem", fullest, ""
    elif not use.troubles:
        yield "GPU use", "its nodes are being asked, by a small step in the job", "dim"
    if use.idle:
        yield "idle", idle_text(use.idle), "yellow"
    for words, nodes in _folded(use).items():
        yield "trouble" if use.gpus else "GPU use", f"{flat(fold(nodes))}: {flat(words)}", "yellow"


def summary(use: JobGpuUse) -> str:
    """91 % of 16 (lowest n3:2 4 %)"""
    of = f" of {len(use.gpus)}" if len(use.gpus) > 1 else ""
    part = f" on {len(use.nodes)} of {use.of_nodes} nodes" if len(use.nodes) < use.of_nodes else ""
    percent = "not told by the driver" if use.percent is None else f"{use.percent:.0f} %"
    return f"{percent}{of}{part}{_lowest(use.gpus, use.percent or 0.0)}"


def _lowest(gpus: Sequence[Gpu], mean: float) -> str:
    """The least busy one, where it lags behind."""
    told = [(gpu.percent, gpu.name) for gpu in gpus if gpu.percent is not None]
    percent, name = min(told, key=lambda one: one[0], default=(mean, ""))
    return f" (lowest {flat(name)} {percent:.0f} %)" if mean - percent >= _LAGS else ""


def memory(gpus: Sequence[Gpu]) -> str:
    """up to 61 of 80 GiB: of the fullest GPU, which runs out first; "" where none reports it."""
    known = [(gpu.memory_mib, gpu.total_mib) for gpu in gpus if gpu.memory_mib is not None and gpu.total_mib]
    if not known:
        return ""
    used, total = max(known, key=lambda one: one[0] / one[1])
    return f"{'up to ' if len(known) > 1 else ''}{_gib(used)} of {_gib(total)} GiB"


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}".removesuffix(".0") if mib < 10 * 1024 else f"{mib / 1024:.0f}"


def idle_text(idle: Sequence[Gpu]) -> str:
    """n3:2,5, n[4-7]:0-7 (no program on them)"""
    names = fold_gpus(idle)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    empty = all(gpu.programs == 0 for gpu in idle)
    why = " (no program on " + ("it)" if len(idle) == 1 else "them)") if empty else ""
    return f"{flat(', '.join(names[:_NAMED]))}{more}{why}"


def fold_gpus(gpus: Sequence[Gpu]) -> list[str]:
    """Nodes with the same GPUs together: n[4-7]:0-7."""
    by_node: dict[str, list[int]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu.index)
    same: dict[str, list[str]] = {}
    for node, indexes in by_node.items():
        same.setdefault(_ranges(indexes), []).append(node)
    return [f"{fold(nodes)}:{indexes}" for indexes, nodes in same.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """0,2-4"""
    folded = fold(f"n{number}" for number in sorted(numbers))
    return folded.removeprefix("n").removeprefix("[").removesuffix("]")


def _folded(use: JobGpuUse) -> dict[str, list[str]]:
    """What is wrong → where."""
    found: dict[str, list[str]] = {}
    for node, words in (use.troubles or {}).items():
        found.setdefault(words, []).append(node)
    return found
