"""What a job takes from a node, for each way to request resources with sbatch."""

from __future__ import annotations

import pytest

from slurmwrap.placement.resource_units import ResourceUnits, compute_resource_units
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.sbatch.parse_request import parse_request


def parse_options(options: str) -> JobRequest:
    """The request of one sbatch command line."""
    return parse_request(
        options.split(), environ={}, cwd="/", read_script=lambda path: b"", read_stdin=lambda: b"#!/bin/sh\n"
    )


@pytest.mark.parametrize(
    ("options", "units", "one_unit", "least"),
    [  # one_unit: GPUs, CPUs and MiB of one unit, with what is taken once per node
        ("--gres=gpu:4 -N2 -c8 --mem=64G", 2, (4, 8, 65536), 2),
        ("--gpus-per-node=4 -N2 --ntasks-per-node=4 -c2 --mem-per-cpu=1000", 2, (4, 8, 8000), 2),
        ("--gres=gpu:4 -N2 -n8 -c2 --mem-per-gpu=1000", 2, (4, 8, 4000), 2),
        ("--gres=gpu:2 --cpus-per-gpu=3 --mem=1000", 1, (2, 6, 1000), 1),
        ("--gres=gpu:1 --cpus-per-gpu=1 --ntasks-per-node=4 --mem-per-cpu=500", 1, (1, 4, 2000), 1),
        ("--gpus=5 --cpus-per-gpu=2 --mem-per-gpu=1000", 5, (1, 2, 1000), 1),
        ("--gpus=5 -N2 -c4 --mem=1000", 5, (1, 4, 1000), 2),
        ("--gpus=4 -N1 -n8 -c2 --mem-per-cpu=500", 4, (1, 16, 8000), 1),
        ("--gpus=16 --gpus-per-node=8 -c4 --mem=0", 2, (8, 4, 0), 2),
        ("--gpus-per-task=2 -n6 -c5 --mem-per-gpu=1000", 6, (2, 5, 2000), 1),
        ("--gpus-per-task=1 -N2 --ntasks-per-node=4 --cpus-per-gpu=3 --mem=9000", 8, (1, 3, 9000), 2),
        ("--gpus-per-task=1 -n8 --ntasks-per-node=2 --mem-per-cpu=700", 8, (1, 1, 700), 4),
        ("--gpus-per-socket=2 --sockets-per-node=2 -N3 -c2 --mem=100", 3, (4, 2, 100), 3),
    ],
)
def test_a_request_is_divided_into_units(options: str, units: int, one_unit: tuple[int, int, int], least: int) -> None:
    need = compute_resource_units(parse_options(options))
    assert need is not None
    assert (need.units, need.on(1), need.least_nodes) == (units, one_unit, least)


@pytest.mark.parametrize(
    ("options", "sure"),
    [
        ("--gres=gpu:1 --mem=1G", True),
        ("--gres=gpu:1", False),  # the default memory of the partition may be all memory of the node
        ("--gres=gpu:1 -n4 --mem=1G", False),  # its tasks may run on one node or on four
        ("--gres=gpu:1 -N2 -n4 --mem=1G", True),
        ("--gres=gpu:1 -N2 -n3 --mem=1G", False),
        ("--gpus=8 -N2 -n8 --mem=1G", False),
        ("--gpus=8 -N2 --mem=1G", True),
        ("--gres=gpu:1 --mem=1G --hint=nomultithread", False),
        ("--gpus=8 --gpus-per-task=2 -n4 --mem=1G", False),
        ("--gpus-per-socket=2 --sockets-per-node=2 -N1 --mem=1G", False),
    ],
)
def test_requests_that_slurm_resolves_at_allocation_are_not_sure(options: str, sure: bool) -> None:
    need = compute_resource_units(parse_options(options))
    assert need is not None and need.sure is sure


@pytest.mark.parametrize("options", ["-c4 --mem=1G", "--gres=gpu:0"])
def test_a_job_without_gpus_has_no_resource_units(options: str) -> None:
    assert compute_resource_units(parse_options(options)) is None


@pytest.mark.parametrize(
    ("need", "room", "units"),
    [
        (ResourceUnits(units=8, gpus=1), (5, 0, 0), 5),
        (ResourceUnits(units=8, gpus=1), (16, 99, 99), 8),
        (ResourceUnits(units=8, gpus=2, cpus=3, mem_mib=10), (8, 10, 1000), 3),  # CPUs for three
        (ResourceUnits(units=8, gpus=2, cpus=3, mem_mib=10), (8, 99, 25), 2),  # memory for two
        (ResourceUnits(units=8, gpus=1, node_cpus=4, cpus=1), (8, 6, 0), 2),
        (ResourceUnits(units=8, gpus=1, node_cpus=4), (8, 3, 0), 0),
        (ResourceUnits(units=8, gpus=1, node_mem_mib=100, mem_mib=50), (8, 0, 225), 2),
        (ResourceUnits(units=2, gpus=4, per_node=1), (8, 0, 0), 1),
        (ResourceUnits(units=2, gpus=4), (3, 9, 9), 0),
        (ResourceUnits(units=8, gpus=1, cpus=0.5), (8, 3, 0), 6),
    ],
)
def test_number_of_units_that_fit_into_the_free_resources(
    need: ResourceUnits, room: tuple[int, int, int], units: int
) -> None:
    assert need.fitting(*room) == units
