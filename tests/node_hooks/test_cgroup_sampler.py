"""The cgroup sampler keeps the peak usage of a job until the Epilog reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
from waiting import wait_until

from slurmwrap.node_hooks import job_cgroup as cgroup_sampler
from slurmwrap.node_hooks import node_state


def make_job_cgroup(root: Path) -> Path:
    directory = root / "system.slice" / "slurmstepd.scope" / "job_41"
    directory.mkdir(parents=True)
    return directory


def set_usage(directory: Path, mib: int, seconds: float) -> None:
    (directory / "memory.stat").write_text(f"anon {mib << 20}\nshmem 0\n")
    (directory / "cpu.stat").write_text(f"usage_usec {int(seconds * 1e6)}\n")


class ScriptedClock:
    """A clock whose `sleep` advances the time and runs the next of the given actions."""

    def __init__(self, *acts) -> None:
        self.now, self.acts = 0.0, list(acts)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.acts:
            self.acts.pop(0)()


def run_sampler(tmp_path: Path, *acts) -> tuple[dict[str, object], ScriptedClock]:
    mark, kept, script = tmp_path / "41.mark", tmp_path / "41.usage", ScriptedClock(*acts)
    if not mark.exists():
        mark.write_text("{}")
    cgroup_sampler.watch(str(mark), str(kept), "n0", 41, 1001, str(tmp_path / "fs"), script.sleep, script.clock)
    return json.loads(kept.read_text()) if kept.exists() else {}, script


def test_the_peak_values_are_kept_until_the_mark_is_removed(tmp_path: Path) -> None:
    job = make_job_cgroup(tmp_path / "fs")
    set_usage(job, 100, 1)
    found, _ = run_sampler(
        tmp_path,
        lambda: set_usage(job, 900, 2),
        lambda: set_usage(job, 300, 4),
        lambda: (tmp_path / "41.mark").unlink(),
    )
    assert found == {"mem_peak_mib": 900, "cpu_s": 4.0}


def test_sampling_ends_when_a_requeued_job_writes_a_new_mark(tmp_path: Path) -> None:
    job = make_job_cgroup(tmp_path / "fs")
    set_usage(job, 100, 1)

    def again() -> None:
        (tmp_path / "new").write_text("{}")
        (tmp_path / "new").rename(tmp_path / "41.mark")
        set_usage(job, 5000, 9)

    assert run_sampler(tmp_path, again)[0] == {"mem_peak_mib": 100, "cpu_s": 1.0}


def test_a_job_without_a_cgroup_is_sampled_for_a_limited_time(tmp_path: Path) -> None:
    found, script = run_sampler(tmp_path)
    assert found == {}
    assert cgroup_sampler.PATIENCE_S <= script.now < cgroup_sampler.PATIENCE_S + 2


def find_detached_children() -> set[int]:
    """Processes that were forked from this process and belong to another session."""
    ours, found = psutil.Process().cmdline(), set()
    for process in psutil.process_iter():
        try:
            if process.cmdline() == ours and os.getsid(process.pid) not in (os.getsid(0), process.pid):
                found.add(process.pid)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def test_the_sampler_outlives_the_prolog_and_ends_when_the_mark_is_removed(tmp_path: Path) -> None:
    job = make_job_cgroup(tmp_path / "fs")
    set_usage(job, 100, 1)
    directory = tmp_path / "state"
    settings = SimpleNamespace(node_state_dir=str(directory), node="n0")
    node_state.save_mark(settings, 41, {})
    before = find_detached_children()
    cgroup_sampler.start(settings, 41, os.getuid(), str(tmp_path / "fs"))  # runs until the mark is removed
    wait_until((directory / "41.usage").exists, "a sample")
    assert node_state.take_usage(settings, 41) == {"mem_peak_mib": 100, "cpu_s": 1.0, "mem_source": "cgroup"}
    assert node_state.take_usage(settings, 41) == {}
    started = find_detached_children() - before
    assert started
    node_state.take_mark(settings, 41)
    set_usage(job, 900, 2)
    wait_until(lambda: not started & find_detached_children(), "the end of the sampler")
    assert not (directory / "41.usage").exists()
