"""The rows of `slurmwrap watch --gpus`: GpuUse → text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmwrap.cli.watch.gpu_utilization import Gpu, JobGpuUse
from slurmwrap.cli.watch.watch_format import flat, sparkline
from slurmwrap.model.hostlist import fold

_NAMED = 4  # idle GPUs that are named, after folding
_BARS = 10
_LAGS = 5.0  # percent points below the mean: less is no news

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
    """up to 61 of 80 GiB: of the fullest GPU, which runs out first; "" where none tells."""
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
