"""Tuned CPUs and memory per GPU: tuning may help and must never harm.

The nodes have 4 CPUs and 32,000 MiB per GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from placement_cases import SHAPE, node

from slurmwrap.config.load_config import Config
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.tuning_bounds import (
    compute_asked_cpus_per_gpu,
    compute_asked_mem_mib_per_gpu,
    compute_tuning_bounds,
    get_tasks_per_node,
)
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, ResourceShape


def compute_cpus(asked: int, need: float | None, *, runs: int = 0, bound: bool = False, gpus: int = 4) -> float | None:
    shape = replace(SHAPE, cpus=asked, cpu_unit=CpuUnit.PER_GPU, gpus_per_node=gpus)
    profile = ResourceProfile(key="k", cpus_per_gpu=need, cpu_bound=bound, runs=runs, preruns=1)
    return compute_tuning_bounds(shape, profile, node("n0"), Config()).cpus_per_gpu


@pytest.mark.parametrize(
    ("tuned", "target"),
    [
        (compute_cpus(2, 3.5), 3.5),  # raised to the need
        (compute_cpus(2, 9.0), 4.0),  # raised to the share: the rest is for other jobs
        (compute_cpus(6, 9.0), None),  # the request is above the share
        (compute_cpus(2, None), None),  # not measured
        (compute_cpus(4, 1.2), None),  # a pre-run alone does not cut below the share
        (compute_cpus(3, 1.2), None),  # nor a request below the share
        (compute_cpus(12, 1.2), 4.0),  # but it cuts a request above the share
        (compute_cpus(12, 5.5), 5.5),  # cut to the need
        (compute_cpus(4, 1.2, runs=1), 1.2),  # a complete run is sufficient
        (compute_cpus(4, 0.1, runs=1), 1.0),  # one CPU is the least
        (compute_cpus(4, 1.2, runs=1, gpus=8), None),  # it has all GPUs: no other job could use the CPUs
        (compute_cpus(6, 1.2, runs=1, gpus=8), 4.0),  # cut to the share
        (compute_cpus(2, 2.0, bound=True), 4.0),  # all CPUs were busy: raised to the share
        (compute_cpus(4, 4.0, bound=True), None),
        (compute_cpus(8, 2.0, bound=True), None),  # the need is unknown: nothing is cut
    ],
)
def test_tuned_cpus_per_gpu(tuned: float | None, target: float | None) -> None:
    assert tuned == target


def compute_memory(asked: int | None, peak: int | None, *, runs: int = 0, gpus: int = 4) -> int | None:
    unit = MemUnit.PER_GPU if asked is not None else MemUnit.NONE
    shape = replace(SHAPE, mem_mib=asked, mem_unit=unit, gpus_per_node=gpus)
    profile = ResourceProfile(key="k", mem_mib_per_gpu=peak, runs=runs, preruns=1)
    return compute_tuning_bounds(shape, profile, node("n0"), Config()).mem_mib_per_gpu


@pytest.mark.parametrize(
    ("tuned", "target"),
    [
        (compute_memory(8_000, 10_000), 12_000),  # raised to the peak with its margin
        (compute_memory(8_000, 60_000), 64_000),  # up to the memory of the node
        (compute_memory(8_000, 6_000), None),
        (compute_memory(8_000, None), None),
        (compute_memory(0, 60_000), None),  # all of the node
        (compute_memory(50_000, 6_000, runs=2), None),  # two runs are too few to cut
        (compute_memory(50_000, 6_000, runs=3), 7_200),
        (compute_memory(50_000, 10, runs=3), 256),  # not below the minimum per node
        (compute_memory(50_000, 6_000, runs=3, gpus=8), 32_000),  # it has all GPUs: the share stays
        (compute_memory(20_000, 6_000, runs=3, gpus=8), None),  # the request is below the share
        (compute_memory(None, 6_000, runs=2), None),  # no request: Slurm's default
        (compute_memory(None, 6_000, runs=3), 7_200),
        (compute_memory(None, 6_000, runs=3, gpus=8), None),
    ],
)
def test_tuned_memory_per_gpu(tuned: int | None, target: int | None) -> None:
    assert tuned == target


def test_reasons_name_the_measurement_and_the_request() -> None:
    profile = ResourceProfile(key="k", cpus_per_gpu=3.5, mem_mib_per_gpu=20_000, runs=2)
    bounds = compute_tuning_bounds(SHAPE, profile, node("n0"), Config())
    assert bounds.cpu_reason == "it needs 3.5 CPUs per GPU (2 complete runs) and asked for 2; its share is 4"
    peak = "its peak was 20000 MiB per GPU (2 complete runs)"
    assert bounds.mem_reason == f"{peak}; with a margin more than the 16000 MiB asked for"


@pytest.mark.parametrize(
    ("changes", "asked_cpus", "asked_mem", "tasks"),
    [
        ({}, 2.0, 16_000, 1),
        ({"tasks_per_node": 4}, 8.0, 16_000, 4),
        ({"cpu_unit": CpuUnit.PER_GPU}, 8.0, 16_000, 1),
        ({"cpu_unit": CpuUnit.NONE, "cpus": None}, 0.25, 16_000, 1),
        ({"mem_unit": MemUnit.PER_CPU, "mem_mib": 1000}, 2.0, 2_000, 1),
        ({"tasks_per_node": None, "tasks": 8}, 8.0, 16_000, 4),
        ({"tasks_per_node": None, "tasks": 7}, None, 16_000, None),
        ({"tasks_per_node": None, "tasks": 8, "max_nodes": 4}, None, 16_000, None),
        ({"tasks_per_node": None, "nodes": None, "max_nodes": None}, 2.0, 16_000, 1),
        ({"gpus_per_node": None}, None, None, 1),
    ],
)
def test_requested_cpus_memory_and_tasks_per_gpu(
    changes: dict[str, object], asked_cpus: float | None, asked_mem: int | None, tasks: int | None
) -> None:
    shape: ResourceShape = replace(SHAPE, **changes)  # type: ignore[arg-type]
    assert (compute_asked_cpus_per_gpu(shape), compute_asked_mem_mib_per_gpu(shape), get_tasks_per_node(shape)) == (
        *(asked_cpus, asked_mem, tasks),
    )
