"""The site's own topology: when it is used instead of Slurm's, and errors in its file."""

from __future__ import annotations

from pathlib import Path

from slurmwrap.model.cluster import Node
from slurmwrap.model.topology import Domain, Switch, Topology
from slurmwrap.slurm.site_topology import SiteRacks

NODES = (Node(name="n0", state="IDLE", features=("rack7",)), Node(name="n1", state="IDLE", features=("rack8",)))
TREE = Topology(switches=(Switch(name="ib0", level=0, nodes=("n0", "n1")),), source="tree")
OF_FEATURES = Topology(
    source="features", racks=(Domain(name="rack7", nodes=("n0",)), Domain(name="rack8", nodes=("n1",)))
)


def site_file(tmp_path: Path, text: str) -> str:
    (tmp_path / "racks.conf").write_text(text)
    return str(tmp_path / "racks.conf")


def test_if_slurm_has_a_topology_the_file_is_not_read() -> None:
    messages: list[str] = []
    assert SiteRacks("/nonexistent/racks.conf", "rack", messages.append)(TREE, NODES) == TREE
    assert messages == []


def test_without_configuration_no_topology_is_known() -> None:
    assert SiteRacks("", "")(Topology(), NODES) == Topology()


def test_features_are_used_if_slurm_has_no_topology() -> None:
    assert SiteRacks("", "rack")(Topology(), NODES) == OF_FEATURES


def test_the_file_has_priority_over_features_and_is_read_once(tmp_path: Path) -> None:
    file = site_file(tmp_path, "SwitchName=r1 Nodes=n[0-1]\n")
    network = SiteRacks(file, "rack")
    expected = Topology(source="file", racks=(Domain(name="r1", nodes=("n0", "n1")),))
    assert network(Topology(), NODES) == expected
    Path(file).unlink()
    assert network(Topology(), NODES) == expected


def test_an_invalid_file_is_reported_once_and_not_used(tmp_path: Path) -> None:
    file, messages = site_file(tmp_path, "nonsense\n"), list[str]()
    network = SiteRacks(file, "", messages.append)
    words = f"{file}: line 1: 'nonsense' is not one of SwitchName=, Nodes=, Switches=, BlockName=; placing without it"
    assert [network(Topology(), NODES) for _ in range(2)] == [Topology(remarks=(words,))] * 2
    assert messages == [words]


def test_a_missing_relative_or_non_regular_file_is_reported(tmp_path: Path) -> None:
    messages: list[str] = []
    for file in ("/nonexistent/racks.conf", "racks.conf", str(tmp_path), "/dev/zero"):
        SiteRacks(file, "", messages.append)(Topology(), NODES)
    assert messages == [
        "/nonexistent/racks.conf: No such file or directory; placing without it",
        "placement.topology_file: 'racks.conf' is not an absolute path; placing without it",
        f"{tmp_path}: no file of at most 16 MiB; placing without it",
        "/dev/zero: no file of at most 16 MiB; placing without it",
    ]
