"""Trackable resources (TRES) of current Slurm and of Slurm before 21.08."""

from __future__ import annotations

import pytest

from slurmwrap.model.sacct_fields import Tres, parse_memory, parse_old_gres, parse_tres


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Tres()),
        ("billing=8,cpu=8,gres/gpu=4,mem=64G,node=1", Tres(gpus=4, cpus=8, mem_mib=65536, nodes=1)),
        ("cpu=8,gres/gpu:a100=2,gres/gpu:h100=1,mem=500M,node=3", Tres(gpus=3, cpus=8, mem_mib=500, nodes=3)),
        ("cpu=8,gres/gpu=2,gres/gpu:a100=2,node=1", Tres(gpus=2, cpus=8, nodes=1)),
        ("cpu=1,energy=55,gres/gpumem=80G,gres/gpuutil=90,gres/shard=3,node=1", Tres(cpus=1, nodes=1)),
        ("cpu=1,gres/gpu:a100_1g.5gb=7,mem=62.50G,node=1", Tres(gpus=7, cpus=1, mem_mib=64000, nodes=1)),
        ("cpu=2K,mem=1.5T,node=1", Tres(cpus=2048, mem_mib=1572864, nodes=1)),
        ("cpu=1,mem=100K,node=1", Tres(cpus=1, mem_mib=1, nodes=1)),
    ],
)
def test_only_gpus_cpus_memory_and_nodes_are_read(text: str, expected: Tres) -> None:
    assert parse_tres(text) == expected


@pytest.mark.parametrize("text", ["cpu", "cpu=x", "cpu=8,mem=lots", "mem=4Gn5", "gres/gpu=-1", "node=1c", ","])
def test_an_invalid_tres_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_tres(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4000Mc", (4000, "c")), ("4Gn", (4096, "n")), ("16G", (16384, "")), ("0", (0, "")), ("500", (500, ""))],
)
def test_memory_of_slurm_before_21_08_has_a_suffix_per_cpu_or_node(text: str, expected: tuple[int, str]) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", 4),
        ("gres:gpu:a100:2", 2),
        ("gpu", 1),
        ("gpu:a100:2(S:0-1),craynetwork:1", 2),
        ("gpu:tesla", 1),
        ("craynetwork:3", 0),
        ("", 0),
    ],
)
def test_gres_of_slurm_before_21_08_gives_gpus_per_node(text: str, gpus: int) -> None:
    assert parse_old_gres(text) == gpus
