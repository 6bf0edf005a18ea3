"""The memory a job needs, modelled: never less than it holds, and what more memory would save by caching. Pure.

As Synergy models it (OSDI'22): a cache of m MiB answers m of the D MiB that an epoch reads, at memory speed, and the
rest comes from storage, so t(m) = max(t_compute, m / memory + (D - m) / storage). That holds for a cache which keeps
what it has. The kernel's page cache drops the least recently used page instead: read in a new order each epoch, D a
little larger than the cache, nearly every page is gone before it is read again. So between "none" and "all of it" this
model promises less than Synergy's; `keeps` says which of the two caches is meant.
"""

from __future__ import annotations

from math import ceil, log

from slurmwrap.fast_dataclasses import dataclass

# One process copying out of the page cache; storage is what binds, this hardly matters.
MEMORY_MIB_PER_S = 4096.0
# Over the peak of anonymous and shared memory (facts of C3).
FLOOR_MARGIN, FLOOR_EXTRA_MIB = 1.2, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Of one node's share of a job. MiB, MiB/s and seconds. None: unknown, and then nothing is promised of it."""

    peak_mib: float  # anonymous + shared memory: what cannot be dropped
    read_mib_per_s: float | None = None  # that the job asks for at full speed, caches' answers included
    dataset_mib: float | None = None  # what one epoch reads
    storage_mib_per_s: float | None = None  # what storage gives this job when nothing is cached
    memory_mib_per_s: float = MEMORY_MIB_PER_S

    @property
    def floor_mib(self) -> int:
        """Below this the job is killed: its peak with a margin."""
        return ceil(self.peak_mib * FLOOR_MARGIN) + FLOOR_EXTRA_MIB

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch that never waits for storage."""
        if not self.read_mib_per_s or self.dataset_mib is None:
            return None
        return self.dataset_mib / self.read_mib_per_s


def compute_speed(model: MemoryModel, mem_mib: float, *, keeps: bool = False) -> float | None:
    """Speed with so much memory as a share of the best, 0..1: 0 below the floor, None where the model knows too little.

    `keeps`: the cache keeps what it has (MinIO, CoorDL, a copy in local memory); else the kernel's page cache.
    """
    if mem_mib < model.floor_mib:
        return 0.0
    if model.read_mib_per_s is None or model.storage_mib_per_s is None:
        return None
    # No one knows how much an epoch reads: as if nothing were ever read again.
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
    """What of `mem_mib` is left for cached files: Slurm charges the page cache to the job's own limit."""
    return max(0.0, mem_mib - model.floor_mib)


def compute_lru_hits(cached: float, dataset: float) -> float:
    """MiB of an epoch that a least-recently-used cache answers when each epoch reads all files once, in a new order.

    A file read at u of the last epoch and at v of this one (both uniform in 0..1) saw 1 - u of the files go by in the
    one and v in the other, v (1 - u) of them in both: 1 - u (1 - v) different ones. It is still there when these fit,
    so the share of hits is P(u (1 - v) > 1 - c) = c + (1 - c) ln(1 - c), c being the share that fits.
    """
    if cached >= dataset:
        return dataset
    share = cached / dataset
    return dataset * (share + (1 - share) * log(1 - share))


def find_needed_mib(model: MemoryModel, *, within: float = 0.95, keeps: bool = False) -> int | None:
    """The least memory with `within` of the best speed; None where the model knows too little.

    Where even all of the data cached is not enough (or storage is fast enough without), the floor.
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
    """MiB/s of storage that keep the job at full speed with so much memory (Synergy's storage demand)."""
    if model.read_mib_per_s is None:
        return None
    if model.dataset_mib is None or not model.epoch_s:
        return model.read_mib_per_s
    cached = min(model.dataset_mib, compute_cache_mib(model, mem_mib))
    hits = cached if keeps else compute_lru_hits(cached, model.dataset_mib)
    left = model.epoch_s - hits / model.memory_mib_per_s
    return (model.dataset_mib - hits) / left if left > 0 else None
