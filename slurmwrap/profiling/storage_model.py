"""Model of a DataLoader that waits for storage: how fast the job would be with its data on a faster one. Pure.

A step takes the longer of what the training process does with a batch and of what the workers need for one (OSDI'22
Synergy, VLDB'21 DS-Analyzer); without workers it takes both. A worker's time is time on a CPU, in the run queue, and
stalls; only stalls depend on where the data is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.resource_profile import DataLoading, ResourceProfile
from slurmwrap.profiling.memory_model import MEMORY_MIB_PER_S

# From this share of a fetch on, stalls say how fast storage is; below it they are mostly locks and noise.
STALL_SHARE = 0.2
# Least factor by which a job must get faster for advice to copy its data.
WORTH = 1.15
# Users whose jobs must have measured a mount before its speed is used for others: one user alone changes nothing.
LEAST_USERS = 3


def compute_batch_s(loading: DataLoading, stall_s: float, *, cpus: float | None = None) -> float:
    """Return the seconds per batch if a fetch stalls for `stall_s`, on `cpus` CPUs (None: as many as workers)."""
    fetch_s = max(0.0, loading.fetch_s - loading.stall_s) + stall_s
    if not loading.workers:
        return loading.compute_s + fetch_s
    return max(loading.compute_s, fetch_s / loading.workers, loading.cpu_s / max(1.0, cpus) if cpus else 0.0)


def compute_staged_factor(
    loading: DataLoading, *, cpus: float | None = None, local_mib_per_s: float = MEMORY_MIB_PER_S
) -> float:
    """Return how many times faster the job would be with its data on storage that gives `local_mib_per_s`; at least 1.

    By default that is the page cache: data that fits into memory after the copy, or a fast local disk.
    """
    stall_s = min(loading.stall_s, loading.batch_mib / local_mib_per_s)
    staged = compute_batch_s(loading, stall_s, cpus=cpus)
    return max(1.0, compute_batch_s(loading, loading.stall_s, cpus=cpus) / staged) if staged > 0 else 1.0


def compute_stream_mib_per_s(loading: DataLoading | None) -> float | None:
    """Return the MiB that one process reads per second of stall; None if it hardly stalls or reads nothing."""
    if loading is None or not loading.batch_mib or loading.stall_s < STALL_SHARE * loading.fetch_s:
        return None
    return loading.batch_mib / loading.stall_s if loading.stall_s > 0 else None


def compute_storage_mib_per_s(loading: DataLoading | None) -> float | None:
    """Return the MiB/s that storage gives all processes that fetch for one training process; None: not known."""
    stream = compute_stream_mib_per_s(loading)
    return None if stream is None or loading is None else stream * max(1, loading.workers)


def compute_full_read_mib_per_s(loading: DataLoading, *, cpus: float | None = None) -> float:
    """Return the MiB/s that the job would read if storage never kept it waiting."""
    batch_s = compute_batch_s(loading, 0.0, cpus=cpus)
    return loading.batch_mib / batch_s if batch_s > 0 else 0.0


def summarize_mounts(profiles: Iterable[ResourceProfile]) -> dict[str, float]:
    """Return mount point -> MiB/s for one process that reads: the median over users of each user's median.

    `profiles`: of the site, whose keys begin with the uid. A mount of fewer than LEAST_USERS users is left out, so that
    no user's own runs change what others see, beyond one vote in a median.
    """
    # Imported here because gsub only reads the result.
    from statistics import median

    seen: dict[str, dict[str, list[float]]] = {}
    for profile in profiles:
        speed = compute_stream_mib_per_s(profile.loading)
        if speed is not None and profile.loading is not None and _is_shared(profile.loading):
            users = seen.setdefault(profile.loading.mount, {})
            users.setdefault(profile.key.partition(":")[0], []).append(speed)
    return {
        mount: round(median(median(speeds) for speeds in users.values()), 3)
        for mount, users in sorted(seen.items())
        if len(users) >= LEAST_USERS
    }


def _is_shared(loading: DataLoading) -> bool:
    """Return whether the data is on a network file system; a local mount point is another disk on each node."""
    return bool(loading.mount) and not loading.is_local


def apply_mount_speed(profile: ResourceProfile, mounts: Mapping[str, float]) -> ResourceProfile:
    """Return `profile` with the stalls that its mount's speed leads to, if its own pre-run saw none.

    A pre-run that reads what an earlier one left in the cache does not stall; the job, on a whole epoch, does.
    """
    loading = profile.loading
    if loading is None or not _is_shared(loading) or compute_stream_mib_per_s(loading) is not None:
        return profile
    speed = mounts.get(loading.mount, 0.0)
    stall_s = loading.batch_mib / speed if speed > 0 else 0.0
    if stall_s <= loading.stall_s:
        return profile
    fetch_s = max(0.0, loading.fetch_s - loading.stall_s) + stall_s
    return replace(profile, loading=replace(loading, fetch_s=fetch_s, stall_s=stall_s))


def describe_staging(profile: ResourceProfile, *, cpus: float | None = None) -> str:
    """Return advice to copy the data to the node's disk, or memory, if that pays; "" if it does not or is not known."""
    loading = profile.loading
    if loading is None:
        return ""
    factor = compute_staged_factor(loading, cpus=cpus)
    if factor < WORTH:
        return ""
    size = "" if profile.dataset_mib is None else f" ({profile.dataset_mib:,.0f} MiB)"
    share = 100 * loading.stall_s / loading.fetch_s
    limited = compute_batch_s(loading, 0.0, cpus=cpus) > loading.compute_s * WORTH and loading.workers
    then = "; its loader's CPUs limit it then" if limited else ""
    text = f"waits for its data: a fetch is {share:.0f} % waiting, on {loading.mount or 'its storage'}"
    if loading.is_local:
        return (
            f"{text}, which is the node's own. With the data{size} in memory it would be about {factor:.2g} times "
            f"faster{then}: ask for as much more memory, or use a faster disk"
        )
    return (
        f"{text}. With the data{size} on the node's own disk it would be about {factor:.2g} times faster{then}: copy "
        "it to $TMPDIR at the start of the script (sbcast for one file, cp or tar for many)"
    )
