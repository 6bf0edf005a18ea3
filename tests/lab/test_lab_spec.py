"""What is derived from a LabSpec, and which specifications are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.lab.lab_spec import LabSpec, checked, cluster_of, gpu_bus_id, gpu_information, hosts_text

SPEC = LabSpec(directory=Path("/var/lib/slurmwrap-lab"))


def test_nodes_are_distributed_over_the_leaf_switches_in_order() -> None:
    uneven = replace(SPEC, nodes=5, switches=2)
    assert uneven.leaves == (("ib0", ("n0", "n1")), ("ib1", ("n2", "n3", "n4")))


@pytest.mark.parametrize(("nodes", "switches"), [(1, 1), (3, 2), (7, 3), (8, 8), (11, 4), (256, 5)])
def test_every_node_is_on_exactly_one_leaf_and_no_leaf_is_empty(nodes: int, switches: int) -> None:
    leaves = replace(SPEC, nodes=nodes, switches=switches).leaves
    assert [node for _, members in leaves for node in members] == [f"n{index}" for index in range(nodes)]
    assert all(members for _, members in leaves)


def test_without_a_tree_there_are_no_switches() -> None:
    assert replace(SPEC, topology="none").leaves == ()


def test_every_lab_directory_but_the_default_has_its_own_cluster_name() -> None:
    names = [cluster_of(Path(place)) for place in ("/var/lib/slurmwrap-lab", "/tmp/lab", "/srv/lab")]
    assert names == ["lab", "lab6051b809", "lab8f527650"]
    assert [checked(replace(SPEC, cluster=name)).cluster for name in names] == names


def test_ports_follow_the_base_port() -> None:
    spec = replace(SPEC, nodes=2, base_port=27000)
    assert (spec.controller_port, spec.node_ports) == (27000, (27001, 27002))
    assert spec.ports == (27000, 27001, 27002)
    assert replace(spec, accounting=True).ports == (27000, 27001, 27002, 27003)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"nodes": 0}, "--nodes"),
        ({"nodes": 257}, "--nodes"),
        ({"gpus": 17}, "--gpus"),
        ({"threads": 0}, "--threads"),
        ({"cpus": 31, "threads": 2}, "--cpus=31 is not a multiple of --threads=2"),
        ({"switches": 9}, "--switches"),
        ({"topology": "ring"}, "--topology must be tree or none"),
        ({"priority": "own"}, "--priority must be basic or multifactor"),
        ({"act": ("order", "tune")}, "--act must name order or limit, not 'tune'"),
        ({"mem_mib": 0}, "--mem-mib"),
        ({"base_port": 32760}, "--base-port"),  # the last node would reach 32768, where ephemeral ports begin
        ({"base_port": 32759, "accounting": True}, "--base-port"),  # and slurmdbd's port is the next one
        ({"directory": Path("/srv/my lab")}, "--dir"),
        ({"directory": Path("/srv/50%")}, "--dir"),
        ({"directory": Path("/srv/a,b")}, "--dir"),
        ({"directory": Path("/srv/a\n")}, "--dir"),
        ({"directory": Path("/")}, "--dir"),
        ({"directory": Path("/srv/" + "x" * 90)}, "--dir"),
        ({"cluster": "my-lab"}, "--cluster 'my-lab'"),
        ({"cluster": "Lab"}, "--cluster"),
        ({"cluster": "x" * 41}, "--cluster"),
    ],
)
def test_an_invalid_option_is_named(change: dict[str, object], culprit: str) -> None:
    with pytest.raises(UsageError, match=culprit) as caught:
        checked(replace(SPEC, **change))  # type: ignore[arg-type]
    assert caught.value.exit_code == 255


def test_the_defaults_are_valid() -> None:
    assert checked(SPEC) == SPEC


def test_gpus_of_a_node_have_sixteen_different_bus_ids() -> None:
    ids = [gpu_bus_id(index) for index in range(16)]
    assert (ids[0], ids[1], ids[15], len(set(ids))) == ("0000:07:00.0", "0000:17:00.0", "0000:f7:00.0", 16)


def test_the_information_file_has_the_format_of_the_driver() -> None:
    assert gpu_information(SPEC, 3) == (
        "Model: \t\t Simulated A100\nBus Type: \t PCIe\nBus Location: \t 0000:37:00.0\n"
        "Device Minor: \t 3\nGPU Excluded:\t No\n"
    )


def test_node_names_in_etc_hosts_precede_the_machines_own_entries() -> None:
    text = hosts_text(replace(SPEC, nodes=2), "127.0.0.1 localhost\n10.0.0.7 n1\n")
    assert text == "127.0.0.1 n0\n127.0.0.1 n1\n127.0.0.1 localhost\n10.0.0.7 n1\n"
