"""Stressors: programs that contend with a trial for one resource, inside its own allocation (adapter: processes).

A stressor is one Python process per CPU, pinned to it, with the standard library only. It ends by itself when its
parent has ended or its time is over. The memory stressor copies between two buffers, in C at the memory's speed; all
buffers together are four times the last-level cache, so that the data comes from memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from slurmwrap.prerun.trial.cpu_affinity import CPUS
from slurmwrap.prerun.trial.helper_process import HelperProcess, end, make_python_command

LIFE_S = 300.0  # maximum life of a stressor in seconds, whatever happens to its parent
MOST = 32  # maximum number of processes
FOOTPRINT = 4  # size of all buffers as a multiple of the last-level cache
_CACHE = 64 << 20  # assumed cache size in bytes if the kernel does not report it
_PREAMBLE = """
import os, sys, time
parent, until = int(sys.argv[4]), time.monotonic() + float(sys.argv[1])
os.sched_setaffinity(0, {int(sys.argv[2])})
size = int(sys.argv[3])
def goes_on():
    return os.getppid() == parent and time.monotonic() < until
"""
_CPU = (
    _PREAMBLE
    + """
while goes_on():
    for _ in range(100000):
        pass
"""
)
_MEMORY = (
    _PREAMBLE
    + """
ours, theirs = memoryview(bytearray(b"x") * size), memoryview(bytearray(size))
while goes_on():
    theirs[:] = ours
    ours[:] = theirs
"""
)


class StressorPool:
    """The stressors that run now. Their `pids` do not belong to the trial."""

    def __init__(self) -> None:
        self._running: list[HelperProcess] = []

    @property
    def pids(self) -> frozenset[int]:
        """Pids of the running stressors."""
        return frozenset(one.pid for one in self._running)

    def cpu(self, cpus: Collection[int]) -> StressorPool:
        """Start one busy loop on each CPU, MOST at most."""
        return self._start(_CPU, cpus, 0)

    def memory(self, cpus: Collection[int]) -> StressorPool:
        """Start one stream of memory copies on each CPU, MOST at most."""
        chosen = sorted(cpus)[:MOST]
        return self._start(_MEMORY, chosen, compute_footprint() // 2 // max(1, len(chosen)))

    def command(self, argv: Collection[str]) -> StressorPool:
        """Start a stressor of the site, such as one for GPUs."""
        self._running.append(HelperProcess([*argv]))
        return self

    def stop(self) -> None:
        """End all stressors."""
        end(self._running)
        self._running.clear()

    def _start(self, code: str, cpus: Collection[int], size: int) -> StressorPool:
        for cpu in sorted(cpus)[:MOST]:
            numbers = (LIFE_S, cpu, size, os.getpid())
            self._running.append(HelperProcess(make_python_command("-S", "-c", code, *map(str, numbers))))
        return self


def compute_footprint(root: Path = CPUS) -> int:
    """Return the bytes that all memory stressors use together."""
    return FOOTPRINT * read_last_cache(root)


def read_last_cache(root: Path = CPUS) -> int:
    """Return the bytes of the first CPU's last-level cache (sysfs: cpu0/cache/index*/size, "32768K")."""
    sizes = []
    for file in (root / "cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0))
    return max(sizes, default=_CACHE)
