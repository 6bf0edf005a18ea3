"""Fold the samples of a GPU, as they arrive while a job runs, into at most 256 of them; figures of a run. Pure.

When there are more, the samples of neighbouring intervals are merged, and each then stands for twice the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import GPU_SHARES, Measurement
from slurmwrap.model.running_job import GpuSamples, GpuUse

T = TypeVar("T", int, float)
MOST_SAMPLES = 256
SAMPLE_S = 60.0  # of the nodes' sampler
LATEST = 90
# A gap of more samples is not filled: a month, in minutes. No job is that long without a sample.
_LONGEST_GAP = 45_000
# A GPU counts as used from this mean percentage on, or with a process in some sample.
_IN_USE = 1.0


def add_samples(use: GpuUse | None, found: GpuSamples, attempt: RunKey) -> GpuUse:
    """Return `use` with the samples of a message added; None: the first message of this GPU.

    Samples that `use` has already, or that are older, change nothing, so a message may be read twice.
    """
    if use is None:
        use = GpuUse(
            attempt=attempt, node=found.node, gpu=found.gpu, mig=found.mig, began=found.began,
            interval_s=found.interval_s, use_pct=(), mem_mib=(), processes=(),
        )  # fmt: skip
    series = _Series(use, found.interval_s)
    # A sampler that was started again counts from its own start.
    ahead = found.first + round((found.began - use.began) / found.interval_s)
    values = list(zip(found.use_pct, found.mem_mib, found.processes, strict=True))[max(0, series.taken - ahead) :]
    gap = max(0, ahead - series.taken)
    if not values or gap > _LONGEST_GAP:
        return use
    for value in [(-1.0, -1, -1)] * gap + values:
        series.append(*value)
    energy = [joules for joules in (use.energy_j, found.energy_j) if joules is not None]
    # Of a sampler that was started again, the means are those over more samples.
    more = found.share_samples > use.share_samples
    return replace(
        series.as_use(use),
        mem_total_mib=found.mem_total_mib or use.mem_total_mib,
        energy_j=max(energy, default=None),
        shares=found.shares if more else use.shares,
        share_samples=max(found.share_samples, use.share_samples),
        clocks=max(found.clocks, use.clocks, key=lambda clocks: clocks.get("busy", -1.0)),
    )


class _Series:
    """The samples of one GPU while more are added."""

    def __init__(self, use: GpuUse, sample_s: float) -> None:
        self._sample_s = sample_s
        self._per_interval = max(1, round(use.interval_s / sample_s))
        covered = use.covered_s or use.interval_s * len(use.use_pct)
        self.taken = round(covered / sample_s)  # samples from the first one on, unknown ones included
        self._use, self._mem, self._processes = list(use.use_pct), list(use.mem_mib), list(use.processes)
        merged = self._per_interval > 1
        self._latest = list(zip(use.latest_use_pct, use.latest_processes, strict=True)) if merged else []

    def append(self, use: float, mem: int, processes: int) -> None:
        inside = self.taken % self._per_interval
        if not inside and len(self._use) == MOST_SAMPLES:
            self._merge_pairs()
        if self._per_interval > 1:
            self._latest = [*self._latest, (use, processes)][-LATEST:]
        self.taken += 1
        if not inside:
            self._use.append(use)
            self._mem.append(mem)
            self._processes.append(processes)
            return
        self._use[-1] = _compute_mean(self._use[-1], inside, use, 1)
        self._mem[-1] = max(self._mem[-1], mem)
        self._processes[-1] = max(self._processes[-1], processes)

    def _merge_pairs(self) -> None:
        if self._per_interval == 1:
            self._latest = list(zip(self._use, self._processes, strict=True))[-LATEST:]
        self._per_interval *= 2
        self._use = [_compute_mean(one, 1, other, 1) for one, other in _list_pairs(self._use)]
        self._mem = [max(pair) for pair in _list_pairs(self._mem)]
        self._processes = [max(pair) for pair in _list_pairs(self._processes)]

    def as_use(self, use: GpuUse) -> GpuUse:
        return replace(
            use,
            interval_s=self._per_interval * self._sample_s,
            covered_s=self.taken * self._sample_s,
            use_pct=tuple(self._use),
            mem_mib=tuple(self._mem),
            processes=tuple(self._processes),
            latest_use_pct=tuple(use for use, _ in self._latest),
            latest_processes=tuple(count for _, count in self._latest),
        )


def _list_pairs(values: Sequence[T]) -> list[tuple[T, T]]:
    return list(zip(values[::2], values[1::2], strict=True))


def _compute_mean(one: float, weight: int, other: float, other_weight: int) -> float:
    """Return the weighted mean of two values; of which one is unknown, the other one."""
    if one < 0 or other < 0:
        return max(one, other)
    return round((one * weight + other * other_weight) / (weight + other_weight), 2)


def get_recent_use(use: GpuUse) -> GpuUse:
    """Return the last samples as they were taken, one a minute, for what must be seen soon.

    While a job is young these are all of its samples; afterwards those of the last hour and a half, without memory.
    """
    taken = len(use.latest_use_pct)
    if not taken:
        return use
    return replace(
        use,
        began=use.ends_at - taken * SAMPLE_S,
        interval_s=SAMPLE_S,
        covered_s=taken * SAMPLE_S,
        use_pct=use.latest_use_pct,
        mem_mib=(-1,) * taken,
        processes=use.latest_processes,
        latest_use_pct=(),
        latest_processes=(),
    )


# Samples that the owner of a job gets: of each GPU, and of all of them together.
_PUBLISHED, _PUBLISHED_IN_ALL = 64, 4096


def shorten_series(uses: Sequence[GpuUse]) -> tuple[GpuUse, ...]:
    """Return the same series with few samples, for the sealed file of the job's owner: at most 64 of each GPU."""
    most = max(1, min(_PUBLISHED, _PUBLISHED_IN_ALL // max(1, len(uses))))
    return tuple(_shorten(use, most) for use in uses)


def _shorten(use: GpuUse, most: int) -> GpuUse:
    covered = use.covered_s or use.interval_s * len(use.use_pct)
    use = replace(use, covered_s=covered, latest_use_pct=(), latest_processes=())
    while len(use.use_pct) > most:
        # An interval of its own at the end stays as it is.
        use_pct, mem, processes = (
            [*_list_pairs(values[: len(values) // 2 * 2]), *((one, one) for one in values[len(values) // 2 * 2 :])]
            for values in (use.use_pct, use.mem_mib, use.processes)
        )
        use = replace(
            use,
            interval_s=2 * use.interval_s,
            use_pct=tuple(_compute_mean(one, 1, other, 1) for one, other in use_pct),
            mem_mib=tuple(int(max(pair)) for pair in mem),
            processes=tuple(int(max(pair)) for pair in processes),
        )
    return use


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUseSummary:
    """What the samples say about one GPU over the whole run. None: not known."""

    node: str
    gpu: int
    mig: str = ""
    use_pct: float | None = None  # mean, 0 to 100
    mem_peak_mib: int | None = None
    mem_total_mib: int | None = None
    energy_j: float | None = None
    idle_s: float = 0.0  # seconds in samples without any process, or with less than 1 % use where processes are unknown
    sampled_s: float = 0.0  # seconds that the known samples cover
    never_used: bool = False  # no process was seen on it in any sample, and no use


def summarize_gpu_use(uses: Iterable[GpuUse]) -> tuple[GpuUseSummary, ...]:
    """Return a summary of each GPU, in the given order."""
    return tuple(map(_summarize, uses))


def _summarize(use: GpuUse) -> GpuUseSummary:
    lengths = _list_lengths(use)
    known = [(value, length) for value, length in zip(use.use_pct, lengths, strict=True) if value >= 0]
    seconds = sum(length for _, length in known)
    mean = sum(value * length for value, length in known) / seconds if seconds else None
    states = [_is_idle(value, count) for value, count in zip(use.use_pct, use.processes, strict=True)]
    looked = sum(length for idle, length in zip(states, lengths, strict=True) if idle is not None)
    idle_s = sum(length for idle, length in zip(states, lengths, strict=True) if idle)
    peak = max(use.mem_mib, default=-1)
    return GpuUseSummary(
        node=use.node,
        gpu=use.gpu,
        mig=use.mig,
        use_pct=None if mean is None else round(mean, 1),
        mem_peak_mib=peak if peak >= 0 else None,
        mem_total_mib=use.mem_total_mib or None,
        energy_j=use.energy_j,
        idle_s=idle_s,
        sampled_s=looked,
        never_used=bool(looked) and idle_s == looked,
    )


def _list_lengths(use: GpuUse) -> list[float]:
    """Return the seconds that each sample covers: `interval_s`, but the last one may have begun only lately."""
    whole = [use.interval_s] * len(use.use_pct)
    if whole and use.covered_s:
        whole[-1] = use.covered_s - use.interval_s * (len(whole) - 1)
    return whole


def _is_idle(use_pct: float, processes: int) -> bool | None:
    """Return whether nothing ran on the GPU in a sample; None if it is not known."""
    if processes >= 0:
        return processes == 0
    return use_pct < _IN_USE if use_pct >= 0 else None


# A GPU counts as unused in the whole run only if it was sampled for this many seconds.
_SAMPLED_S = 600.0


def add_gpu_use(measured: Measurement | None, run: JobRun, uses: Sequence[GpuUse]) -> Measurement | None:
    """Return what was measured of a run, with what its GPUs' samples say where NVML's accounting mode said nothing."""
    summaries = summarize_gpu_use(uses)
    known = [one.use_pct for one in summaries if one.use_pct is not None]
    if not known:
        return measured
    base = measured or Measurement(seconds=run.run_s, gpus=-(-run.gpus // max(1, len(run.nodes))))
    peak = max((one.mem_peak_mib or 0 for one in summaries), default=0) or None
    unused = None
    if all(one.sampled_s >= _SAMPLED_S for one in summaries):
        unused = sum(one.never_used for one in summaries)
    return replace(
        base,
        gpu_util=round(sum(known) / len(known) / 100, 3) if base.gpu_util is None else base.gpu_util,
        gpu_mem_peak_mib=peak if base.gpu_mem_peak_mib is None else base.gpu_mem_peak_mib,
        gpus_unused=unused if base.gpus_unused is None else base.gpus_unused,
        **_average_shares(uses),
    )


def _average_shares(gpus: Sequence[GpuUse]) -> dict[str, Any]:
    """Return the field of a Measurement and the mean over the GPUs for each share that is known."""
    known = {name: [one.shares[name] for one in gpus if name in one.shares] for name in GPU_SHARES}
    return {f"gpu_{name}": round(sum(values) / len(values), 4) for name, values in known.items() if values}
