"""How busy a job's GPUs are, as its nodes tell it line by line (slurmwrap/node_hooks/watch_gpus.py). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurmwrap.fast_dataclasses import dataclass, replace

STALE_S = 20.0  # a GPU that nothing was told of for so long counts no more
IDLE_S = 60.0  # at 0 % for so long
_KEPT = 60  # means over time
_MOST = 1 << 24  # of any number that a node tells
_INDEXES = 256  # GPUs of a node
_SILENT = "nothing heard of it for"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as it was told last. None: its driver does not say (MIG, vGPU). Times in Unix seconds of our clock."""

    node: str
    index: int  # the device minor: Slurm's number
    at: float
    busy_at: float  # when it was last above 0 %; before that: when it was first told
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
    """Nodes that have told of no GPU for a while, and nothing is known of why. `since`: when each did last."""
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
    """A line of a node: our own program's object, or a row of `nvidia-smi` (see gpu_step.BOOTSTRAP)."""
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
