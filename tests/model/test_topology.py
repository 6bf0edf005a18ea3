"""Topology domains have the same form for every source: switches, blocks or racks."""

from __future__ import annotations

from slurmwrap.model.topology import Block, Domain, Switch, Topology


def test_switches_become_domains_with_parents_and_leaves_come_first() -> None:
    core = Switch(name="core", level=1, nodes=("n0", "n1"), children=("ib0", "ib1"))
    leaves = (Switch(name="ib0", level=0, nodes=("n0",)), Switch(name="ib1", level=0, nodes=("n1",)))
    expected = (
        Domain(name="ib0", nodes=("n0",), parent="core"),
        Domain(name="ib1", nodes=("n1",), parent="core"),
        Domain(name="core", nodes=("n0", "n1"), level=1),
    )
    assert Topology(switches=(*leaves, core), source="tree").domains == expected
    # with a topology.yaml Slurm 26.05 prints switches in the order of the file
    assert Topology(switches=(core, *leaves), source="tree").domains == expected


def test_the_parent_of_a_block_is_the_smallest_aggregate_that_contains_it() -> None:
    blocks = (
        Block(name="b1", nodes=("n0", "n1"), size=2),
        Block(name="b2", nodes=("n2", "n3"), size=2),
        Block(name="b3", nodes=("n4", "n5"), size=2),
        Block(name="b[1-2]", nodes=("n0", "n1", "n2", "n3"), size=4, level=1),
        Block(name="b[1-3]", nodes=("n0", "n1", "n2", "n3", "n4", "n5"), size=8, level=2),
    )
    assert [(d.name, d.parent) for d in Topology(blocks=blocks, source="block").domains] == [
        ("b1", "b[1-2]"),
        ("b2", "b[1-2]"),
        ("b3", "b[1-3]"),
        ("b[1-2]", "b[1-3]"),
        ("b[1-3]", ""),
    ]


def test_a_node_under_two_leaves_stays_in_the_first_and_empty_leaves_are_dropped() -> None:
    # slurmctld 22.05 only warns: "WARNING: Multiple leaf switches contain nodes: n1"
    switches = (
        Switch(name="ib0", level=0, nodes=("n0", "n1")),
        Switch(name="ib1", level=0, nodes=("n1", "n2")),
        Switch(name="ib2", level=0, nodes=("n0",)),
    )
    assert Topology(switches=switches, source="tree").domains == (
        Domain(name="ib0", nodes=("n0", "n1")),
        Domain(name="ib1", nodes=("n2",)),
    )


def test_racks_of_the_site_become_domains_if_slurm_has_no_topology() -> None:
    row, rack = Domain(name="row", nodes=("n0",), level=1), Domain(name="rack", nodes=("n0",), parent="row")
    assert Topology(racks=(row, rack), source="file").domains == (rack, row)


def test_no_domains_without_a_topology() -> None:
    assert Topology().domains == ()
