"""What the process sampler computes from its samples and from cgroup files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slurmwrap.model.resource_profile import CurvePoint
from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import process_sampler
from slurmwrap.prerun.trial.cpu_profiler import Profiled
from slurmwrap.prerun.trial.gpu_sampler import GpuSample

V1 = "cache 900\nrss 100\nshmem 7\ntotal_cache 1800\ntotal_rss 300\ntotal_shmem 50\n"
V2 = "anon 300\nfile 9000\nshmem 40\nunevictable 2\nkernel_stack 3\npagetables 4\nsock 1\nslab 99\n"


def test_cpu_use_is_the_mean_over_steps_that_took_at_least_a_second() -> None:
    samples = [(0.0, 0.0), (1.0, 5.0), (2.0, 6.0), (3.0, 8.0), (4.0, 8.0)]
    assert process_sampler.compute_cpus_used(samples, 1.0, 3.0) == pytest.approx(1.5)


def test_cpu_use_of_quick_steps_is_that_of_the_busiest_second() -> None:
    samples = [(0.0, 0.0), (1.0, 1.0), (2.0, 4.0), (2.1, 4.0)]
    assert process_sampler.compute_cpus_used(samples, 2.0, 2.1) == pytest.approx(3.0)
    assert process_sampler.compute_cpus_used(samples, 0.0, 0.0) == pytest.approx(3.0)
    assert process_sampler.compute_cpus_used(samples[:1], 0.0, 0.0) is None


def test_unreclaimable_memory_is_read_from_both_cgroup_versions() -> None:
    assert process_sampler.parse_cgroup_memory(V1) == 350
    assert process_sampler.parse_cgroup_memory(V2) == 350
    assert process_sampler.parse_cgroup_memory("") is None


@pytest.mark.parametrize(
    ("own", "folder"),
    [
        ("4:memory:/slurm_n0/uid_1000/job_77/step_batch/task_0\n", "memory/slurm_n0/uid_1000/job_77"),
        ("0::/system.slice/slurmstepd.scope/job_77/step_batch/user/task_0\n", "system.slice/slurmstepd.scope/job_77"),
    ],
)
def test_the_cgroup_of_the_job_is_found(tmp_path: Path, own: str, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "memory.stat").write_text(V2)
    assert process_sampler.find_job_cgroup({"SLURM_JOB_ID": "77"}, own, tmp_path) == tmp_path / folder
    assert process_sampler.find_job_cgroup({"SLURM_JOB_ID": "7"}, own, tmp_path) is None
    assert process_sampler.find_job_cgroup({}, own, tmp_path) is None


def test_a_cgroup_that_slurm_did_not_create_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text(V2)
    assert process_sampler.find_job_cgroup({"SLURM_JOB_ID": "77"}, "0::/\n4:memory:/user.slice\n", tmp_path) is None


def test_oom_kills_are_read_from_both_cgroup_versions(tmp_path: Path) -> None:
    assert process_sampler.read_oom_kills(None) is None
    assert process_sampler.read_oom_kills(tmp_path) is None
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert process_sampler.read_oom_kills(tmp_path) == 2
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert process_sampler.read_oom_kills(tmp_path) == 1


def test_a_delayed_cgroup_counter_is_corrected_by_the_memory_of_processes(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text(f"total_rss {5 << 20}\ntotal_shmem 0\n")
    code = "x = b'1' * (60 << 20); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
        sampler = process_sampler.Sampler(tmp_path)
        sampler.sample(1.0, [])
        before = sampler.measurement(StepReading(), seconds=1, cpus=1)
        sampler.sample(2.0, [psutil.Process(holder.pid)])  # its memory has grown
        after = sampler.measurement(StepReading(), seconds=1, cpus=1)
    finally:
        holder.communicate(b"\n")
    assert (before.mem_peak_mib, before.mem_source) == (5, "cgroup")
    assert after.mem_peak_mib is not None and 60 <= after.mem_peak_mib < 120


def test_growth_per_second_needs_a_second_of_samples() -> None:
    samples = [(0.0, 0.0), (1.0, 5.0), (2.0, 6.0), (3.0, 9.0)]
    assert process_sampler.compute_slope(samples, 1.0, 3.0) == pytest.approx(2.0)
    assert process_sampler.compute_slope(samples, 1.0, 1.5) is None
    assert process_sampler.compute_slope([], 0.0, 9.0) is None


def test_pipes_between_processes_do_not_count_as_reads() -> None:
    mib = 1 << 20
    worker, trainer = (10 * mib, 50 * mib, 30 * mib), (0, 30 * mib, 0)
    assert process_sampler.compute_read_mib([worker, trainer]) == 50.0
    assert process_sampler.compute_read_mib([(70 * mib, 50 * mib, 30 * mib), trainer]) == 70.0  # memory-mapped files
    assert process_sampler.compute_read_mib([]) == 0.0


def test_memory_left_below_a_cgroup_limit_ignores_the_page_cache(tmp_path: Path) -> None:
    assert process_sampler.compute_cgroup_left(None) is None
    assert process_sampler.compute_cgroup_left(tmp_path) is None
    (tmp_path / "memory.stat").write_text(V2)
    (tmp_path / "memory.max").write_text("max\n")
    assert process_sampler.compute_cgroup_left(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    assert process_sampler.compute_cgroup_left(tmp_path) == 650


def test_a_profile_reports_speed_and_use_on_all_cpus_instead_of_the_sweep() -> None:
    measured = process_sampler.Sampler(None)
    for at in (10.0, 12.0, 14.0, 16.0):
        measured.sample(at, [])
    curve = (CurvePoint(cpus=1, steps_per_s=5.0), CurvePoint(cpus=2, steps_per_s=9.0))
    profiled = Profiled(curve=curve, end="workers", workers=1, full=(11.0, 15.0), sensitivity={"cpu": 1.5})
    gpus = [GpuSample(at=10.0, sm=0.1, mem_mib=9.0), GpuSample(at=12.0, sm=0.9), GpuSample(at=16.0, sm=0.2)]
    steps = StepReading(count=101, source="optimizer", first=10.0, last=60.0)
    found = measured.measurement(steps, seconds=60.0, cpus=2, profiled=profiled, gpus=gpus)
    assert (found.steps, found.steps_per_s, found.cpu_curve, found.cpu_curve_end) == (101, 9.0, curve, "workers")
    assert (found.loader_workers, found.sensitivity) == (1, {"cpu": 1.5})
    assert (found.cpus_used, found.read_mib_per_s, found.gpu_util, found.gpu_mem_peak_mib) == (0.0, 0.0, 0.9, 9)
