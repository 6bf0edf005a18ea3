"""Programs that contend with a trial for one resource, inside its own allocation. Edge: processes.

Each is one Python per CPU, pinned there, that ends by itself when we are gone or its time is over; nothing outside the
standard library. Copies between two buffers run in C at the memory's speed, and all buffers together are four times the
last-level cache, so that they come from memory.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from slurmwrap.prerun.trial.cpu_affinity import CPUS
from slurmwrap.prerun.trial.helper_process import HelperProcess, end, make_python_command

LIFE_S = 300.0  # no stressor runs longer, whatever happens to us
MOST = 32  # processes
FOOTPRINT = 4  # of the last-level cache
_CACHE = 64 << 20  # where the kernel does not give its size
_ALONE = """
import os, sys, time
parent, until = int(sys.argv[4]), time.monotonic() + float(sys.argv[1])
os.sched_setaffinity(0, {int(sys.argv[2])})
size = int(sys.argv[3])
def goes_on():
    return os.getppid() == parent and time.monotonic() < until
"""
_CPU = (
    _ALONE
    + """
while goes_on():
    for _ in range(100000):
        pass
"""
)
_MEMORY = (
    _ALONE
    + """
ours, theirs = memoryview(bytearray(b"x") * size), memoryview(bytearray(size))
while goes_on():
    theirs[:] = ours
    ours[:] = theirs
"""
)


class StressorPool:
    """Stressors that run now. `pids` are not the trial's."""

    def __init__(self) -> None:
        self._running: list[HelperProcess] = []

    @property
    def pids(self) -> frozenset[int]:
        """Of those that were not stopped."""
        return frozenset(one.pid for one in self._running)

    def cpu(self, cpus: Collection[int]) -> StressorPool:
        """One busy loop on each CPU."""
        return self._start(_CPU, cpus, 0)

    def memory(self, cpus: Collection[int]) -> StressorPool:
        """One stream of copies on each CPU, MOST at most."""
        chosen = sorted(cpus)[:MOST]
        return self._start(_MEMORY, chosen, compute_footprint() // 2 // max(1, len(chosen)))

    def command(self, argv: Collection[str]) -> StressorPool:
        """A stressor of the site's, such as one for GPUs."""
        self._running.append(HelperProcess([*argv]))
        return self

    def stop(self) -> None:
        """Ends them all."""
        end(self._running)
        self._running.clear()

    def _start(self, code: str, cpus: Collection[int], size: int) -> StressorPool:
        for cpu in sorted(cpus)[:MOST]:
            numbers = (LIFE_S, cpu, size, os.getpid())
            self._running.append(HelperProcess(make_python_command("-S", "-c", code, *map(str, numbers))))
        return self


def compute_footprint(root: Path = CPUS) -> int:
    """Bytes that all memory stressors hold together."""
    return FOOTPRINT * read_last_cache(root)


def read_last_cache(root: Path = CPUS) -> int:
    """Bytes of the first CPU's last-level cache (sysfs: cpu0/cache/index*/size, "32768K")."""
    sizes = []
    for file in (root / "cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError):
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KM")) << {"K": 10, "M": 20}.get(text[-1:], 0))
    return max(sizes, default=_CACHE)
