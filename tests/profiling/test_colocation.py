"""Two jobs on one GPU: bounds, symmetry, monotony, unknown values, and the fit of bench/colocation.py."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
from colocation import FormChoice, Pair, find_threshold, fit_model, fit_ours, leave_out, read_pairs, summarize
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.profiling.colocation import (
    BAD_SPEED,
    CPUS,
    GPU,
    MEASURED,
    MEMORY_BANDWIDTH,
    PCIE,
    GpuDemand,
    predict_pair,
    read_demand,
)

values = st.none() | st.floats(allow_nan=True, allow_infinity=True)
demands = st.builds(
    GpuDemand, gpu_util=values, gpu_s_per_step=values, gpu_mem_util=values, gpu_mem_mib=values, pcie=values, cpus=values
)
shares = st.floats(min_value=0, max_value=1)


@given(demands, demands, values, values)
def test_any_pair_has_a_speed_from_0_to_1_and_the_order_does_not_matter(
    one: GpuDemand, other: GpuDemand, cpus: float | None, memory: float | None
) -> None:
    found = predict_pair(one, other, cpus=cpus, gpu_mem_mib=memory)
    assert 0 <= found.speed <= 1
    assert 0 <= found.throughput <= 2
    assert found == predict_pair(other, one, cpus=cpus, gpu_mem_mib=memory)


@given(demands, demands, st.sampled_from(["gpu_util", "gpu_mem_util", "pcie", "cpus"]), shares, shares)
def test_a_job_that_uses_more_makes_no_pair_faster(
    one: GpuDemand, other: GpuDemand, name: str, low: float, high: float
) -> None:
    low, high = sorted((low, high))
    less, more = (predict_pair(replace(one, **{name: use}), other, cpus=1.0) for use in (low, high))
    assert more.speed <= less.speed
    assert more.bad >= less.bad


@given(demands, demands, shares, st.floats(min_value=1e-6, max_value=1e6))
def test_what_is_unknown_about_the_gpu_counts_as_the_worst_case(
    one: GpuDemand, other: GpuDemand, util: float, step_s: float
) -> None:
    one = replace(one, gpu_util=util, gpu_s_per_step=step_s)
    known = predict_pair(one, other)
    for name in ("gpu_util", "gpu_s_per_step"):
        unknown = predict_pair(replace(one, **{name: None}), other)
        assert unknown.speed <= known.speed
        assert name in unknown.unknown


def test_small_jobs_hardly_slow_each_other_and_jobs_that_fill_the_gpu_do() -> None:
    small, full = GpuDemand(gpu_util=0.15, gpu_s_per_step=0.01), GpuDemand(gpu_util=1.0, gpu_s_per_step=0.01)
    idle = GpuDemand(gpu_util=0.0)
    assert predict_pair(idle, full).speed == 1
    assert predict_pair(small, small).throughput > 1.95
    assert not predict_pair(small, full).bad
    assert predict_pair(full, full).bad
    assert predict_pair(full, full).throughput < 1.3
    # A small job beside one of which nothing is known is not called bad, a large one is.
    assert not predict_pair(small, GpuDemand()).bad
    assert predict_pair(full, GpuDemand()).bad


def test_below_100_percent_together_no_pair_is_predicted_below_1_6() -> None:
    """In the measured pairs no one was (docs/colocation.md)."""
    for one in range(0, 101, 5):
        jobs = (GpuDemand(gpu_util=one / 100, gpu_s_per_step=0.02), GpuDemand(gpu_util=1 - one / 100))
        assert predict_pair(*jobs).throughput >= 1.6


@pytest.mark.parametrize(("rate", "other_rate"), [(9.9, 9.9), (9.9, 5.5), (5.5, 5.5)])
def test_two_resnet50_that_fill_their_gpu_are_called_bad(rate: float, other_rate: float) -> None:
    """On a V100 they ran at 0.97 to 1.06 of one, with batches of 32 and 64 (Gavel's artifact, OSDI 2020)."""
    jobs = [GpuDemand(gpu_util=1.0, gpu_s_per_step=1 / steps_per_s) for steps_per_s in (rate, other_rate)]
    assert predict_pair(*jobs).bad


def test_short_steps_fit_into_the_gaps_of_long_ones() -> None:
    long, short = (GpuDemand(gpu_util=0.7, gpu_s_per_step=seconds) for seconds in (0.4, 0.004))
    assert predict_pair(long, short).speed > predict_pair(long, long).speed


def test_cpus_pcie_and_memory_bandwidth_that_are_used_up_limit_a_pair() -> None:
    job = GpuDemand(gpu_util=0.1, cpus=6.0, pcie=0.9, gpu_mem_util=0.2)
    found = predict_pair(job, job, cpus=16)
    assert (found.limit, found.speed) == (PCIE, pytest.approx(1 / 1.8))
    assert found.bad is (found.speed < BAD_SPEED)
    found = predict_pair(replace(job, pcie=0.4), job, cpus=4)
    assert (found.limit, found.speed) == (CPUS, pytest.approx(1 / 3))
    assert found.bad
    found = predict_pair(replace(job, pcie=None, gpu_mem_util=1.0), job, cpus=16)
    assert (found.limit, found.speed) == (MEMORY_BANDWIDTH, pytest.approx(1 / 1.2))
    assert not found.bad
    assert predict_pair(replace(job, pcie=None), job).limit == GPU


def test_a_pair_fits_into_85_percent_of_the_memory() -> None:
    job = GpuDemand(gpu_mem_mib=8000)
    assert predict_pair(job, job, gpu_mem_mib=20_000).fits is True
    assert predict_pair(job, job, gpu_mem_mib=18_000).fits is False
    assert predict_pair(job, job).fits is None
    assert predict_pair(job, GpuDemand(), gpu_mem_mib=20_000).fits is None


def test_a_profile_gives_the_gpu_time_of_a_step() -> None:
    profile = ResourceProfile(
        key="k", gpu_util=0.5, steps_per_s=25.0, gpu_mem_mib=3000, gpu_mem_util=0.3, cpus_per_gpu=4.0, cpus_busy=2.5
    )
    assert read_demand(profile) == GpuDemand(
        gpu_util=0.5, gpu_s_per_step=0.02, gpu_mem_util=0.3, gpu_mem_mib=3000, cpus=2.5
    )
    counted = read_demand(replace(profile, gpu_dram=0.2, gpu_pcie=0.4))
    assert counted == replace(read_demand(profile), gpu_mem_util=0.2, pcie=0.4)
    assert read_demand(replace(profile, cpus_busy=None, steps_per_s=0.0)).gpu_s_per_step is None
    assert read_demand(ResourceProfile(key="k")) == GpuDemand()


# --- bench/colocation.py -------------------------------------------------------------------------------------------


def invent_pairs() -> list[Pair]:
    """Pairs of five invented models that run exactly as predicted by the model in use."""
    jobs = [
        (model, GpuDemand(gpu_util=util, gpu_s_per_step=seconds))
        for model, seconds in zip("abcde", (0.002, 0.01, 0.02, 0.03, 0.3), strict=True)
        for util in (0.1, 0.5, 0.8, 0.9, 1.0)
    ]
    pairs = []
    for number, one in enumerate(jobs):
        for other in jobs[number:]:
            speed = predict_pair(one[1], other[1]).speed
            pairs.append(Pair(models=(one[0], other[0]), demands=(one[1], other[1]), speeds=(speed, speed)))
    return pairs


def test_the_fit_finds_the_coefficients_of_pairs_that_follow_the_model() -> None:
    pairs = invent_pairs()
    found = fit_model(pairs)
    for name in ("product", "overload", "free", "similarity"):
        assert getattr(found, name) == pytest.approx(getattr(MEASURED, name), abs=1e-6)
    guesses = list(leave_out(pairs, fit_ours))
    assert summarize(guesses).error == pytest.approx(0, abs=1e-6)
    assert len(guesses) == sum(len(set(pair.models)) for pair in pairs)
    assert len(list(leave_out(pairs, fit_ours, strict=True))) == len(pairs)


def test_no_pair_of_a_left_out_model_is_in_its_fit() -> None:
    pairs = invent_pairs()
    seen: list[set[str]] = []

    def fit(some: object) -> object:
        seen.append({model for pair in some for model in pair.models})  # type: ignore[attr-defined]
        return lambda pair: (2.0, 0.0, False)

    assert {guess.left_out for guess in leave_out(pairs, fit)} == set("abcde")  # type: ignore[arg-type]
    assert seen == [set("abcde") - {model} for model in "abcde"]
    seen.clear()
    list(leave_out(pairs, fit, strict=True))  # type: ignore[arg-type]
    assert all(len(models) in (3, 4) for models in seen)
    assert len(seen) == 15


def test_a_form_is_chosen_without_the_pairs_of_the_model_that_is_left_out() -> None:
    pairs = invent_pairs()
    choice = FormChoice(pairs)
    choice.forms = choice.forms[::25]
    inner = {form: choice.list_inner(form, "a") for form in choice.forms}
    rest = [pair for pair in pairs if "a" not in pair.models]
    # The pairs of "a" with other speeds change no score that the choice for "a" uses.
    changed = FormChoice([pair if pair in rest else replace(pair, speeds=(0.1, 0.1)) for pair in pairs])
    for form, (scores, bad) in inner.items():
        assert scores == pytest.approx(changed.list_inner(form, "a")[0])
        assert len(bad) == sum(len(set(pair.models)) for pair in rest)


def test_the_threshold_finds_the_share_of_the_bad_pairs() -> None:
    assert find_threshold(range(100), 0.95) == 5
    assert find_threshold([], 0.95) == math.inf


def test_the_files_of_lucid_are_read(tmp_path: Path) -> None:
    fields = ("model", "dataset", "batchsize", "amp")
    with (tmp_path / "alone.csv").open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow([*fields, "speed", "gpu_util", "gmem_util", "gmem"])
        rows.writerow(["A", "X", 32, 0, 320.0, 50.0, 20.0, 2000.0])
    with (tmp_path / "pairs.csv").open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["", *(name + number for number in "12" for name in (*fields, "speed"))])
        rows.writerow([0, "A", "X", 32, 0, 0.9, "A", "X", 32, 0, 0.6])
        rows.writerow([1, "A", "X", 32, 0, 0.9, "B", "X", 32, 0, 0.6])  # B was not measured alone
    (pair,) = read_pairs(tmp_path / "pairs.csv", tmp_path / "alone.csv")
    assert pair.bad
    assert pair.demands[0] == GpuDemand(gpu_util=0.5, gpu_s_per_step=0.05, gpu_mem_util=0.2, gpu_mem_mib=2000.0)


def test_without_the_files_the_bench_says_so() -> None:
    bench = Path(__file__).resolve().parents[2] / "bench" / "colocation.py"
    ran = subprocess.run([sys.executable, str(bench)], capture_output=True, text=True, check=True)
    assert "--pairs and --alone" in ran.stdout
