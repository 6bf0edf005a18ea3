"""Snapshots of a real Slurm that knows no network, with reservations, as an ordinary user sees it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started

pytestmark = pytest.mark.lab
ALICE = USERS[0]

# Printed by a process of alice's: permissions are a part of what is tested.
TELL = """
import os, sys
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.site_topology import SiteRacks
snapshot = SlurmCommands(os.environ, network=SiteRacks(sys.argv[1], sys.argv[2], print)).snapshot()
topology = snapshot.topology
print(topology.source, [(rack.name, rack.nodes) for rack in topology.racks], topology.remarks)
print([(one.name, one.nodes, sorted(one.flags), one.cpus, one.end - one.start) for one in snapshot.reservations])
print([(partition.name, partition.state) for partition in snapshot.partitions], snapshot.max_switch_wait_s)
"""


@pytest.fixture(scope="module")
def flat(lab_scratch: Path) -> Iterator[Lab]:
    """Four nodes, no topology plugin."""
    with started(lab_scratch / "flat", "--topology", "none", "--nodes", "4", "--gpus", "2", "--no-hooks") as running:
        yield running


def told(lab: Lab, file: str = "", features: str = "") -> list[str]:
    done = lab.run([sys.executable, "-c", TELL, file, features], ALICE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def changed(lab: Lab, *arguments: str) -> None:
    done = lab.run(["scontrol", *arguments])
    assert done.returncode == 0, done.stdout + done.stderr


def test_slurm_without_a_topology_costs_the_topology_alone(flat: Lab) -> None:
    lines = told(flat)
    assert lines == [" [] ()", "[]", "[('gpu', 'UP'), ('prerun', 'UP')] 3600"]


def test_racks_of_node_features_stand_in_for_it(flat: Lab) -> None:
    for node, feature in (("n[0-1]", "rack1"), ("n2", "rack2")):
        changed(flat, "update", f"NodeName={node}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}")
    assert told(flat, features="rack")[0] == (
        "features [('rack1', ('n0', 'n1')), ('rack2', ('n2',))] ('placement.topology_features=rack: in no rack: n3',)"
    )


def test_racks_of_the_sites_file_stand_in_for_it(flat: Lab) -> None:
    file = flat.dir / "racks.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-2]\nSwitchName=r2 Nodes=n3,gone\n")
    assert told(flat, file=str(file))[0] == (
        f"file [('r1', ('n0', 'n1', 'n2')), ('r2', ('n3',))] ('{file}: no such node here: gone',)"
    )


def test_reservations_are_seen_by_everyone_with_nodes_flags_and_what_they_take(flat: Lab) -> None:
    when = ("StartTime=now+7200", "Duration=60", "Users=root")
    changed(flat, "create", "reservation", "ReservationName=m", "Nodes=n[1-2]", "Flags=MAINT,IGNORE_JOBS", *when)
    changed(flat, "create", "reservation", "ReservationName=some", "Nodes=n3", "CoreCnt=4", *when)
    try:
        assert told(flat)[1] == (
            "[('m', ('n1', 'n2'), ['IGNORE_JOBS', 'MAINT', 'SPEC_NODES'], 64, 3600), "
            "('some', ('n3',), ['SPEC_NODES'], 4, 3600)]"
        )
    finally:
        for name in ("m", "some"):
            changed(flat, "delete", f"ReservationName={name}")


def test_partition_that_is_hidden_or_down_is_known_all_the_same(flat: Lab) -> None:
    changed(flat, "update", "PartitionName=prerun", "Hidden=YES", "State=DOWN")
    try:
        assert told(flat)[2] == "[('gpu', 'UP'), ('prerun', 'DOWN')] 3600"
    finally:
        changed(flat, "update", "PartitionName=prerun", "Hidden=NO", "State=UP")


def explained(lab: Lab, file: Path) -> str:
    gsub = [
        sys.executable,
        "-m",
        "slurmwrap.gsub.gsub_main",
        "--prerun=off",
        "--explain",
        "--hold",
        "-N2",
        "--gpus-per-node=1",
    ]
    done = lab.run([*gsub, "--wrap", "true"], ALICE, env={"SLURMWRAP_PLACEMENT_TOPOLOGY_FILE": str(file)})
    assert done.returncode == 0, done.stderr
    lab.run(["scancel", done.stdout.split()[-1]])
    return " ".join(done.stderr.split())  # as one line: it is folded for people


def test_gsub_tells_a_bad_file_of_racks_and_goes_on_without_it(flat: Lab) -> None:
    file = flat.dir / "bad.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-1]\nSwitchName=r2 Nodes=n1\n")
    said = explained(flat, file)
    assert f"{file}: line 2: node 'n1' is in 'r1' and in 'r2'; placing without it" in said


def test_gsub_explains_what_is_odd_about_the_file_of_racks(flat: Lab) -> None:
    file = flat.dir / "good.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-1]\nSwitchName=r2 Nodes=n2\n")
    assert "in no rack: n3" in explained(flat, file)
