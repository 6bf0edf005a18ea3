"""Samples of a GPU are folded into a bounded series, in whatever portions and however often they arrive."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import GpuSamples, GpuUse
from slurmwrap.profiling.gpu_use import (
    LATEST,
    MOST_SAMPLES,
    add_gpu_use,
    add_samples,
    get_recent_use,
    summarize_gpu_use,
)

RUN = RunKey(cluster="lab", job_id=81, submit_time=100)


def message(first: int, *use: float, began: float = 1000.0, **values: object) -> GpuSamples:
    """Samples with as many processes and MiB as percent."""
    whole = tuple(int(value) for value in use)
    found = GpuSamples(
        node="n1", gpu=0, mig="", began=began, interval_s=60.0, first=first, use_pct=use, mem_mib=whole, processes=whole
    )
    return replace(found, **values)  # type: ignore[arg-type]


def fold(*messages: GpuSamples) -> GpuUse:
    use = None
    for one in messages:
        use = add_samples(use, one, RUN)
    assert use is not None
    return use


def test_samples_are_appended_and_those_that_are_known_change_nothing() -> None:
    first = fold(message(0, 10.0, 20.0, mem_total_mib=80, energy_j=5.0))
    use = add_samples(first, message(1, 99.0, 30.0, energy_j=7.0), RUN)
    assert (use.use_pct, use.mem_mib, use.covered_s) == ((10.0, 20.0, 30.0), (10, 20, 30), 180.0)
    assert (use.mem_total_mib, use.energy_j, use.ends_at) == (80, 7.0, 1180.0)
    assert add_samples(use, message(1, 99.0, 30.0), RUN) == use
    assert add_samples(use, message(0, 1.0, began=900.0), RUN) == use


def test_missing_samples_are_unknown() -> None:
    use = fold(message(0, 10.0), message(3, 40.0))
    assert use.use_pct == (10.0, -1.0, -1.0, 40.0)
    assert use.processes == (10, -1, -1, 40)
    assert add_samples(use, message(90_000, 1.0), RUN) == use


def test_a_sampler_that_starts_again_continues_the_series() -> None:
    assert fold(message(0, 10.0), message(0, 20.0, began=1120.0)).use_pct == (10.0, -1.0, 20.0)


@pytest.mark.parametrize("minutes", [256, 257, 511, 512, 513, 1500, 5000])
def test_a_long_series_is_merged_into_means_and_highest_values(minutes: int) -> None:
    rng = random.Random(minutes)
    values = [float(rng.randrange(101)) for _ in range(minutes)]
    messages, at = [], 0
    while at < minutes:
        size = rng.randrange(1, 8)
        messages.append(message(at, *values[at : at + size]))
        at += size
    use = fold(*messages)
    width = round(use.interval_s / 60)
    chunks = [values[i : i + width] for i in range(0, minutes, width)]
    assert MOST_SAMPLES // 2 < len(use.use_pct) <= MOST_SAMPLES
    assert len(chunks) == len(use.use_pct)
    assert use.covered_s == 60.0 * minutes
    assert use.use_pct == pytest.approx([sum(chunk) / len(chunk) for chunk in chunks], abs=0.05)
    assert use.mem_mib == use.processes == tuple(int(max(chunk)) for chunk in chunks)
    if width > 1:
        assert use.latest_use_pct == tuple(values[-LATEST:])
        assert use.latest_processes == tuple(int(value) for value in values[-LATEST:])
    (summary,) = summarize_gpu_use([use])
    assert summary.use_pct == pytest.approx(sum(values) / minutes, abs=0.1)
    assert (summary.mem_peak_mib, summary.sampled_s) == (int(max(values)), 60.0 * minutes)


def test_a_merged_sample_with_an_unknown_half_is_the_known_half() -> None:
    use = fold(message(0, *[50.0] * 255), message(256, 70.0, 80.0))
    assert use.use_pct[127:] == (50.0, 75.0)
    assert len(use.use_pct) == 129


def test_the_recent_samples_of_a_long_job_are_those_of_its_last_minutes() -> None:
    young = fold(message(0, *[50.0] * 200))
    assert get_recent_use(young) == young
    old = fold(message(0, *[50.0] * 2000), message(2000, *[0.0] * 20))
    recent = get_recent_use(old)
    assert (recent.interval_s, recent.use_pct[-20:], recent.use_pct[-21]) == (60.0, (0.0,) * 20, 50.0)
    assert len(recent.use_pct) == len(recent.mem_mib) == LATEST
    assert recent.ends_at == old.ends_at == 1000.0 + 60 * 2020


def test_the_summary_says_how_long_a_gpu_was_idle() -> None:
    use = fold(message(0, 0.0, 0.0, 90.0))
    assert [(s.idle_s, s.never_used) for s in summarize_gpu_use([use])] == [(120.0, False)]
    unknown = replace(use, processes=(-1, -1, -1), use_pct=(0.0, 0.5, 0.2))
    assert [(s.idle_s, s.never_used) for s in summarize_gpu_use([unknown])] == [(180.0, True)]
    nothing = replace(use, processes=(-1,) * 3, use_pct=(-1.0,) * 3, mem_mib=(-1,) * 3)
    (summary,) = summarize_gpu_use([nothing])
    assert (summary.use_pct, summary.mem_peak_mib, summary.sampled_s, summary.never_used) == (None, None, 0, False)


def test_the_samples_complete_the_measurement_of_a_run() -> None:
    run = JobRun(attempt=RUN, gpus=2, nodes=("n1",), start_time=0, end_time=3600)
    uses = [fold(message(0, *[80.0] * 20)), fold(replace(message(0, *[0.0] * 20), gpu=1))]
    found = add_gpu_use(None, run, uses)
    assert found is not None
    assert (found.gpu_util, found.gpus_unused, found.gpu_mem_peak_mib, found.seconds) == (0.4, 1, 80, 3600)
    counted = Measurement(gpu_util=0.9, gpus_unused=0, gpu_mem_peak_mib=7, cpu_s=5.0)
    assert add_gpu_use(counted, run, uses) == counted
    shared = [
        fold(message(0, 0.0, shares=shares, share_samples=1)) for shares in ({"dram": 0.2, "pcie": 0.1}, {"dram": 0.4})
    ]
    with_shares = add_gpu_use(counted, run, shared)
    assert with_shares == replace(counted, gpu_dram=0.3, gpu_pcie=0.1)
    short = add_gpu_use(None, run, [fold(message(0, 0.0))])
    assert short is not None and short.gpus_unused is None
    assert add_gpu_use(None, run, ()) is None
