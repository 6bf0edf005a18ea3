"""sbatch accepts a request with a placement plan if it accepts the request without one: random requests, real sbatch.

The cluster has every kind of limit that a plan could exceed: partitions with few nodes, CPUs or memory, one that
allocates whole nodes only, features, reservations, and nodes that are partly or fully used. Racks are tested twice: as
switches that Slurm knows, and as node features that only slurmwrap reads.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from plan_requests import find_broken_plans, make_trials
from realslurm import USERS, Lab, started
from waiting import allow, wait_for

from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.topology import Domain, Topology
from slurmwrap.slurm.commands import SlurmCommands

pytestmark = [pytest.mark.lab, pytest.mark.timeout(allow(900))]
USED = {"n0": 3, "n1": 6, "n2": 8, "n4": 1, "n5": 4}  # GPUs of running jobs
PARTITIONS = (
    "PartitionName=small Nodes=n[0-3] MaxNodes=2 MaxTime=60 State=UP",
    "PartitionName=lean Nodes=n[2-9] MaxCPUsPerNode=16 MaxMemPerNode=90000 State=UP",
    "PartitionName=alone Nodes=n[4-9] OverSubscribe=EXCLUSIVE MaxMemPerCPU=4000 State=UP",
)


@pytest.fixture(scope="module")
def limits(lab_scratch: Path) -> Iterator[Lab]:
    """Ten nodes with all these limits. Slurm refuses a request above the limit of a partition at once."""
    with started(lab_scratch / "limits", "--nodes", "10", "--no-hooks") as lab:
        enforce(lab, "ANY")
        for partition in PARTITIONS:
            _run_scontrol(lab, "create", *partition.split())
        for at in range(10):
            features = "rack1,old" if at < 5 else "rack2"
            _run_scontrol(
                lab, "update", f"NodeName=n{at}", f"AvailableFeatures={features}", f"ActiveFeatures={features}"
            )
        when = ("StartTime=now+1hour", "Duration=60")
        _run_scontrol(lab, "create", "reservation=service", *when, "Nodes=n9", "Flags=MAINT", "Users=root")
        _run_scontrol(
            lab, "create", "reservation=course", "StartTime=now", "Duration=600", "Nodes=n8", f"Users={USERS[0]}"
        )
        jobs = []
        for node, gpus in USED.items():
            options = (
                f"--nodelist={node}",
                f"--gres=gpu:{gpus}",
                f"--cpus-per-task={4 * gpus}",
                f"--mem={30_000 * gpus}",
            )
            jobs.append(lab.submit(*options, "--output=/dev/null", user=USERS[0], script="#!/bin/sh\nsleep 86400\n"))
        for job in jobs:
            lab.wait_job(job, ("RUNNING",))
        yield lab


def enforce(lab: Lab, limits: str) -> None:
    """Sets EnforcePartLimits."""
    conf = lab.dir / "etc" / "slurm.conf"
    kept = [line for line in conf.read_text().splitlines() if not line.startswith("EnforcePartLimits=")]
    conf.write_text("\n".join([*kept, f"EnforcePartLimits={limits}", ""]))
    _run_scontrol(lab, "reconfigure")


def _run_scontrol(lab: Lab, *words: str) -> None:
    done = lab.run(["scontrol", *words])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def snapshot(limits: Lab) -> Snapshot:
    slurm = SlurmCommands({**os.environ, **limits.env})
    return wait_for(slurm.snapshot, lambda now: sum(node.gpus_used for node in now.nodes) == 22, 60)


def replace_topology_by_features(snapshot: Snapshot) -> Snapshot:
    """The same cluster without switches in Slurm, with racks as node features."""
    racks = tuple(
        Domain(name=rack, nodes=tuple(n.name for n in snapshot.nodes if rack in n.features))
        for rack in ("rack1", "rack2")
    )
    return replace(snapshot, topology=Topology(racks=racks, source="features"))


def get_account() -> Mapping[str, object]:
    """An ordinary user: partition limits do not apply to root."""
    entry = pwd.getpwnam(USERS[0])
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def assert_plans_are_accepted(lab: Lab, snapshot: Snapshot, seeds: range, at_least: int) -> None:
    """`at_least`: minimum number of plans of accepted requests that must change something; fewer would test nothing."""
    broken, changed = find_broken_plans(list(make_trials(snapshot, seeds)), {**os.environ, **lab.env}, get_account())
    assert not broken, "\n".join(broken[:20])
    assert changed >= at_least, changed


def test_sbatch_accepts_a_request_with_a_plan_if_it_accepts_the_plain_request(limits: Lab, snapshot: Snapshot) -> None:
    assert_plans_are_accepted(limits, snapshot, range(48), 15)
    assert_plans_are_accepted(limits, replace_topology_by_features(snapshot), range(1000, 1030), 10)


@pytest.mark.slow
def test_sbatch_accepts_requests_with_a_plan_where_a_core_has_two_threads(lab_scratch: Path) -> None:
    """Slurm allocates all CPUs of a core to one job, each with its --mem-per-cpu, which is more than requested."""
    with started(lab_scratch / "threads", "--nodes", "10", "--threads", "2", "--no-hooks") as lab:
        for partition in PARTITIONS:
            _run_scontrol(lab, "create", *partition.split())
        assert_plans_are_accepted(lab, SlurmCommands({**os.environ, **lab.env}).snapshot(), range(250, 300), 10)


@pytest.mark.slow
def test_sbatch_accepts_thousands_of_requests_with_a_plan(limits: Lab, snapshot: Snapshot) -> None:
    assert_plans_are_accepted(limits, snapshot, range(2_000, 6_000), 1000)
    assert_plans_are_accepted(limits, replace_topology_by_features(snapshot), range(10_000, 13_000), 750)
    enforce(limits, "ALL")  # with ALL, each of several partitions must be able to run the job
    assert_plans_are_accepted(limits, snapshot, range(20_000, 23_000), 500)
    enforce(limits, "ANY")
