"""When members of a packed task are separated, and which one is ended when their memory is nearly used up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmwrap.inject import slurmwrap_member_watch
from slurmwrap.inject.slurmwrap_member_watch import (
    MemoryWatch,
    SpeedWatch,
    find_memory_limit,
    list_sessions,
    read_memory_use,
    read_process_memory,
    read_steps,
)


class Members:
    """Members that make steps at given speeds; one look every ten seconds. They are alone at 10 steps per second."""

    def __init__(self) -> None:
        self.watch = SpeedWatch(alone=10.0, gain=1.1, seconds=300.0)
        self.now, self.steps = 0.0, dict.fromkeys(range(4), 1000)

    def run(self, seconds: float, **speeds: float) -> list[float]:
        """The times at which a decision was made. `speeds`: m0=5.0 of the members that run."""
        decided = []
        for _ in range(int(seconds / 10)):
            self.now += 10
            for name, speed in speeds.items():
                self.steps[int(name[1:])] += int(10 * speed)
            if self.watch.look(self.now, {int(name[1:]): self.steps[int(name[1:])] for name in speeds}):
                decided.append(self.now)
        return decided


def test_members_that_are_no_faster_together_for_all_the_time_are_separated() -> None:
    members = Members()
    assert members.run(300, m0=5.0, m1=5.0) == []
    (at,) = members.run(60, m0=5.0, m1=5.0)
    assert (at, members.watch.apart) == (310, True)


@pytest.mark.parametrize("speeds", [{"m0": 6.0, "m1": 5.5}, {"m0": 5.0}])
def test_members_that_are_faster_together_and_a_single_one_are_left_alone(speeds: dict[str, float]) -> None:
    assert Members().run(2000, **speeds) == []


def test_one_good_minute_starts_the_time_anew() -> None:
    members = Members()
    assert members.run(240, m0=5.0, m1=5.0) == []
    assert members.run(70, m0=9.0, m1=9.0) == []
    assert members.run(290, m0=5.0, m1=5.0) == []


def test_an_evaluation_of_one_member_and_the_end_of_one_say_nothing() -> None:
    members = Members()
    for _ in range(5):
        assert members.run(180, m0=5.0, m1=5.0, m2=0.1) == []
        assert members.run(120, m0=5.0, m1=5.0, m2=0.0) == []
    assert members.run(250, m0=3.0, m1=5.0) == []


def test_members_run_together_again_if_one_alone_is_not_faster_and_stay_so() -> None:
    members = Members()
    members.run(310, m0=5.0, m1=5.0)
    assert members.watch.apart
    # The profile is of a faster GPU: here even one alone makes 6 steps a second.
    (at,) = members.run(400, m0=6.0)
    assert (members.watch.apart, at) == (False, 310 + 10 + 300)
    assert members.run(2000, m0=5.0, m1=5.0) == []


def test_members_stay_separated_if_one_alone_is_faster() -> None:
    members = Members()
    members.run(310, m0=5.0, m1=5.0)
    assert members.run(2000, m0=9.5) == []
    assert members.watch.apart


def test_the_steps_of_a_member_are_those_of_its_busiest_process_in_this_run(tmp_path: Path) -> None:
    for name, count in (
        ("81.0.n1.7", 50),
        ("81.1.n1.8", 20),
        ("81.1.n1.9", 30),
        ("81.1.n1.9.loss", 99),
        ("9.1.n.1", 7),
    ):
        (tmp_path / name).write_text(f"{count:10d} optimizer 1.0 2.0 0 0\n")
    (tmp_path / "81.1.n1.10").write_text("half")
    assert (read_steps(str(tmp_path), "81", 1), read_steps(str(tmp_path / "none"), "81", 1)) == (30, 0)


def make_cgroup(root: Path, version: int, limit: str) -> tuple[str, str]:
    """A job's cgroup with a step below it. Returns (root of the cgroups, file with the own ones)."""
    job = root / ("job" if version == 2 else "memory/slurm/job")
    (job / "step").mkdir(parents=True)
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    (job / name).write_text(limit)
    (job / "step" / name).write_text("max\n" if version == 2 else "9223372036854771712\n")
    stat = "anon 700\nshmem 100\nfile 5000\n" if version == 2 else "cache 5000\ntotal_rss 700\ntotal_shmem 100\n"
    (job / "memory.stat").write_text(stat)
    (root / "own").write_text("0::/job/step\n" if version == 2 else "3:cpu:/\n5:hugetlb,memory:/slurm/job/step\n")
    return str(root), str(root / "own")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_the_job_is_found_and_memory_that_the_kernel_can_free_does_not_count(
    tmp_path: Path, version: int
) -> None:
    folder, limit = find_memory_limit(*make_cgroup(tmp_path, version, "1000\n"))
    assert (limit, Path(folder).name, read_memory_use(folder)) == (1000, "job", 800)


def test_without_a_limit_no_member_is_ended(tmp_path: Path) -> None:
    assert find_memory_limit(*make_cgroup(tmp_path, 2, "max\n")) == ("", 0)
    assert find_memory_limit(str(tmp_path), str(tmp_path / "absent")) == ("", 0)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryWatch:
    """Two members share 1000 bytes, of which 800 are used: process 11 uses 500, 12 and 13 150 each."""
    folder, _ = find_memory_limit(*make_cgroup(tmp_path, 2, "1000\n"))
    watch = MemoryWatch(0.0, 2)
    watch.near, watch.folder, watch.limit = 0.7, folder, 1000
    sessions = {1: [(11, "python")], 2: [(12, "sh"), (13, "python")]}
    monkeypatch.setattr(slurmwrap_member_watch, "list_sessions", lambda: sessions)
    monkeypatch.setattr(slurmwrap_member_watch, "read_process_memory", {11: 510, 12: 150, 13: 150}.__getitem__)
    return watch


def test_the_member_that_exceeds_its_share_is_ended_and_the_next_only_when_its_memory_is_free(
    memory: MemoryWatch,
) -> None:
    assert memory.find_member_to_end(5.0, {3: 1, 4: 2}) == (3, 510)
    assert memory.find_member_to_end(7.0, {3: 1, 4: 2}) is None
    assert memory.find_member_to_end(60.0, {3: 1, 4: 2}) == (3, 510)


def test_a_member_alone_has_all_the_memory(memory: MemoryWatch) -> None:
    assert memory.find_member_to_end(5.0, {3: 1}) is None


def test_no_member_is_ended_below_the_mark_or_within_its_share(memory: MemoryWatch) -> None:
    memory.near = 0.9
    assert memory.find_member_to_end(5.0, {3: 1, 4: 2}) is None
    memory.near, memory.members = 0.7, 1
    assert memory.find_member_to_end(5.0, {3: 1, 4: 2}) is None


def test_the_processes_of_a_session_and_their_memory_are_read() -> None:
    assert os.getpid() in [pid for pid, _ in list_sessions()[os.getsid(0)]]
    assert read_process_memory(os.getpid()) > 1 << 20
    assert read_process_memory(1 << 22) == 0
