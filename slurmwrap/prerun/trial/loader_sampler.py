"""Read what the batches of a trial's DataLoader cost (adapter: files of inject/slurmwrap_loader_times.py).

The user's program can change these files, so they are not trusted: what they say is a claim about the user's own job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.resource_profile import DataLoading

_MIB = 1 << 20
# A batch that reads less does not read its data with read(2); the measurement itself reads 150 bytes.
_LEAST_BATCH_MIB = 4096 / _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Sums over the batches so far, of the processes that fetch (first line) and of the training process."""

    fetched: int
    fetch_s: float
    cpu_s: float
    queue_s: float
    read_bytes: float
    batches: int
    wait_s: float
    compute_s: float
    length: int
    workers: int


class LoaderSampler:
    """Collects the sums of a trial. Call `look` about once a second, and `summarize` at the end."""

    def __init__(self, step_dir: str) -> None:
        self._step_dir = step_dir
        self._seen: list[tuple[float, _Sums]] = []

    def look(self, now: float) -> None:
        """Take a sample if there is one."""
        if (sums := read_loader_sums(self._step_dir)) is not None:
            self._seen.append((now, sums))

    def summarize(self, first: float | None = None, last: float | None = None) -> DataLoading | None:
        """Return the costs of a batch between two times, else over the whole trial; None if no batch was seen."""
        if not self._seen:
            return None
        inside = [sums for at, sums in self._seen if first is not None and last is not None and first <= at <= last]
        end = inside[-1] if inside else self._seen[-1][1]
        start = inside[0] if inside else None
        if start is None or end.batches - start.batches < 2 or end.fetched - start.fetched < 2:
            return _summarize_sums(self._seen[-1][1], None)
        return _summarize_sums(end, start)


def _summarize_sums(end: _Sums, start: _Sums | None) -> DataLoading:
    def each(name: str, count: str) -> float:
        before = getattr(start, name) if start is not None else 0.0
        number = getattr(end, count) - (getattr(start, count) if start is not None else 0)
        return max(0.0, float(getattr(end, name)) - float(before)) / max(1, int(number))

    fetch_s, cpu_s = each("fetch_s", "fetched"), min(each("fetch_s", "fetched"), each("cpu_s", "fetched"))
    batch_mib = each("read_bytes", "fetched") / _MIB
    return DataLoading(
        workers=end.workers,
        fetch_s=round(fetch_s, 6),
        cpu_s=round(cpu_s, 6),
        stall_s=round(max(0.0, fetch_s - cpu_s - each("queue_s", "fetched")), 6),
        compute_s=round(each("compute_s", "batches"), 6),
        wait_s=round(each("wait_s", "batches"), 6),
        batch_mib=round(batch_mib, 6) if batch_mib > _LEAST_BATCH_MIB else 0.0,
        batches=end.length if end.length > 0 else None,
    )


def read_loader_sums(step_dir: str) -> _Sums | None:
    """Return the sums of the training process with most batches, and of the processes that fetch for it."""
    rows = {name: list(_list_rows(step_dir, f".{name}")) for name in ("loader", "fetch")}
    loaders = [row for row in rows["loader"] if len(row) == 6]
    if not loaders:
        return None
    best = max(loaders, key=lambda row: row[1])
    fetches = [row for row in rows["fetch"] if len(row) == 7]
    # Spawned workers have a dataset object of their own.
    mine = [row for row in fetches if row[0] == best[0]] or fetches
    if not mine:
        return None
    fetched, fetch_s, cpu_s, queue_s, read_bytes = (sum(row[place] for row in mine) for place in range(1, 6))
    return _Sums(
        fetched=int(fetched),
        fetch_s=fetch_s,
        cpu_s=cpu_s,
        queue_s=queue_s,
        read_bytes=read_bytes,
        batches=int(best[1]),
        wait_s=best[2],
        compute_s=best[3],
        length=int(best[4]),
        workers=int(best[5]),
    )


def _list_rows(step_dir: str, ending: str) -> Iterator[list[float]]:
    with suppress(OSError):
        for entry in os.scandir(step_dir):
            if entry.name.endswith(ending):
                with suppress(OSError, ValueError):
                    yield [float(word) for word in Path(entry.path).read_bytes()[:400].split()]
