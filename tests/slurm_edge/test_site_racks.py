"""The site's own topology beside Slurm's: when it counts, and what a bad file costs."""

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


def test_what_slurm_knows_counts_and_the_file_is_not_even_read() -> None:
    said: list[str] = []
    assert SiteRacks("/nonexistent/racks.conf", "rack", said.append)(TREE, NODES) == TREE
    assert said == []


def test_nothing_configured_leaves_nothing_known() -> None:
    assert SiteRacks("", "")(Topology(), NODES) == Topology()


def test_features_are_taken_where_slurm_knows_nothing() -> None:
    assert SiteRacks("", "rack")(Topology(), NODES) == OF_FEATURES


def test_file_goes_before_features_and_is_read_once(tmp_path: Path) -> None:
    file = site_file(tmp_path, "SwitchName=r1 Nodes=n[0-1]\n")
    network = SiteRacks(file, "rack")
    expected = Topology(source="file", racks=(Domain(name="r1", nodes=("n0", "n1")),))
    assert network(Topology(), NODES) == expected
    Path(file).unlink()
    assert network(Topology(), NODES) == expected


def test_bad_file_is_told_once_and_jobs_are_placed_without_it(tmp_path: Path) -> None:
    file, said = site_file(tmp_path, "nonsense\n"), list[str]()
    network = SiteRacks(file, "", said.append)
    words = f"{file}: line 1: 'nonsense' is not one of SwitchName=, Nodes=, Switches=, BlockName=; placing without it"
    assert [network(Topology(), NODES) for _ in range(2)] == [Topology(remarks=(words,))] * 2
    assert said == [words]


def test_file_that_is_missing_relative_or_no_file_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    for file in ("/nonexistent/racks.conf", "racks.conf", str(tmp_path), "/dev/zero"):
        SiteRacks(file, "", said.append)(Topology(), NODES)
    assert said == [
        "/nonexistent/racks.conf: No such file or directory; placing without it",
        "placement.topology_file: 'racks.conf' is not an absolute path; placing without it",
        f"{tmp_path}: no file of at most 16 MiB; placing without it",
        "/dev/zero: no file of at most 16 MiB; placing without it",
    ]
