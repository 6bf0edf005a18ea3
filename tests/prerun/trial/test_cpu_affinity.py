"""CPU masks of whole cores, and real processes that are limited to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slurmwrap.prerun.trial import cpu_affinity
from slurmwrap.prerun.trial.cpu_affinity import AffinityLimiter, SeenProcess

THREADS = {cpu: frozenset({cpu % 4, cpu % 4 + 4}) for cpu in range(8)}  # 4 cores of two threads, numbered as Linux does
PYTHON = ("python", "train.py")


def test_cores_include_all_their_threads_and_those_near_the_gpu_come_first() -> None:
    assert cpu_affinity.list_cores(range(8), THREADS, near={2, 3, 6, 7}) == (
        *(frozenset({2, 6}), frozenset({3, 7})),
        *(frozenset({0, 4}), frozenset({1, 5})),
    )


def test_only_the_allowed_threads_of_a_core_are_used() -> None:
    assert cpu_affinity.list_cores({0, 1, 5}, THREADS) == (frozenset({0}), frozenset({1, 5}))


def test_masks_grow_by_whole_cores_and_have_slurms_cpu_count_as_key() -> None:
    two = cpu_affinity.list_cores(range(8), THREADS)
    assert {k: sorted(mask) for k, mask in cpu_affinity.make_masks_by_cpus(two, 2, 8).items()} == {
        2: [0, 4],
        4: [0, 1, 4, 5],
        6: [0, 1, 2, 4, 5, 6],
        8: list(range(8)),
    }


def test_a_core_is_one_cpu_if_slurm_counts_cores() -> None:
    assert list(cpu_affinity.make_masks_by_cpus(cpu_affinity.list_cores(range(8), THREADS), 2, 4)) == [1, 2, 3, 4]


def test_masks_have_at_most_the_allocated_cpus_if_jobs_are_not_confined() -> None:
    alone = tuple(frozenset({cpu}) for cpu in range(16))
    assert list(cpu_affinity.make_masks_by_cpus(alone, 1, 3)) == [1, 2, 3]
    assert list(cpu_affinity.make_masks_by_cpus(alone[:2], 1, 64)) == [1, 2]
    assert list(cpu_affinity.make_masks_by_cpus(alone[:2], 1, None)) == [1, 2]


def test_cores_of_the_machine_are_read_from_sysfs(tmp_path: Path) -> None:
    for cpu, siblings in {0: "0,2", 1: "1,3", 2: "0,2"}.items():
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{siblings}\n")
    assert cpu_affinity.list_own_cores({0, 1, 2}, root=tmp_path) == ((frozenset({0, 2}), frozenset({1})), 2)
    assert cpu_affinity.list_own_cores({0, 7}, root=tmp_path / "nothing") == ((frozenset({0}), frozenset({7})), 1)


def test_cpus_near_the_gpus_are_read_from_sysfs(tmp_path: Path) -> None:
    devices = {
        "0000:05:00.0": ("0x10de", "0x030200", "0"),
        "0000:85:00.0": ("0x10de", "0x030000", "1"),
        "0000:86:00.0": ("0x10de", "0x0c0330", "1"),
        "0000:01:00.0": ("0x15b3", "0x020000", "0"),
    }
    for name, texts in devices.items():
        (tmp_path / "pci" / name).mkdir(parents=True)
        for file, text in zip(("vendor", "class", "numa_node"), texts, strict=True):
            (tmp_path / "pci" / name / file).write_text(f"{text}\n")
    for node, cpus in {0: "0-1,4", 1: "2-3"}.items():
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(f"{cpus}\n")
    pci, cpu = tmp_path / "pci", tmp_path / "cpu"
    assert cpu_affinity.list_cpus_near_gpus(root=pci, cpus=cpu) == {0, 1, 2, 3, 4}
    assert cpu_affinity.list_cpus_near_gpus(["0000:85:00.0"], root=pci, cpus=cpu) == {2, 3}
    (pci / "0000:85:00.0/numa_node").write_text("-1\n")  # one NUMA node, or a firmware that does not report it
    assert cpu_affinity.list_cpus_near_gpus(["0000:85:00.0"], root=pci, cpus=cpu) == set()
    assert cpu_affinity.list_cpus_near_gpus(root=tmp_path / "nothing", cpus=cpu) == set()


def test_loader_workers_are_recognized_by_the_name_that_torch_sets() -> None:
    seen = [
        SeenProcess(pid=1, parent=0, name="python", argv=PYTHON),
        SeenProcess(pid=9, parent=1, name="python", argv=PYTHON),
    ]
    named = [SeenProcess(pid=pid, parent=1, name="pt_data_worker", argv=PYTHON) for pid in (2, 3)]
    assert cpu_affinity.count_loader_workers([*seen, *named], {1}) == 2


def test_other_loader_workers_are_processes_that_a_trainer_forked_or_spawned() -> None:
    spawned = (
        "python",
        "-c",
        "from multiprocessing.spawn import spawn_main; spawn_main(...)",
        "--multiprocessing-fork",
    )
    tracker = ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)")
    seen = [
        SeenProcess(pid=1, parent=0, name="bash", argv=("bash", "slurm_script")),
        SeenProcess(pid=2, parent=1, name="python", argv=PYTHON),  # counts steps
        SeenProcess(pid=3, parent=2, name="python", argv=PYTHON),
        SeenProcess(pid=4, parent=2, name="python", argv=spawned),
        SeenProcess(pid=5, parent=2, name="python", argv=tracker),
        SeenProcess(pid=6, parent=2, name="nvcc", argv=("nvcc", "x.cu")),
        SeenProcess(pid=7, parent=2, name="python", argv=PYTHON),  # a rank of mp.spawn: counts steps as well
        SeenProcess(pid=8, parent=7, name="python", argv=PYTHON),
    ]
    assert cpu_affinity.count_loader_workers(seen, {2, 7}) == 3
    assert cpu_affinity.count_loader_workers(seen, set()) == 0


@pytest.fixture
def process_tree() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a thread and a child."""
    code = (
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "if os.fork(): print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.communicate()


def list_processes(process_tree: subprocess.Popen[bytes]) -> list[psutil.Process]:
    own = psutil.Process(process_tree.pid)
    return [own, *own.children(recursive=True)]


def list_masks(process_tree: subprocess.Popen[bytes]) -> list[set[int]]:
    return [os.sched_getaffinity(t.id) for process in list_processes(process_tree) for t in process.threads()]


def test_all_threads_of_all_processes_are_limited_and_restored(process_tree: subprocess.Popen[bytes]) -> None:
    full = frozenset(os.sched_getaffinity(0))
    limiter = AffinityLimiter(lambda: list_processes(process_tree))
    one_cpu = frozenset({min(full)})
    limiter.hold(one_cpu)
    assert list_masks(process_tree) == [one_cpu] * 3
    assert not limiter.strays(one_cpu)
    limiter.hold(full)
    assert list_masks(process_tree) == [full] * 3


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_process_with_its_own_mask_is_a_stray_and_an_idle_thread_is_not(
    process_tree: subprocess.Popen[bytes],
) -> None:
    full = frozenset(os.sched_getaffinity(0))
    limiter, one_cpu = AffinityLimiter(lambda: list_processes(process_tree)), {min(full)}
    idle = next(t.id for t in psutil.Process(process_tree.pid).threads() if t.id != process_tree.pid)
    os.sched_setaffinity(idle, one_cpu)
    assert not limiter.strays(full)
    os.sched_setaffinity(list_processes(process_tree)[1].pid, one_cpu)
    assert limiter.strays(full)


def test_processes_that_have_ended_are_tolerated() -> None:
    ended = subprocess.Popen(["true"])
    process = psutil.Process(ended.pid)
    ended.wait()
    limiter = AffinityLimiter(lambda: [process])
    limiter.hold({0})
    assert (limiter.strays({0}), limiter.workers()) == (False, 0)
