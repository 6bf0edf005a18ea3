"""The profile of real processes: what is measured, and that no process stays. Speeds are not checked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from slurmwrap.model.trial_result import StepReading, TrialResult
from slurmwrap.prerun.trial import step_detection
from slurmwrap.prerun.trial.cpu_profiler import MeasurementWindow
from slurmwrap.prerun.trial.stressors import StressorPool, compute_footprint, read_last_cache
from slurmwrap.prerun.trial.trial_profiler import TrialProfiler, has_reached_steps
from slurmwrap.prerun.trial.trial_spec import TrialSpec

LONG = (
    "import os, time, torch.optim\n"
    "optimizer = torch.optim.SGD()\n"
    "for _ in range(2):\n    if not os.fork(): time.sleep(100)\n"
    "while True:\n    time.sleep(0.002); optimizer.step()\n"
)
QUICK = MeasurementWindow(settle_s=0.05, window_s=0.2, window_steps=10, warm_steps=5)


def is_sweep_done(profiler: TrialProfiler, spec: TrialSpec) -> bool:
    return profiler.done(time.monotonic(), step_detection.read_steps(spec.step_dir), ended=False)


def test_a_running_trial_is_profiled_and_gets_its_cpus_back(
    make_spec: Callable[..., TrialSpec], tmp_path: Path
) -> None:
    spec = make_spec("#!/bin/sh\n", profile_s=59.0)
    Path(spec.step_dir).mkdir()
    code = (
        "import os, time\n"
        "workers = [os.fork() or time.sleep(100) for _ in range(2)]\n"
        f"file = os.open({spec.step_dir!r} + '/%d' % os.getpid(), os.O_WRONLY | os.O_CREAT)\n"
        "for n in range(1, 100000):\n"
        "    time.sleep(0.004)\n"
        "    now = time.monotonic()\n"
        "    line = '%10d %-10s %16.6f %16.6f %10d %1d\\n' % (n, 'optimizer', now, now, 0, 0)\n"
        "    os.pwrite(file, line.encode(), 0)\n"
    )
    training = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        own = psutil.Process(training.pid)
        profiler = TrialProfiler(spec, lambda: [own, *own.children()], {}, pace=QUICK)
        wait_until(lambda: step_detection.read_steps(spec.step_dir).count >= 3, "three steps")
        wait_until(lambda: is_sweep_done(profiler, spec), "the end of the sweep", pause=0.01)
        found = profiler.result()
        assert found.curve[-1].cpus == len(os.sched_getaffinity(0))
        assert found.end in ("allocation", "workers")  # complete; which of the two depends on the machine's CPUs
        assert (found.workers, found.full is not None) == (2, True)
        assert os.sched_getaffinity(training.pid) == os.sched_getaffinity(0)
    finally:
        os.killpg(training.pid, 9)
        training.wait()


def test_a_profiled_trial_continues_after_its_steps_and_leaves_no_process(
    trial: Callable[..., TrialResult], job: Path, tmp_path: Path
) -> None:
    (job / "train.py").write_text(LONG)
    result = trial("#!/bin/bash\npython train.py\necho next\n", profile_s=1.5)
    assert (result.layer, result.exit_code, result.step_source) == ("step", None, "optimizer")
    assert result.steps > 3
    assert (result.measurement.cpu_curve, result.measurement.cpu_curve_end) == ((), "time")
    assert "next" not in result.logs[0].text
    trial_variables = {"SLURMWRAP_TRIAL_DIR": str(tmp_path / "trial")}.items()
    assert [p for p in psutil.process_iter(["environ"]) if trial_variables <= (p.info["environ"] or {}).items()] == []


def test_a_script_that_ends_during_its_profile_passes_because_of_its_steps(
    trial: Callable[..., TrialResult], job: Path
) -> None:
    (job / "train.py").write_text(LONG.replace("while True:", "for _ in range(20):").replace("sleep(100)", "sleep(0)"))
    result = trial("#!/bin/bash\npython train.py\nexit 3\n", profile_s=10_000.0)
    # the trial did not wait for the rest of the profile
    assert (result.layer, result.measurement.cpu_curve) == ("step", ())


def test_a_profile_needs_a_few_optimizer_steps_or_many_backward_passes(make_spec: Callable[..., TrialSpec]) -> None:
    plain, profiled = make_spec("#!/bin/sh\n"), make_spec("#!/bin/sh\n", profile_s=1.0)
    assert not has_reached_steps(plain, StepReading(count=900, source="optimizer"))
    assert has_reached_steps(profiled, StepReading(count=3, source="optimizer"))
    assert not has_reached_steps(profiled, StepReading(count=3, source="backward"))
    assert has_reached_steps(profiled, StepReading(count=50, source="backward"))


def test_step_sources_without_a_rate_are_not_profiled(make_spec: Callable[..., TrialSpec]) -> None:
    spec = make_spec("#!/bin/sh\n", profile_s=30.0)
    for reading in (StepReading(count=50, source="text"), StepReading(count=50, source="gpu")):
        profiler = TrialProfiler(spec, list, {})
        assert profiler.done(0.0, reading, ended=False)
        assert profiler.result().end == ""


def test_a_training_outside_the_process_tree_is_not_profiled(make_spec: Callable[..., TrialSpec]) -> None:
    spec = make_spec("#!/bin/sh\n", profile_s=59.0)
    Path(spec.step_dir).mkdir()
    Path(spec.step_dir, str(os.getpid())).write_text("9 optimizer 1.0 2.0 0 0\n")
    reading = step_detection.read_steps(spec.step_dir)
    assert reading.count == 9
    assert TrialProfiler(spec, list, {}).done(0.0, reading, ended=False)
    profiler = TrialProfiler(spec, lambda: [psutil.Process()], {})
    assert not profiler.done(0.0, reading, ended=False)
    profiler.close()


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("kind", ["cpu", "memory"])
def test_stressors_run_on_the_given_cpu_and_end(kind: str) -> None:
    stressors, cpu = StressorPool(), min(os.sched_getaffinity(0))
    getattr(stressors, kind)({cpu})
    (pid,) = stressors.pids
    try:
        wait_until(lambda: os.sched_getaffinity(pid) == {cpu}, "the stressor on its CPU")
        wait_until(lambda: sum(psutil.Process(pid).cpu_times()[:2]) >= 0.05, "CPU time of the stressor")
    finally:
        stressors.stop()
    assert (stressors.pids, psutil.pid_exists(pid)) == (frozenset(), False)


def test_a_stressor_ends_when_its_parent_process_has_ended() -> None:
    code = "from slurmwrap.prerun.trial.stressors import StressorPool; c = StressorPool(); c.cpu({%d}); print(*c.pids)"
    argv = [sys.executable, "-c", code % min(os.sched_getaffinity(0))]
    pid = int(subprocess.run(argv, capture_output=True, check=True, text=True).stdout)
    wait_until(lambda: has_ended(pid), "the stressor's end")


def test_the_last_level_cache_is_the_largest_one(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "1024K", "32M")):
        (tmp_path / f"cpu0/cache/index{index}").mkdir(parents=True)
        (tmp_path / f"cpu0/cache/index{index}/size").write_text(f"{size}\n")
    assert (read_last_cache(tmp_path), compute_footprint(tmp_path)) == (32 << 20, 128 << 20)
    assert read_last_cache(tmp_path / "nothing") == 64 << 20


def test_a_cache_size_in_kib_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu0/cache/index3").mkdir(parents=True)
    (tmp_path / "cpu0/cache/index3/size").write_text("32768K\n")
    assert read_last_cache(tmp_path) == 32 << 20
