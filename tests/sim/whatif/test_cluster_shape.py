"""The cluster of a dump: inferred from the resources that jobs held, or read from scontrol."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import read_load
from slurmwrap.sim.trace.trace_load import Actual, Load
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump, cluster_shape_from_nodes, make_server
from slurmwrap.sim.whatif.whatif_study import NodeClass, Shape
from slurmwrap.slurm.scontrol_parser import parse_nodes

DATA = Path(__file__).parents[2] / "data" / "sacct"


def make_run(
    where: str, start: float, end: float | None, gpus: int, cpus: int = 0, mem: int = 0
) -> tuple[SimJob, Actual]:
    job = SimJob(number=0, job="1", submit_s=start, work_s=1, gpus=gpus, cpus=cpus, mem_mib=mem, partition="gpu")
    return job, Actual(submit_s=start, start_s=start, end_s=end, nodes=1, node_list=where)


def make_load(*runs: tuple[SimJob, Actual], cpu: tuple[tuple[SimJob, Actual], ...] = ()) -> Load:
    return Load(
        jobs=tuple(job for job, _ in runs), actual=tuple(what for _, what in runs),
        cpu_jobs=tuple(job for job, _ in cpu), cpu_actual=tuple(what for _, what in cpu),
    )  # fmt: skip


def test_a_node_has_the_most_resources_that_were_held_on_it_at_once() -> None:
    load = make_load(
        make_run("a1", 0, 10, 4, 8, 1000), make_run("a1", 5, 15, 4, 8, 1000), make_run("a1", 15, 20, 1, 30, 5000)
    )
    assert cluster_shape_from_dump(load).servers == (make_server("a1", 8, 30, 5120),)


def test_jobs_that_end_and_start_in_the_same_second_do_not_add_up() -> None:
    assert (
        cluster_shape_from_dump(make_load(make_run("a1", 0, 10, 8, 1), make_run("a1", 10, 20, 8, 1))).servers[0].gpus
        == 8
    )


def test_a_job_on_several_nodes_holds_an_equal_part_on_each() -> None:
    load = make_load(make_run("a[1-2]", 0, 10, 16, 32, 4096))
    assert cluster_shape_from_dump(load).servers == (make_server("a1", 8, 16, 2048), make_server("a2", 8, 16, 2048))


def test_a_node_that_was_never_full_is_like_nodes_with_the_same_name_prefix() -> None:
    full = [make_run(f"a{n}", 0, 10, 8, 16, 1024) for n in (1, 2)]
    load = make_load(*full, make_run("a10", 0, 10, 1, 2, 1024), make_run("b1", 0, None, 2, 4, 1024))
    assert [(s.name, s.gpus, s.cpus) for s in cluster_shape_from_dump(load).servers] == [
        ("a1", 8, 16),
        ("a2", 8, 16),
        ("a10", 8, 16),
        ("b1", 2, 4),
    ]


def test_jobs_without_gpus_count_only_on_gpu_nodes() -> None:
    load = make_load(make_run("a1", 0, 10, 8, 16), cpu=(make_run("a1", 0, 10, 0, 8), make_run("c1", 0, 10, 0, 64)))
    assert cluster_shape_from_dump(load).servers == (make_server("a1", 8, 24, 1024),)


def test_a_dump_without_node_names_is_refused() -> None:
    with pytest.raises(ValueError, match="names the nodes"):
        cluster_shape_from_dump(make_load(make_run("", 0, 10, 8)))


def test_scontrol_show_nodes_gives_the_cluster_and_its_partitions() -> None:
    site = cluster_shape_from_nodes(parse_nodes((DATA / "22.05-lab.nodes.txt").read_text(encoding="utf-8")))
    assert site.shape == Shape(kinds=(NodeClass(nodes=4, gpus=8, cpus=32, mem_mib=64000),), source="nodes")
    assert site.partitions == {name: frozenset({"n0", "n1", "n2", "n3"}) for name in ("gpu", "prerun")}


def test_the_cluster_inferred_from_a_captured_dump_has_the_right_gpus() -> None:
    site = cluster_shape_from_dump(read_load(DATA / "22.05-lab.psv"))
    assert [(one.name, one.gpus) for one in site.servers] == [("n0", 8), ("n1", 8), ("n2", 8), ("n3", 8)]
