"""Which CPUs a running trial may use: whole cores, near the GPU. Edge: /proc, /sys and sched_setaffinity(2).

No root, no restart, and children inherit the mask. It only shrinks within what Slurm gave (a cpuset is never left).
Code that sets a mask of its own (numactl, KMP_AFFINITY, DALI) cannot be measured this way; `strays` finds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.fast_dataclasses import dataclass

CPUS, PCI = Path("/sys/devices/system/cpu"), Path("/sys/bus/pci/devices")
# Of one CPU over its life: a helper thread that idles under a mask of its own disturbs nothing.
BUSY = 0.05
# torch >= 2.6 names its loader workers so (torch/utils/data/_utils/worker.py)
WORKER_NAME = "pt_data_worker"
_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver")
# PCI vendor; VGA and 3D controllers.
_NVIDIA, _DISPLAYS = "0x10de", ("0x0300", "0x0302")


def list_cores(allowed: Collection[int], siblings: Mapping[int, frozenset[int]], near: Collection[int] = ()) -> Masks:
    """The whole cores among `allowed`, those `near` the GPU first. `siblings`: CPU -> the hardware threads of its core.

    Of a core that is allowed in part only that part is taken.
    """
    found = {frozenset(siblings.get(cpu, {cpu})) & frozenset(allowed) for cpu in allowed}
    return tuple(sorted(found, key=lambda core: (not core & set(near), min(core))))


Masks = tuple[frozenset[int], ...]


def make_masks_by_cpus(cores: Masks, threads: int, slurm_cpus: int | None) -> dict[int, frozenset[int]]:
    """Slurm's number of CPUs -> the mask for so many, ascending, no more than the allocation has.

    Where Slurm counts cores although they have `threads` (CPUs=cores in slurm.conf), a core is one CPU. Where it
    confines no one (no task/cgroup, no task/affinity) the mask is the whole node, and the allocation's share is taken.
    """
    total = sum(map(len, cores))
    per_cpu = threads if slurm_cpus and total == slurm_cpus * threads else 1
    found: dict[int, frozenset[int]] = {}
    held: frozenset[int] = frozenset()
    for core in cores:
        held |= core
        size = len(held) // per_cpu
        if slurm_cpus and size > slurm_cpus and found:
            break
        if size:
            found[size] = held
    return found


def list_own_cores(allowed: Collection[int], *, near: Collection[int] = (), root: Path = CPUS) -> tuple[Masks, int]:
    """(the cores of this machine among `allowed`, hardware threads per core)."""
    siblings = {
        cpu: parse_list(_read_text(root / f"cpu{cpu}/topology/thread_siblings_list")) or {cpu} for cpu in allowed
    }
    threads = max((len(core) for core in siblings.values()), default=1)
    return list_cores(allowed, {cpu: frozenset(core) for cpu, core in siblings.items()}, near), threads


def list_cpus_near_gpus(buses: Collection[str] = (), *, root: Path = PCI, cpus: Path = CPUS) -> frozenset[int]:
    """CPUs of the NUMA nodes of the GPUs at `buses` (of every NVIDIA GPU when () ); empty where no one knows."""
    nodes = set()
    for device in buses or _list_gpu_buses(root):
        with suppress(ValueError):
            nodes.add(int(_read_text(root / device / "numa_node")))
    lists = (_read_text(cpus.parent / f"node/node{node}/cpulist") for node in nodes if node >= 0)
    return frozenset().union(*map(parse_list, lists))


def _list_gpu_buses(root: Path) -> list[str]:
    with suppress(OSError):
        return [
            d.name
            for d in root.iterdir()
            if _read_text(d / "vendor") == _NVIDIA and _read_text(d / "class")[:6] in _DISPLAYS
        ]
    return []


def parse_list(text: str) -> set[int]:
    """The kernel's lists of CPUs: "0-3,8"."""
    found = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            found |= set(range(int(first), int(last or first) + 1))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process of the trial, as far as it shows what is a loader worker."""

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...]


def count_loader_workers(seen: Sequence[SeenProcess], trainers: Collection[int]) -> int:
    """DataLoader's workers among `seen`. `trainers`: the processes that count steps.

    By the name that torch gives them; by older torch and others, what a trainer forked without exec (the same command
    line) or spawned by multiprocessing, unless it counts steps itself (a rank of mp.spawn).
    """
    named = sum(one.name == WORKER_NAME for one in seen)
    if named:
        return named
    argv_of = {one.pid: one.argv for one in seen}
    known = [pid for pid in trainers if pid in argv_of]
    children = (one for one in seen if one.parent in known and one.pid not in known)
    return sum(one.argv == argv_of[one.parent] or _is_spawned(one.argv) for one in children)


def _is_spawned(argv: tuple[str, ...]) -> bool:
    return any(word in argument for argument in argv for word in _SPAWNED) and "--multiprocessing-fork" in argv


class AffinityLimiter:
    """A hold on every task of the trial. `processes`: those alive now; `trainers`: pids that count steps."""

    def __init__(
        self, processes: Callable[[], Sequence[psutil.Process]], trainers: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._processes, self._trainers = processes, trainers

    def hold(self, cpus: Collection[int]) -> None:
        """Sets the mask of every task, twice: a task that was born in between has its parent's old one."""
        for _ in range(2):
            for pid, task in self._list_tasks():
                # Ended, or not ours to set: `strays` sees that.
                with suppress(OSError):
                    if os.sched_getaffinity(task) != cpus or pid == task:
                        os.sched_setaffinity(task, cpus)

    def strays(self, cpus: Collection[int]) -> bool:
        """True when a process, or a thread that works, has another mask than `cpus`."""
        mask = set(cpus)
        for pid, task in self._list_tasks():
            with suppress(OSError):
                if os.sched_getaffinity(task) != mask and (pid == task or _is_busy(pid, task)):
                    return True
        return False

    def workers(self) -> int:
        """DataLoader's workers that are there now."""
        return count_loader_workers(
            [one for p in self._processes() if (one := _look_at_process(p)) is not None], self._trainers()
        )

    def _list_tasks(self) -> Iterator[tuple[int, int]]:
        for process in self._processes():
            with suppress(OSError):
                yield from ((process.pid, int(task.name)) for task in Path(f"/proc/{process.pid}/task").iterdir())


def _look_at_process(process: psutil.Process) -> SeenProcess | None:
    try:
        # psutil's name() is completed from the command line; the kernel's own is what torch sets
        name = _read_text(Path(f"/proc/{process.pid}/comm"))
        return SeenProcess(pid=process.pid, parent=process.ppid(), name=name, argv=tuple(process.cmdline()))
    except psutil.Error:
        return None


def _is_busy(pid: int, task: int) -> bool:
    """proc_pid_stat(5): utime and stime are fields 14 and 15, starttime 22, all in clock ticks."""
    fields = _read_text(Path(f"/proc/{pid}/task/{task}/stat")).rpartition(")")[2].split()
    uptime = _read_text(Path("/proc/uptime")).split()
    if len(fields) < 20 or not uptime:
        return False
    lived = float(uptime[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > BUSY * max(lived, 1.0)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
