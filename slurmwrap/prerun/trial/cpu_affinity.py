"""Limit a running trial to fewer CPUs, in whole cores near the GPU (adapter: /proc, /sys and sched_setaffinity(2)).

This needs neither root nor a restart, and children inherit the mask. The mask never exceeds the CPUs that Slurm gave. A
program that sets a mask of its own (numactl, KMP_AFFINITY, DALI) cannot be measured this way; `strays` detects it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from slurmwrap.fast_dataclasses import dataclass

CPUS, PCI = Path("/sys/devices/system/cpu"), Path("/sys/bus/pci/devices")
# Minimum use of one CPU, over the life of a thread, for the thread to count as busy. An idle helper thread with a mask
# of its own does not disturb the measurement.
BUSY = 0.05
# The name that torch >= 2.6 gives its loader workers (torch/utils/data/_utils/worker.py).
WORKER_NAME = "pt_data_worker"
_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver")
# PCI vendor; VGA and 3D controllers.
_NVIDIA, _DISPLAYS = "0x10de", ("0x0300", "0x0302")


def list_cores(allowed: Collection[int], siblings: Mapping[int, frozenset[int]], near: Collection[int] = ()) -> Masks:
    """Return the cores among the `allowed` CPUs, those `near` the GPU first.

    `siblings`: CPU -> the hardware threads of its core. If only some threads of a core are allowed, the core consists
    of these.
    """
    found = {frozenset(siblings.get(cpu, {cpu})) & frozenset(allowed) for cpu in allowed}
    return tuple(sorted(found, key=lambda core: (not core & set(near), min(core))))


Masks = tuple[frozenset[int], ...]


def make_masks_by_cpus(cores: Masks, threads: int, slurm_cpus: int | None) -> dict[int, frozenset[int]]:
    """Return number of CPUs as counted by Slurm -> mask, ascending, up to the CPUs of the allocation.

    If Slurm counts cores although they have several `threads` (CPUs=cores in slurm.conf), a core is one CPU. If Slurm
    does not confine jobs (no task/cgroup, no task/affinity), the cores are those of the whole node, and only
    `slurm_cpus` of them are used.
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
    """Return (the cores of this machine among `allowed`, hardware threads per core)."""
    siblings = {
        cpu: parse_list(_read_text(root / f"cpu{cpu}/topology/thread_siblings_list")) or {cpu} for cpu in allowed
    }
    threads = max((len(core) for core in siblings.values()), default=1)
    return list_cores(allowed, {cpu: frozenset(core) for cpu, core in siblings.items()}, near), threads


def list_cpus_near_gpus(buses: Collection[str] = (), *, root: Path = PCI, cpus: Path = CPUS) -> frozenset[int]:
    """Return the CPUs of the NUMA nodes of the GPUs at `buses` (of all NVIDIA GPUs if empty); empty if unknown."""
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
    """Parse a list of CPUs as the kernel writes it: "0-3,8"."""
    found = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            found |= set(range(int(first), int(last or first) + 1))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenProcess:
    """A process of the trial, with the attributes that identify a loader worker."""

    pid: int
    parent: int
    name: str
    argv: tuple[str, ...]


def count_loader_workers(seen: Sequence[SeenProcess], trainers: Collection[int]) -> int:
    """Return the number of DataLoader workers among `seen`. `trainers`: pids of the processes that count steps.

    Newer torch names its workers. With older torch and other loaders, a worker is a child that a trainer forked without
    exec (it has the same command line) or spawned by multiprocessing, unless it counts steps itself (a rank of
    mp.spawn).
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
    """Sets the CPU mask of all tasks of the trial.

    `processes`: returns the processes that are alive. `trainers`: returns the pids that count steps.
    """

    def __init__(
        self, processes: Callable[[], Sequence[psutil.Process]], trainers: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._processes, self._trainers = processes, trainers

    def hold(self, cpus: Collection[int]) -> None:
        """Set the mask of every task, twice, because a task that starts in between inherits its parent's old mask."""
        for _ in range(2):
            for pid, task in self._list_tasks():
                # The task has ended, or its mask may not be set, which `strays` detects.
                with suppress(OSError):
                    if os.sched_getaffinity(task) != cpus or pid == task:
                        os.sched_setaffinity(task, cpus)

    def strays(self, cpus: Collection[int]) -> bool:
        """Return whether a process or a busy thread has another mask than `cpus`."""
        mask = set(cpus)
        for pid, task in self._list_tasks():
            with suppress(OSError):
                if os.sched_getaffinity(task) != mask and (pid == task or _is_busy(pid, task)):
                    return True
        return False

    def workers(self) -> int:
        """Return the number of DataLoader workers that exist now."""
        return count_loader_workers(
            [one for p in self._processes() if (one := _look_at_process(p)) is not None], self._trainers()
        )

    def _list_tasks(self) -> Iterator[tuple[int, int]]:
        for process in self._processes():
            with suppress(OSError):
                yield from ((process.pid, int(task.name)) for task in Path(f"/proc/{process.pid}/task").iterdir())


def _look_at_process(process: psutil.Process) -> SeenProcess | None:
    try:
        # Read the kernel's name, which torch sets. psutil's name() would complete it from the command line.
        name = _read_text(Path(f"/proc/{process.pid}/comm"))
        return SeenProcess(pid=process.pid, parent=process.ppid(), name=name, argv=tuple(process.cmdline()))
    except psutil.Error:
        return None


def _is_busy(pid: int, task: int) -> bool:
    """Return whether a task has used more than BUSY of a CPU since its start.

    proc_pid_stat(5): utime and stime are fields 14 and 15, starttime is field 22, all in clock ticks.
    """
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
