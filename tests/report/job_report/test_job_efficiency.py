"""What a job used of what it asked for: the figures, their sources, the advice, and how they are shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.model.step_usage import StepUsage
from slurmwrap.model.submission import Submission
from slurmwrap.report.job_report.efficiency_page import render_job_page
from slurmwrap.report.job_report.efficiency_text import format_job_efficiency, select_gpus
from slurmwrap.report.job_report.job_efficiency import (
    JobEfficiency,
    advise_request,
    format_energy,
    measure_run,
)
from slurmwrap.report.text_format import TextStyle, draw_series
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape

KEY = RunKey(cluster="lab", job_id=81, submit_time=100)
SACCT = StepUsage(source="sacct", cpu_s=7200.0, mem_mib=20480, energy_j=36e5)


def make_run(**changes: Any) -> JobRun:
    base = JobRun(
        attempt=KEY, address="81", name="train", user="ada", uid=1001, state="COMPLETED", nodes=("n1", "n2"), gpus=4,
        cpus=16, start_time=1000, end_time=4600, time_limit_s=8 * 3600, mem_mib_per_node=65536,
        measurement=Measurement(seconds=3600, cpu_s=3600.0, mem_peak_mib=8192),
    )  # fmt: skip
    return replace(base, **changes)


def make_use(node: str = "n1", gpu: int = 0, *use: float, **changes: Any) -> GpuUse:
    values = use or (50.0, 70.0)
    base = GpuUse(
        attempt=KEY, node=node, gpu=gpu, began=1010.0, interval_s=60.0, use_pct=values,
        mem_mib=tuple(int(100 * value) for value in values), processes=tuple(int(value > 0) for value in values),
        mem_total_mib=81920, energy_j=1000.0,
    )  # fmt: skip
    return replace(base, **changes)


def test_slurms_cpu_time_is_of_all_nodes_and_the_samplers_memory_of_one() -> None:
    one = measure_run(make_run(), (), SACCT, now=0.0)
    assert (one.cpu_s, one.cpu_nodes, one.cpu_source) == (7200.0, 2, "sacct")
    assert one.cpu_share == pytest.approx(7200 / (16 * 3600))
    assert (one.mem_mib, one.mem_nodes, one.mem_share) == (8192, 1, 0.125)
    assert one.node_energy_j == 36e5


def test_without_slurms_accounting_the_samplers_figures_count() -> None:
    one = measure_run(make_run(), (), None, now=0.0)
    assert (one.cpu_nodes, one.cpu_share) == (1, pytest.approx(0.125))
    assert one.time_share == 0.125


def test_without_samplers_slurms_memory_of_all_nodes_counts() -> None:
    one = measure_run(make_run(measurement=None), (), SACCT, now=0.0)
    assert (one.mem_mib, one.mem_nodes, one.mem_share) == (20480, 2, 20480 / 131072)
    nothing = measure_run(make_run(measurement=None), (), None, now=0.0)
    assert (nothing.cpu_share, nothing.mem_share, nothing.gpu_share) == (None, None, None)


def test_gpu_use_is_the_mean_over_gpus_and_a_gpu_without_process_was_never_used() -> None:
    uses = [make_use(), make_use("n1", 1, 0.0, 0.0)]
    one = measure_run(make_run(), uses, None, now=0.0)
    assert (one.gpu_share, one.gpus_unused, one.gpu_mem_mib, one.gpu_energy_j) == (0.3, 1, 7000, 2000.0)
    by_mode = replace(make_run().measurement or Measurement(), gpu_util=0.4, gpus_unused=2, gpu_mem_peak_mib=5)
    other = measure_run(make_run(measurement=by_mode), (), None, now=0.0)
    assert (other.gpu_share, other.gpus_unused, other.gpu_source) == (0.4, 2, "NVML")


def test_slurms_own_figure_of_the_gpus_counts_where_nothing_else_is_known() -> None:
    steps = replace(SACCT, gpu_pct=120.0, gpu_mem_mib=15114)
    one = measure_run(make_run(), (), steps, now=0.0)
    assert (one.gpu_share, one.gpu_source, one.gpu_mem_mib) == (0.3, "sacct", None)
    assert measure_run(make_run(gpus=1), (), steps, now=0.0).gpu_mem_mib == 15114
    assert measure_run(make_run(), [make_use()], steps, now=0.0).gpu_share == 0.6


def test_a_running_job_is_measured_by_its_samples() -> None:
    host = make_use("n1", HOST, 400.0, 200.0, mem_mib=(900, 1200), processes=(-1, -1))
    running = make_run(state="", end_time=None, measurement=None, nodes=("n1",))
    one = measure_run(running, [host], None, now=1600.0)
    assert (one.seconds, one.cpu_s, one.mem_mib, one.cpu_share) == (600.0, 1800.0, 1200, 1800 / (16 * 600))
    assert not one.gpus


def test_a_gpu_of_a_job_that_has_just_started_may_still_be_used() -> None:
    running = make_run(state="", end_time=None)
    young, old = (make_use("n1", 0, *[0.0] * minutes) for minutes in (9, 10))
    assert [measure_run(running, [use], None, now=1600.0).gpus_unused for use in (young, old)] == [0, 1]


def test_advice_asks_for_less_in_the_jobs_own_units() -> None:
    shape = ResourceShape(cpus=8, cpu_unit=CpuUnit.PER_TASK, mem_mib=65536, mem_unit=MemUnit.PER_NODE)
    submission = Submission(cluster="lab", job_id=81, uid=1001, user="ada", at=90.0, shape=shape)
    advice = advise_request([measure_run(make_run(), (), None, 0.0)], {("lab", 81): submission})
    assert [one.option for one in advice] == ["--time=1:30:00", "--cpus-per-task=2", "--mem=11G"]
    assert advice[2].reason == "its peak was 8.0 GiB of 64.0 GiB"


def test_advice_for_a_job_that_gsub_did_not_submit_names_the_unit_that_slurm_shows() -> None:
    run = make_run(nodes=("n1",), mem_mib_per_node=None, mem_mib_per_cpu=4096)
    advice = advise_request([measure_run(run, (), None, 0.0)], {})
    assert [one.option for one in advice] == ["--time=1:30:00", "--mem-per-cpu=1G", ""]
    assert advice[2].reason == "1.0 of 16 CPUs were busy: 4 would do"


def test_bursts_of_cpu_use_are_left_room() -> None:
    host = make_use("n1", HOST, 100.0, 700.0, mem_mib=(9, 9), processes=(-1, -1))
    run = make_run(nodes=("n1",), cpus=32)
    (advice,) = [one for one in advise_request([measure_run(run, [host], None, 0.0)], {}) if "CPU" in one.reason]
    assert advice.reason == "1.0 of 32 CPUs were busy, 7.0 at most: 7 would do"


@pytest.mark.parametrize(
    ("changes", "uses", "reason"),
    [
        ({"measurement": Measurement(mem_peak_mib=63000)}, (), "a little more and it is killed"),
        ({"measurement": Measurement(cpu_s=28500.0)}, (), "all of its 8 CPUs were busy"),
        ({}, (make_use(), make_use("n2", 0, 0.0, 0.0)), "1 of its 4 GPUs was never used"),
        ({}, (make_use("n1", 0, 5.0, 6.0),), "its GPUs were busy for 5.5 % of the time"),
        ({"state": "", "end_time": None}, (make_use("n1", 0, *[0.0] * 20), make_use("n1", 1, 9.0)), "never used"),
    ],
)
def test_other_advice(changes: dict[str, Any], uses: tuple[GpuUse, ...], reason: str) -> None:
    advice = advise_request([measure_run(make_run(time_limit_s=None, **changes), uses, None, 5000.0)], {})
    assert [one for one in advice if reason in one.reason], advice


def test_nothing_is_advised_for_a_run_that_failed() -> None:
    assert advise_request([measure_run(make_run(state="FAILED"), (), None, 0.0)], {}) == ()


def show(*runs: JobRun, uses: tuple[GpuUse, ...] = (), columns: int = 80, unicode: bool = True) -> str:
    measured = tuple(measure_run(run, uses, SACCT, 0.0) for run in runs)
    job = JobEfficiency(address="81", runs=measured, advice=advise_request(measured, {}))
    return format_job_efficiency(job, {KEY: uses}, TextStyle(columns=columns), unicode=unicode)


@pytest.mark.parametrize("columns", [60, 80, 110])
def test_the_text_fits_the_terminal(columns: int) -> None:
    uses = (*(make_use("node-with-long-name", gpu) for gpu in range(20)), make_use("n1", HOST, 900.0, 200.0))
    text = show(make_run(name="x" * 70), uses=uses, columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "4 LEAST AND 4 MOST USED OF 20 GPUS" in text
    assert show(make_run(), uses=uses, unicode=False).isascii()


def test_control_characters_in_a_name_are_shown_harmlessly() -> None:
    run = make_run(name="\033[2Jevil\n", user="a\tb", nodes=("n\x07",))
    assert "\033" not in show(run)
    page = render_job_page(JobEfficiency(address="81", runs=(measure_run(run, (), None, 0.0),)), {}, None, made_by="t")
    assert "\033" not in page
    named = replace(run, name="<script>alert(1)</script>")
    page = render_job_page(
        JobEfficiency(address="81", runs=(measure_run(named, (), None, 0.0),)), {}, None, made_by="t"
    )
    assert "<script" not in page


def test_an_array_is_summed_up_by_least_median_and_most() -> None:
    tasks = [
        make_run(address=f"81_{n}", attempt=replace(KEY, job_id=81 + n), end_time=1000 + 600 * (n + 1))
        for n in range(3)
    ]
    text = show(*tasks)
    assert "Array 81 train, 3 tasks: 3 completed" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("  time")]
    assert row == ["time", "10", "min", "20", "min", "30", "min", "3"]


def test_the_page_has_a_chart_for_each_series(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    uses = (make_use(), make_use("n1", 1, 0.0, 0.0), make_use("n1", HOST, 400.0, 200.0))
    job = JobEfficiency(address="81", runs=(measure_run(make_run(), uses, None, 0.0),))
    page = render_job_page(job, {KEY: uses}, None, made_by="slurmwrap")
    assert page.count("<svg") == 4
    assert "never used" in page
    tasks = tuple(measure_run(make_run(address=f"81_{n}"), (), SACCT, 0.0) for n in range(3))
    assert render_job_page(JobEfficiency(address="81", runs=tasks), {}, None, made_by="x").count("<svg") == 2


def test_the_least_and_the_most_used_gpus_are_shown() -> None:
    gpus = measure_run(make_run(), [make_use("n1", n, float(n)) for n in range(30)], None, 0.0).gpus
    shown, _ = select_gpus(gpus)
    assert [gpu.gpu for gpu in shown] == [0, 1, 2, 3, 26, 27, 28, 29]
    assert len(select_gpus(gpus, all_of_them=True)[0]) == 30


def test_a_series_is_drawn_in_the_given_width() -> None:
    assert draw_series([0.0, 100.0, -1.0], width=10) == "▁█ "
    assert draw_series([0.0] * 50 + [100.0] * 50, width=4) == "▁▁██"
    assert draw_series([], width=4) == ""


def test_energy_has_a_unit_that_fits() -> None:
    assert [format_energy(value) for value in (5, 12400, 3.6e6, 7.2e9)] == ["5 J", "12.4 kJ", "1.00 kWh", "2.00 MWh"]


def test_a_gpu_whose_clock_was_held_down_is_named() -> None:
    clocks = {"busy": 20.0, "slowed": 9.0, "hw_thermal": 9.0, "sm": 0.71, "thermal_s": 300.5}
    uses = (
        make_use(),
        make_use("n1", 1, clocks=clocks),
        make_use("n1", 2, clocks={**clocks, "slowed": 1.0, "thermal_s": 0.0}),
    )
    text = " ".join(show(make_run(), uses=uses).split())
    assert text.count("was slowed down") == 1
    assert (
        "GPU 1 of n1 was slowed down in 9 of 20 minutes of use (hw_thermal 9), "
        "its SM clock was at 71 % of its maximum, 300 s by heat" in text
    )
