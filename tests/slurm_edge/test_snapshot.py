"""A snapshot by two commands: the source of each part, and the result if Slurm refuses one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.errors import SlurmUnreachable
from slurmwrap.model.cluster import Partition, Reservation
from slurmwrap.model.topology import Block, Domain, Switch, Topology
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.site_topology import SiteRacks

NODES = "NodeName=n0 ActiveFeatures=rack1 State=IDLE"
TREE = "SwitchName=ib0 Level=0 Nodes=n0"
PARTITION = "PartitionName=p Default=YES MaxNodes=4"
CONFIG = "Configuration data as of 5\nClusterName             = c\nSchedulerParameters     = max_switch_wait=60"
RESERVATION = "ReservationName=r StartTime=1 EndTime=2 Nodes=n0 Flags=MAINT"
ANSWERS = {"topology": TREE, "partition": PARTITION, "config": CONFIG, "reservation": RESERVATION}


def slurm(tmp_path: Path, said: dict[str, str], end: str = "", **given: object) -> SlurmCommands:
    """A scontrol that answers each request on standard input from `said`, and writes only errors to stderr."""
    for name, text in {**said, "node": NODES}.items():
        (tmp_path / f"{name}.said").write_text(text + "\n")
    program = f"""#!/bin/sh
        echo "scontrol $*" >> {tmp_path}/calls
        if [ "$*" = "show node -d -o" ]; then cat {tmp_path}/node.said; exit; fi
        while read show what rest; do
            echo "$what" >> {tmp_path}/asked
            echo "scontrol: $show $what $rest"
            cat {tmp_path}/$what.said 2>/dev/null || echo "invalid entity:$what for keyword:show" >&2
        done
        {end}
    """
    (tmp_path / "scontrol").write_text(program)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    return SlurmCommands(environ, **given)  # type: ignore[arg-type]


def test_every_part_of_a_snapshot_comes_from_two_calls(tmp_path: Path) -> None:
    snapshot = slurm(tmp_path, ANSWERS).snapshot()
    assert [node.name for node in snapshot.nodes] == ["n0"]
    assert snapshot.topology == Topology(switches=(Switch(name="ib0", level=0, nodes=("n0",)),), source="tree")
    assert snapshot.partitions == (Partition(name="p", default=True, max_nodes=4),)
    assert snapshot.reservations == (Reservation(name="r", start=1, end=2, nodes=("n0",), flags=frozenset({"MAINT"})),)
    assert (snapshot.default_partition, snapshot.max_switch_wait_s) == ("p", 60)
    assert sorted((tmp_path / "calls").read_text().splitlines()) == ["scontrol -o", "scontrol show node -d -o"]


@pytest.mark.parametrize(
    ("line", "preempts"),
    [
        ("PreemptType             = preempt/none", False),
        ("PreemptType             = (null)", False),
        ("", False),
        ("PreemptType             = preempt/qos", True),
        ("PreemptType             = preempt/partition_prio", True),
    ],
)
def test_preemption_is_read_from_the_configuration(tmp_path: Path, line: str, preempts: bool) -> None:
    assert slurm(tmp_path, {**ANSWERS, "config": f"{CONFIG}\n{line}"}).snapshot().preempts is preempts


def test_a_partition_with_the_default_topology_has_none_of_its_own(tmp_path: Path) -> None:
    yaml = "---\n- topology: trees\n  cluster_default: true\n- topology: blocks\n  cluster_default: false\n...\n"
    both = "PartitionName=p Topology=trees\nPartitionName=q Topology=blocks\nPartitionName=r MaxNodes=UNLIMITED"
    snapshot = slurm(tmp_path, {**ANSWERS, "topoconf": yaml, "partition": both}).snapshot()
    assert [(p.name, p.topology) for p in snapshot.partitions] == [("p", ""), ("q", "blocks"), ("r", "")]


@pytest.mark.parametrize(("version", "asked"), [("22.05.8", 1), ("24.11.5", 1), ("25.05.1", 2), ("26.05.5", 2)])
def test_several_topologies_are_requested_only_from_releases_that_have_them(
    tmp_path: Path, version: str, asked: int
) -> None:
    adapter = slurm(tmp_path, {**ANSWERS, "config": f"{CONFIG}\nSLURM_VERSION           = {version}"})
    for _ in range(2):  # before the configuration is known, any release is possible
        adapter.snapshot()
    assert (tmp_path / "asked").read_text().split().count("topoconf") == asked


def test_the_configuration_is_requested_once(tmp_path: Path) -> None:
    adapter = slurm(tmp_path, ANSWERS)
    waits = [adapter.snapshot().max_switch_wait_s for _ in range(2)]
    asked = (tmp_path / "asked").read_text().split()
    assert (waits, asked.count("config"), asked.count("partition")) == ([60, 60], 1, 2)
    assert adapter.cluster_name() == "c"


@pytest.mark.parametrize("refused", list(ANSWERS))
def test_a_refused_request_loses_only_its_own_part(tmp_path: Path, refused: str) -> None:
    snapshot = slurm(tmp_path, {key: text for key, text in ANSWERS.items() if key != refused}, end="exit 1").snapshot()
    assert (bool(snapshot.topology.source), len(snapshot.partitions), len(snapshot.reservations)) == (
        refused != "topology",
        int(refused != "partition"),
        int(refused != "reservation"),
    )
    assert snapshot.max_switch_wait_s == (300 if refused == "config" else 60)


def test_lines_in_the_comment_of_a_reservation_add_no_other_records(tmp_path: Path) -> None:
    forged = (
        f"{RESERVATION} Comment=x\nPartitionName=forged Default=YES\n{TREE}\nConfiguration data as of 6\nSlurmUser = me"
    )
    adapter = slurm(tmp_path, {**ANSWERS, "reservation": forged})
    plain = slurm(tmp_path, {**ANSWERS, "reservation": forged}).snapshot()
    assert (plain.partitions, len(plain.topology.switches)) == ((Partition(name="p", default=True, max_nodes=4),), 1)
    adapter.snapshot()
    assert adapter.snapshot().partitions == plain.partitions  # also if the configuration was read before
    assert dict(adapter.config()) == {"ClusterName": "c", "SchedulerParameters": "max_switch_wait=60"}


def test_a_controller_that_is_lost_before_the_second_command_is_an_error(
    tmp_path: Path,
) -> None:
    words = "slurm_load_partitions error: Unable to contact slurm controller (connect failure)"
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller"):
        slurm(tmp_path, {}, end=f"echo '{words}' >&2; exit 1").snapshot()


def test_a_second_command_that_hangs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnreachable, match=r"no answer within 0\.5 s"):
        slurm(tmp_path, ANSWERS, end="sleep 60", timeout_s=0.5).snapshot()


def test_the_sites_racks_are_used_only_if_slurm_has_no_topology(tmp_path: Path) -> None:
    racks = SiteRacks("", "rack")
    without = {key: text for key, text in ANSWERS.items() if key != "topology"}
    blocks = {**ANSWERS, "topology": "BlockName=b1 BlockIndex=0 Nodes=n0 BlockSize=1"}
    assert slurm(tmp_path, without, network=racks).snapshot().topology == Topology(
        racks=(Domain(name="rack1", nodes=("n0",)),), source="features"
    )
    assert slurm(tmp_path, blocks, network=racks).snapshot().topology == Topology(
        blocks=(Block(name="b1", nodes=("n0",), size=1),), source="block"
    )
