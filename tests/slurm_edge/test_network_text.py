"""`scontrol show topology` of three releases, trees and blocks, is parsed into one type of record."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.model.topology import Block, Domain, Switch, Topology
from slurmwrap.slurm.snapshot import parse_default_topology, parse_topology

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"


def captured(name: str) -> str:
    return (CAPTURES / name).read_text(encoding="utf-8")


def names(first: int, last: int) -> tuple[str, ...]:
    return tuple(f"n{index}" for index in range(first, last + 1))


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_a_tree_is_read_the_same_in_every_release(release: str) -> None:
    assert parse_topology(captured(f"{release}/topology.txt")) == Topology(
        switches=(
            Switch(name="ib0", level=0, nodes=names(0, 1)),
            Switch(name="ib1", level=0, nodes=names(2, 3)),
            Switch(name="core", level=1, nodes=names(0, 3), children=("ib0", "ib1")),
        ),
        source="tree",
    )


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_blocks_and_their_aggregate_are_read_the_same_in_both_releases(release: str) -> None:
    topology = parse_topology(captured(f"{release}/block/topology.txt"))
    assert topology == Topology(
        blocks=(
            Block(name="b1", nodes=names(0, 3), size=4),
            Block(name="b2", nodes=names(4, 7), size=4),
            Block(name="b3", nodes=names(8, 11), size=4),
            Block(name="b[1-2]", nodes=names(0, 7), size=8, level=1),
        ),
        source="block",
    )
    assert topology.domains == (
        Domain(name="b1", nodes=names(0, 3), parent="b[1-2]"),
        Domain(name="b2", nodes=names(4, 7), parent="b[1-2]"),
        Domain(name="b3", nodes=names(8, 11)),
        Domain(name="b[1-2]", nodes=names(0, 7), level=1),
    )


def test_of_several_topologies_the_default_is_read_with_switches_in_file_order() -> None:
    assert parse_topology(captured("26.05/several/topology.txt")) == Topology(
        switches=(
            Switch(name="core", level=1, nodes=names(0, 7), children=("ib0", "ib1")),
            Switch(name="ib0", level=0, nodes=names(0, 3)),
            Switch(name="ib1", level=0, nodes=names(4, 7)),
        ),
        source="tree",
    )


def test_the_default_of_several_topologies_is_known_by_name() -> None:
    assert parse_default_topology(captured("26.05/several/topoconf.txt")) == "trees"
    assert (
        parse_default_topology("- topology: a\n  cluster_default: false\n- topology: 'b'\n  cluster_default: true\n")
        == "b"
    )
    assert parse_default_topology("SwitchName=ib0 Level=0 Nodes=n0\n") == ""


def test_levels_of_aggregated_blocks_follow_their_sizes() -> None:
    # 24.11.5 with BlockSizes=2,4,8 over three blocks of four nodes
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=n[0-3] BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=3 Nodes=n[0-7] BlockSize=4\n"
        "AggregatedBlock=b[1-3] BlockIndex=4 Nodes=n[0-11] BlockSize=8\n"
    )
    assert [(block.size, block.level) for block in parse_topology(text).blocks] == [(2, 0), (4, 1), (8, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        "scontrol: error: No topology information available\n",
        "TorusName=t0 Nodes=n[0-7]\n",  # an unknown future format
        "invalid entity:topology for keyword:show\n",
    ],
)
def test_an_unknown_answer_gives_no_topology(text: str) -> None:
    assert parse_topology(text) == Topology()


def test_an_invalid_name_or_list_affects_only_its_own_entry() -> None:
    # 22.05 prints a switch named "sw[1]" unchanged
    text = "SwitchName=sw[1] Level=0 Nodes=n0\nSwitchName=a-b.c Level=x Nodes=n[9-1] Switches=(null)\n"
    assert parse_topology(text).switches == (
        Switch(name="sw[1]", level=0, nodes=("n0",)),
        Switch(name="a-b.c", level=0, nodes=()),
    )
