"""Topology from the rack file of a site or from node features, and errors for an invalid file."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.errors import ConfigError
from slurmwrap.model.cluster import Node
from slurmwrap.model.racks import topology_from_features, topology_from_file
from slurmwrap.model.topology import Domain, Topology


def make_nodes(*names: str, **features: str) -> tuple[Node, ...]:
    plain = [Node(name=name, state="IDLE") for name in names]
    return (*plain, *(Node(name=n, state="IDLE", features=tuple(f.split(","))) for n, f in features.items()))


N4 = make_nodes("n0", "n1", "n2", "n3")

ROWS = r"""
# two racks of one row, and one that stands alone
SwitchName=rack1 Nodes=n[0-1] LinkSpeed=100
switchname=rack2 \
    nodes=n2          # keys in any case, a line in two
BlockSizes=2,4
BlockName=rack3 Nodes="n3"
SwitchName=row1 Switches=rack[1-2]
"""


def test_a_file_of_racks_and_rows_gives_domains() -> None:
    assert topology_from_file(ROWS, "/etc/racks.conf", N4) == Topology(
        source="file",
        racks=(
            Domain(name="rack1", nodes=("n0", "n1"), parent="row1"),
            Domain(name="rack2", nodes=("n2",), parent="row1"),
            Domain(name="rack3", nodes=("n3",)),
            Domain(name="row1", nodes=("n0", "n1", "n2"), level=1),
        ),
    )


def test_the_level_of_a_switch_is_above_its_highest_child() -> None:
    text = "SwitchName=a Nodes=n0\nSwitchName=b Nodes=n1\nSwitchName=r Switches=a\nSwitchName=top Switches=r,b\n"
    levels = {rack.name: (rack.level, rack.parent) for rack in topology_from_file(text, "f", N4).racks}
    assert levels == {"a": (0, "r"), "b": (0, "top"), "r": (1, "top"), "top": (2, "")}


def test_unknown_nodes_are_left_out_with_a_remark() -> None:
    found = topology_from_file(
        "SwitchName=r1 Nodes=n[0-1],gone[1-7]\nSwitchName=r2 Nodes=lost\n", "/etc/racks.conf", N4
    )
    assert found == Topology(
        source="file",
        racks=(Domain(name="r1", nodes=("n0", "n1")),),
        remarks=("/etc/racks.conf: no such node here: gone[1-5] and 3 more", "/etc/racks.conf: in no rack: n[2-3]"),
    )


def test_a_file_without_known_nodes_gives_no_topology() -> None:
    found = topology_from_file("SwitchName=r1 Nodes=x\n", "f", N4)
    assert (found.source, found.racks, found.remarks[0]) == ("", (), "f: no such node here: x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=r1 Nodes=n0\nSwitchName=r2 Nodes=n[0-1]\n", "line 2: node 'n0' is in 'r1' and in 'r2'"),
        ("SwitchName=r1 Nodes=n0\n\nSwitchName=r1 Nodes=n1\n", "line 3: 'r1' is described in line 1 already"),
        ("SwitchName=r1 Nodes=n[0-\n", "line 1: 'n[0-' in host list 'n[0-' is not a host name or range"),
        ("SwitchName=r1\n", "line 1: 'r1' needs either Nodes= or Switches="),
        ("SwitchName=r1 Nodes=n0 Switches=r2\n", "line 1: 'r1' needs either Nodes= or Switches="),
        ("Nodes=n0\n", "line 1: no SwitchName="),
        ("rack1: n0 n1\n", "line 1: 'rack1:' is not one of SwitchName=, Nodes=, Switches=, BlockName="),
        ("include more.conf\n", "line 1: 'include' is not one of"),
        ("SwitchName=row Switches=r1\n", "line 1: 'row' lies over 'r1', which the file does not describe"),
        (
            "SwitchName=r Nodes=n0\nSwitchName=a Switches=r\nSwitchName=b Switches=r\n",
            "line 3: 'r' is under 'a' and under 'b'",
        ),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "line 1: 'a' is under itself"),
        ("SwitchName=a Switches=a\n", "line 1: 'a' is under itself"),
        (
            "SwitchName=r Nodes=n0\nSwitchName=a Switches=r,b\nSwitchName=b Switches=a\n",
            "line 1: above 'r' a switch is under itself",
        ),
    ],
)
def test_an_invalid_file_is_refused_with_line_and_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        topology_from_file(text, "/etc/racks.conf", N4)
    assert str(caught.value).startswith(f"/etc/racks.conf: {message}")
    assert "docs/placement.md" in caught.value.hint


@settings(max_examples=settings.default.max_examples // 3)
@given(text=st.text(alphabet="SwitchNameods=[]-,\\#\n 0123", max_size=120))
def test_any_text_gives_a_topology_or_an_error_with_its_line(text: str) -> None:
    try:
        found = topology_from_file(text, "f", N4)
    except ConfigError as error:
        assert str(error).startswith("f: line ")
    else:
        assert {name for rack in found.racks for name in rack.nodes} <= {"n0", "n1", "n2", "n3"}


def test_node_features_give_racks_and_rows() -> None:
    given_nodes = make_nodes(n0="a100,rack1,row1", n1="rack1,row1", n2="rack2,row1", n3="rack3,row2")
    assert topology_from_features("rack, row", given_nodes) == Topology(
        source="features",
        racks=(
            Domain(name="rack1", nodes=("n0", "n1"), parent="row1"),
            Domain(name="rack2", nodes=("n2",), parent="row1"),
            Domain(name="rack3", nodes=("n3",), parent="row2"),
            Domain(name="row1", nodes=("n0", "n1", "n2"), level=1),
            Domain(name="row2", nodes=("n3",), level=1),
        ),
    )


def test_nodes_with_no_feature_or_two_features_of_a_level_give_remarks() -> None:
    found = topology_from_features("rack", make_nodes("n9", n0="rack1,rack2", n1="rack2", n2="rack"))
    assert found == Topology(
        source="features",
        racks=(Domain(name="rack1", nodes=("n0",)), Domain(name="rack2", nodes=("n1",))),
        remarks=(
            "placement.topology_features=rack: several features of one level, the first counts: n0",
            "placement.topology_features=rack: in no rack: n[9,2]",
        ),
    )


def test_a_rack_in_two_rows_has_no_parent() -> None:
    racks = topology_from_features("rack,row", make_nodes(n0="rack1,row1", n1="rack1,row2")).racks
    assert [(rack.name, rack.parent) for rack in racks] == [("rack1", ""), ("row1", ""), ("row2", "")]


def test_a_prefix_that_no_feature_has_gives_no_topology() -> None:
    assert topology_from_features("rack", N4) == Topology(
        remarks=("placement.topology_features=rack: in no rack: n[0-3]",)
    )
