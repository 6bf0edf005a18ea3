"""Model of a job's speed over its memory: the memory that it must have, and what more memory saves as a cache. Pure.

Synergy's model (OSDI'22): a cache of m MiB serves m of the D MiB that an epoch reads at memory speed, and storage
serves the rest, so t(m) = max(t_compute, m / memory + (D - m) / storage). That holds for a cache that keeps its
content. The kernel's page cache drops the least recently used page instead. If files are read in a new order each epoch
and D is a little larger than the cache, nearly every page is dropped before it is read again. So for a part of the data
this model predicts less speed than Synergy's. The parameter `keeps` selects the kind of cache.
"""

from __future__ import annotations

from math import ceil, log

from slurmwrap.fast_dataclasses import dataclass

# Rate at which one process copies from the page cache. It hardly matters, since storage is the bottleneck.
MEMORY_MIB_PER_S = 4096.0
# Margin over the peak of anonymous and shared memory: factor and MiB (facts of C3).
FLOOR_MARGIN, FLOOR_EXTRA_MIB = 1.2, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Memory and reading of one node's share of a job. None: unknown; then no gain is predicted from it."""

    peak_mib: float  # peak of anonymous + shared memory, which cannot be dropped
    read_mib_per_s: float | None = None  # read at full speed, from caches as well
    dataset_mib: float | None = None  # read by one epoch
    storage_mib_per_s: float | None = None  # rate of the storage for this job if nothing is cached
    memory_mib_per_s: float = MEMORY_MIB_PER_S

    @property
    def floor_mib(self) -> int:
        """The least memory with which the job is not killed: its peak with a margin."""
        return ceil(self.peak_mib * FLOOR_MARGIN) + FLOOR_EXTRA_MIB

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch that never waits for storage; None if unknown."""
        if not self.read_mib_per_s or self.dataset_mib is None:
            return None
        return self.dataset_mib / self.read_mib_per_s


def compute_speed(model: MemoryModel, mem_mib: float, *, keeps: bool = False) -> float | None:
    """Return the speed with `mem_mib` as a share of the best, 0..1: 0 below the floor, None if too little is known.

    `keeps`: the cache keeps its content (MinIO, CoorDL, a copy in local memory); otherwise the kernel's page cache.
    """
    if mem_mib < model.floor_mib:
        return 0.0
    if model.read_mib_per_s is None or model.storage_mib_per_s is None:
        return None
    # If the size of an epoch is unknown, it is assumed that nothing is read twice, so that a cache saves nothing.
    if model.dataset_mib is None:
        return min(1.0, model.storage_mib_per_s / model.read_mib_per_s) if model.read_mib_per_s else 1.0
    compute = model.epoch_s
    if not compute:
        return 1.0
    cached = min(model.dataset_mib, compute_cache_mib(model, mem_mib))
    hits = cached if keeps else compute_lru_hits(cached, model.dataset_mib)
    waits = hits / model.memory_mib_per_s + (model.dataset_mib - hits) / model.storage_mib_per_s
    return min(1.0, compute / waits) if waits > 0 else 1.0


def compute_cache_mib(model: MemoryModel, mem_mib: float) -> float:
    """Return how much of `mem_mib` is left for cached files. Slurm counts the page cache towards the job's limit."""
    return max(0.0, mem_mib - model.floor_mib)


def compute_lru_hits(cached: float, dataset: float) -> float:
    """Return the MiB of an epoch that an LRU cache serves if each epoch reads all files once, in a new order.

    Let a file be read at position u of the last epoch and at v of this one (both uniform in 0..1). In between, 1 - u of
    the files were read in the last epoch and v in this one, v (1 - u) of them in both: 1 - u (1 - v) different files.
    The file is still cached if these fit. So the share of hits is P(u (1 - v) > 1 - c) = c + (1 - c) ln(1 - c), where c
    is the share of the data that fits.
    """
    if cached >= dataset:
        return dataset
    share = cached / dataset
    return dataset * (share + (1 - share) * log(1 - share))


def find_needed_mib(model: MemoryModel, *, within: float = 0.95, keeps: bool = False) -> int | None:
    """Return the least memory in MiB that reaches the share `within` of the best speed; None if too little is known.

    The result is the floor if caching does not help, for example because storage is fast enough without a cache.
    """
    most = model.floor_mib + (model.dataset_mib or 0.0)
    best = compute_speed(model, most, keeps=keeps)
    if best is None:
        return None
    low, high = model.floor_mib, ceil(most)
    if (compute_speed(model, low, keeps=keeps) or 0.0) >= within * best:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if (compute_speed(model, middle, keeps=keeps) or 0.0) >= within * best:
            high = middle
        else:
            low = middle
    return high


def compute_needed_storage(model: MemoryModel, mem_mib: float, *, keeps: bool = False) -> float | None:
    """Return the MiB/s of storage that the job needs for full speed with `mem_mib` (Synergy's storage demand).

    None if the job's reading is unknown, or if copying from the cache alone takes longer than the epoch.
    """
    if model.read_mib_per_s is None:
        return None
    if model.dataset_mib is None or not model.epoch_s:
        return model.read_mib_per_s
    cached = min(model.dataset_mib, compute_cache_mib(model, mem_mib))
    hits = cached if keeps else compute_lru_hits(cached, model.dataset_mib)
    left = model.epoch_s - hits / model.memory_mib_per_s
    return (model.dataset_mib - hits) / left if left > 0 else None
