"""Snapshots of a real Slurm without a topology, with reservations, taken by an ordinary user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from realslurm import USERS, Lab, started

pytestmark = pytest.mark.lab
ALICE = USERS[0]

# Runs as a process of alice: the permissions of an ordinary user are part of the test.
PROGRAM = """
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


def print_snapshot(lab: Lab, file: str = "", features: str = "") -> list[str]:
    done = lab.run([sys.executable, "-c", PROGRAM, file, features], ALICE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_scontrol(lab: Lab, *arguments: str) -> None:
    done = lab.run(["scontrol", *arguments])
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_topology_plugin_only_the_topology_is_missing(flat: Lab) -> None:
    lines = print_snapshot(flat)
    assert lines == [" [] ()", "[]", "[('gpu', 'UP'), ('prerun', 'UP')] 3600"]


def test_racks_from_node_features_replace_a_missing_topology(flat: Lab) -> None:
    for node, feature in (("n[0-1]", "rack1"), ("n2", "rack2")):
        run_scontrol(flat, "update", f"NodeName={node}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}")
    assert print_snapshot(flat, features="rack")[0] == (
        "features [('rack1', ('n0', 'n1')), ('rack2', ('n2',))] ('placement.topology_features=rack: in no rack: n3',)"
    )


def test_racks_from_the_sites_file_replace_a_missing_topology(flat: Lab) -> None:
    file = flat.dir / "racks.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-2]\nSwitchName=r2 Nodes=n3,gone\n")
    assert print_snapshot(flat, file=str(file))[0] == (
        f"file [('r1', ('n0', 'n1', 'n2')), ('r2', ('n3',))] ('{file}: no such node here: gone',)"
    )


def test_an_ordinary_user_sees_nodes_flags_and_cpus_of_reservations(flat: Lab) -> None:
    when = ("StartTime=now+7200", "Duration=60", "Users=root")
    run_scontrol(flat, "create", "reservation", "ReservationName=m", "Nodes=n[1-2]", "Flags=MAINT,IGNORE_JOBS", *when)
    run_scontrol(flat, "create", "reservation", "ReservationName=some", "Nodes=n3", "CoreCnt=4", *when)
    try:
        assert print_snapshot(flat)[1] == (
            "[('m', ('n1', 'n2'), ['IGNORE_JOBS', 'MAINT', 'SPEC_NODES'], 64, 3600), "
            "('some', ('n3',), ['SPEC_NODES'], 4, 3600)]"
        )
    finally:
        for name in ("m", "some"):
            run_scontrol(flat, "delete", f"ReservationName={name}")


def test_a_hidden_partition_that_is_down_is_in_the_snapshot(flat: Lab) -> None:
    run_scontrol(flat, "update", "PartitionName=prerun", "Hidden=YES", "State=DOWN")
    try:
        assert print_snapshot(flat)[2] == "[('gpu', 'UP'), ('prerun', 'DOWN')] 3600"
    finally:
        run_scontrol(flat, "update", "PartitionName=prerun", "Hidden=NO", "State=UP")


def explain(lab: Lab, file: Path) -> str:
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
    return " ".join(done.stderr.split())  # joined to one line: the output is wrapped


def test_gsub_reports_an_invalid_rack_file_and_continues_without_it(flat: Lab) -> None:
    file = flat.dir / "bad.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-1]\nSwitchName=r2 Nodes=n1\n")
    text = explain(flat, file)
    assert f"{file}: line 2: node 'n1' is in 'r1' and in 'r2'; placing without it" in text


def test_explain_names_nodes_that_the_rack_file_does_not_list(flat: Lab) -> None:
    file = flat.dir / "good.conf"
    file.write_text("SwitchName=r1 Nodes=n[0-1]\nSwitchName=r2 Nodes=n2\n")
    assert "in no rack: n3" in explain(flat, file)
