"""The simulator calls the placement code of production on simulated clusters."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.sbatch.job_request import CpuUnit, GpuUnit, MemUnit, ResourceShape
from slurmwrap.sim import placement_bridge
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.placement_bridge import SimSnapshot, make_leaf_topology, make_sim_request, plan_like_gsub
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

TWO = make_equal_servers(2, gpus=8, cpus=24, mem_gb=80)
FREE = np.array([8, 8]), np.array([24.0, 24.0]), np.array([81920.0, 81920.0])
SKEWED = ResourceProfile(key="vgg16", skew=0.74)
FLAT = ResourceProfile(key="resnet50", skew=0.11)
WORLD = SchedulerParams(resolution_s=0.0, group_s=0.0)


def test_the_simulator_uses_the_placement_function_of_gsub_and_the_pre_run() -> None:
    prepare, conclude = (import_module(f"slurmwrap.gsub.{name}") for name in ("prepare", "apply_verdict"))
    assert placement_bridge.plan is prepare.plan is conclude.plan


def test_a_job_without_a_node_count_requests_resources_per_gpu() -> None:
    assert make_sim_request(4, None, 3.0, 10240.0).shape == ResourceShape(
        gpus=4, gpu_unit=GpuUnit.GPUS, cpus=3, cpu_unit=CpuUnit.PER_GPU, mem_mib=10240, mem_unit=MemUnit.PER_GPU
    )


def test_a_job_with_a_node_count_requests_resources_per_node() -> None:
    assert make_sim_request(16, 2, 1.5, 1024.0, limit_s=60.0).shape == ResourceShape(
        nodes=2, max_nodes=2, gpus=16, gpus_per_node=8, gpu_unit=GpuUnit.GRES, cpus=12, cpu_unit=CpuUnit.PER_TASK,
        mem_mib=8192, mem_unit=MemUnit.PER_NODE, time_limit_s=60,
    )  # fmt: skip


def test_a_snapshot_shows_allocated_resources_and_partitions() -> None:
    sim_snapshot = SimSnapshot(servers=TWO, partitions={"a": frozenset({"n1"})})
    free = np.array([8, 2]), np.array([24.0, 6.0]), np.array([81920.0, 20480.0])
    sim_snapshot.snapshot(0.0, *FREE)
    node = Node(name="n0", state="IDLE", cpus=24, mem_mib=81920, gpus=8, partitions=("all",))
    other = replace(
        node, name="n1", state="MIXED", cpus_alloc=18, mem_alloc_mib=61440, gpus_used=6, partitions=("all", "a")
    )
    assert sim_snapshot.snapshot(5.0, *free) == Snapshot(
        taken_at=5.0,
        nodes=(node, other),
        default_partition="all",
        partitions=(Partition(name="all", default=True), Partition(name="a")),
    )


def test_servers_are_assigned_to_leaf_switches_in_order() -> None:
    topology = make_leaf_topology(["n0", "n1", "n2"], 2)
    assert [(leaf.name, leaf.nodes) for leaf in topology.leaves] == [("leaf0", ("n0", "n1")), ("leaf1", ("n2",))]
    assert topology.source == "tree"
    assert make_leaf_topology(["n0"], None).domains == ()


def test_only_a_skewed_model_requests_the_fewest_servers() -> None:
    snapshot = SimSnapshot(servers=TWO).snapshot(0.0, np.array([3, 3]), *FREE[1:])
    request = make_sim_request(6, None, 3.0, 10240.0)
    skewed = {wish.option: wish.value for wish in plan_like_gsub(request, SKEWED, snapshot).lines}
    assert skewed["nodes"] == "1"
    assert plan_like_gsub(request, FLAT, snapshot).lines == ()


# ------------------------------------------------------------------------------------------- placement and relaxation


def job(number: int, gpus: int, work_s: float, model: str = "", **more: object) -> SimJob:
    known = {"submit_s": float(number), **more}
    return SimJob(number=number, job=str(number), gpus=gpus, work_s=work_s, model=model, **known)  # type: ignore[arg-type]


BUSY_JOBS = [job(0, 5, 5000.0), job(1, 5, 5000.0)]
KNOWN = {"vgg16": SKEWED, "resnet50": FLAT}


def test_a_skewed_job_waits_for_one_server_and_is_relaxed_at_the_deadline() -> None:
    """It waits at most 300 s, and less with few free GPUs on one server. Relaxation runs every 15 s."""
    outcome = play_backfill([*BUSY_JOBS, job(2, 6, 10.0, "vgg16")], TWO, world=WORLD, profiles=KNOWN, placement="skew")
    assert 30.0 <= (outcome.began_s[2] or 0.0) - 2.0 <= 315.0
    assert (outcome.servers, outcome.updates) == ((1, 1, 2), 1)


def test_a_job_that_is_not_skewed_starts_at_once() -> None:
    outcome = play_backfill(
        [*BUSY_JOBS, job(2, 6, 10.0, "resnet50")], TWO, world=WORLD, profiles=KNOWN, placement="skew"
    )
    assert (outcome.began_s[2], outcome.servers[2], outcome.updates) == (2.0, 2, 0)


def test_a_skewed_job_starts_on_one_server_that_becomes_free_in_time() -> None:
    early = [job(0, 5, 5000.0), job(1, 5, 20.0)]
    outcome = play_backfill([*early, job(2, 6, 10.0, "vgg16")], TWO, world=WORLD, profiles=KNOWN, placement="skew")
    assert (outcome.began_s[2], outcome.servers[2]) == (21.0, 1)


def test_small_jobs_do_not_use_idle_servers() -> None:
    """The idle server has fewer free CPUs than the partly used one when job 2 comes, so Slurm alone would choose it."""
    servers = (*make_equal_servers(1, gpus=8, cpus=20, mem_gb=80), replace(TWO[1], cpus=24, cpus_free=24))
    jobs = [job(0, 8, 10.0), job(1, 1, 5000.0, cpus=1), job(2, 1, 5000.0, cpus=1, submit_s=11.0)]
    jobs.append(job(3, 8, 10.0, submit_s=20.0))
    plain = play_backfill(jobs, servers, world=WORLD, profiles={})
    skew = play_backfill(jobs, servers, world=WORLD, profiles={}, placement="skew")
    assert (plain.servers, skew.servers) == ((1, 1, 1, 2), (1, 1, 1, 1))


def test_a_skewed_job_waits_for_one_leaf_switch_at_most_until_the_deadline() -> None:
    """From 20 s on two servers are free, under different leaf switches."""
    servers, world = make_equal_servers(4, gpus=8, cpus=24, mem_gb=80), replace(WORLD, servers_per_leaf=2)
    jobs = [
        job(0, 16, 5.0, nodes=2),
        job(1, 8, 5000.0, nodes=1),
        job(2, 8, 18.0, nodes=1),
        job(3, 8, 5000.0, nodes=1, submit_s=6.0),
        job(4, 16, 10.0, "vgg16", nodes=2, submit_s=25.0),
    ]
    plain = play_backfill(jobs, servers, world=world, profiles={})
    skew = play_backfill(jobs, servers, world=world, profiles=KNOWN, placement="skew")
    assert plain.began_s[4] == 25.0
    assert 25.0 + 60.0 <= (skew.began_s[4] or 0.0) <= 25.0 + 300.0
    assert plain.servers == skew.servers == (2, 1, 1, 1, 2)


def test_a_skewed_job_starts_at_once_if_one_leaf_switch_is_free() -> None:
    servers, world = make_equal_servers(4, gpus=8, cpus=24, mem_gb=80), replace(WORLD, servers_per_leaf=2)
    outcome = play_backfill(
        [job(0, 16, 10.0, "vgg16", nodes=2)], servers, world=world, profiles=KNOWN, placement="skew"
    )
    assert outcome.began_s == (0.0,)


def test_a_node_list_is_removed_after_a_minute() -> None:
    """The plan finds room for job 2 on both servers and requests one, but job 2 must wait behind job 1."""
    jobs = [job(0, 12, 100.0, nodes=2), job(1, 16, 50.0, nodes=2), job(2, 1, 10.0)]
    world = replace(WORLD, backfill_s=0.0)
    outcome = play_backfill(jobs, TWO, world=world, profiles={}, placement="skew")
    hasty = play_backfill(
        [replace(one, work_s=one.work_s / 2) for one in jobs], TWO, world=world, profiles={}, placement="skew"
    )
    assert (outcome.began_s, outcome.updates) == ((0.0, 100.0, 150.0), 1)
    assert (hasty.began_s, hasty.updates) == ((0.0, 50.0, 75.0), 1)


@settings(max_examples=60)
@given(chance=st.randoms(use_true_random=False))
def test_omitting_identical_servers_from_the_snapshot_keeps_the_plan(chance: Random) -> None:
    """Idle, full and partly used servers of two sizes, some of them in a second partition."""
    count, gpus = chance.randint(1, 40), chance.choice((1, 2, 3, 4, 8, 12, 16))
    sizes = [chance.choice((4, 8)) for _ in range(count)]
    servers = [
        replace(make_equal_servers(1, gpus=size, cpus=4 * size, mem_gb=4 * size)[0], name=f"n{at}")
        for at, size in enumerate(sizes)
    ]
    used = [chance.choice((0, 0, 1, size // 2, size)) for size in sizes]
    free = (
        np.array([size - taken for size, taken in zip(sizes, used, strict=True)]),
        np.array([4.0 * size - chance.choice((2, 4)) * taken for size, taken in zip(sizes, used, strict=True)]),
        np.array([4096.0 * (size - taken) for size, taken in zip(sizes, used, strict=True)]),
    )
    partitions = {"a": frozenset(server.name for server in servers if chance.random() < 0.5)}
    nodes = chance.choice((None, 1, *(n for n in (2, 3, 4) if n <= gpus)))
    request = make_sim_request(gpus, nodes, 2.0, 2048.0, limit_s=7200.0, partition=chance.choice(("all", "a")))
    profile = chance.choice((None, SKEWED, FLAT))
    shown = [
        plan_like_gsub(
            request, profile, SimSnapshot(servers=servers, partitions=partitions).snapshot(0.0, *free, alike=alike)
        )
        for alike in (None, gpus + 1)
    ]
    assert shown[0] == shown[1]


def test_a_snapshot_with_leaf_switches_contains_all_servers() -> None:
    sim_snapshot = SimSnapshot(servers=make_equal_servers(4, gpus=8, cpus=24, mem_gb=80), servers_per_leaf=2)
    free = np.full(4, 8), np.full(4, 24.0), np.full(4, 81920.0)
    assert len(sim_snapshot.snapshot(0.0, *free, alike=2).nodes) == 4
