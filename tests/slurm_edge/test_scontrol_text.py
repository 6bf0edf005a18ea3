"""Output of scontrol in three releases is parsed into the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.model.cluster import Node, Partition
from slurmwrap.slurm.scontrol_parser import parse_config, parse_nodes, parse_partitions

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"
RELEASES = ["22.05", "24.11", "26.05"]


def captured(release: str, name: str) -> str:
    return (CAPTURES / release / name).read_text(encoding="utf-8")


def idle(name: str, **changes: object) -> Node:
    values = {"cpus": 32, "gpus": 8, "partitions": ("gpu",), "state": "IDLE", "sockets": 2, **changes}
    return Node(name=name, mem_mib=256000, gpu_type="a100", address="127.0.0.1", **values)  # type: ignore[arg-type]


FORGED = "slurmwrap: Xid 79 State=IDLE [root@1795224560]        NodeName=n9 State=IDLE"


def test_nodes_of_22_05_are_read_and_a_forged_reason_changes_nothing() -> None:
    assert parse_nodes(captured("22.05", "nodes.txt")) == (
        idle("n0"),
        idle("n1", flags=frozenset({"DRAIN"}), reason=FORGED),
        idle("n2"),
        idle("n3", cpus=64, partitions=("ht",)),
    )


def test_nodes_of_24_11_are_read() -> None:
    out = frozenset({"DRAIN", "NOT_RESPONDING"})
    assert parse_nodes(captured("24.11", "nodes.txt")) == (
        idle("n0", gpus=4),
        idle("n1", gpus=4, state="UNKNOWN", flags=out, reason=FORGED),
        idle("n2", gpus=4),
        idle("n3", gpus=4, cpus=64, partitions=("ht",)),
    )


def test_nodes_of_26_05_are_read() -> None:
    out = frozenset({"DRAIN", "NOT_RESPONDING"})
    assert parse_nodes(captured("26.05", "nodes.txt")) == (
        idle("n0", gpus=4, state="UNKNOWN", flags=frozenset({"NOT_RESPONDING"})),
        idle("n1", gpus=4, state="UNKNOWN", flags=out, reason=FORGED),
        idle("n2", gpus=4),
        idle("n3", gpus=4, cpus=64, partitions=("ht",)),
    )


BUSY = (
    "NodeName=g1 Arch=x86_64 CPUAlloc=48 CPUEfctv=62 CPUTot=64 ActiveFeatures=a100,ib Gres=gpu:a100:8(S:0-1) "
    "GresUsed=gpu:a100:3(IDX:0,2-3) NodeAddr=10.0.0.1 OS=Linux 6.1 #1 SMP  RealMemory=512000 AllocMem=100000 "
    "MemSpecLimit=4000 State=MIXED Partitions=gpu,long  BootTime=1"
)


def test_a_busy_node_has_free_resources_without_what_slurm_reserves() -> None:
    (node,) = parse_nodes(BUSY)
    assert node == Node(
        name="g1",
        state="MIXED",
        cpus=62,
        cpus_alloc=48,
        mem_mib=508000,
        mem_alloc_mib=100000,
        gpus=8,
        gpus_used=3,
        gpu_type="a100",
        partitions=("gpu", "long"),
        features=("a100", "ib"),
        gpu_sockets=(0, 0, 0, 0, 1, 1, 1, 1),
        gpus_used_at=(0, 2, 3),
        address="10.0.0.1",
    )
    assert (node.gpus_free, node.cpus_free, node.mem_free_mib, node.usable) == (5, 14, 408000, True)


@pytest.mark.parametrize(
    ("gres", "count", "kind"),
    [
        ("(null)", 0, ""),
        ("gpu:4", 4, ""),
        ("gpu:a100:8(S:0-1)", 8, "a100"),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", 4, "a100"),
        ("gpu:a100:4,gpu:h100:4,nvme:1T", 8, "a100,h100"),
        ("gpu:1g.10gb:7,shard:16", 7, "1g.10gb"),
        ("nvme:2", 0, ""),
    ],
)
def test_gres_is_counted_in_every_notation(gres: str, count: int, kind: str) -> None:
    (node,) = parse_nodes(f"NodeName=n Gres={gres} State=IDLE")
    assert (node.gpus, node.gpu_type) == (count, kind)


@pytest.mark.parametrize(
    ("state", "base", "flags", "usable"),
    [
        ("IDLE", "IDLE", set(), True),
        ("MIXED+PLANNED", "MIXED", {"PLANNED"}, True),
        ("ALLOCATED+COMPLETING", "ALLOCATED", {"COMPLETING"}, True),
        ("IDLE+DRAIN", "IDLE", {"DRAIN"}, False),
        ("DOWN*+DRAIN", "DOWN", {"DRAIN", "NOT_RESPONDING"}, False),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}, False),
        ("IDLE+MAINT", "IDLE", {"MAINTENANCE"}, False),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", {"CLOUD", "POWERED_DOWN"}, False),
        ("IDLE+REBOOT_ISSUED", "IDLE", {"REBOOT"}, False),
        ("UNKNOWN+NOT_RESPONDING", "UNKNOWN", {"NOT_RESPONDING"}, False),
    ],
)
def test_state_is_split_into_base_and_flags(state: str, base: str, flags: set[str], usable: bool) -> None:
    (node,) = parse_nodes(f"NodeName=n State={state} Partitions=gpu")
    assert (node.state, set(node.flags), node.usable) == (base, flags, usable)


def test_a_reason_cannot_add_a_field_to_a_node() -> None:
    (node,) = parse_nodes("NodeName=n RealMemory=1000 State=IDLE Reason=x MemSpecLimit=900 Gres=gpu:8 Partitions=gpu")
    assert (node.mem_mib, node.gpus, node.partitions) == (1000, 0, ())


def test_a_comment_that_imitates_a_reason_is_ignored() -> None:
    (node,) = parse_nodes("NodeName=n State=IDLE Comment=x Reason=slurmwrap: forged State=DOWN")
    assert (node.state, node.reason) == ("IDLE", "")


@pytest.mark.parametrize("release", RELEASES)
def test_partitions_are_read_in_every_release(release: str) -> None:
    assert parse_partitions(captured(release, "partitions.txt")) == (
        Partition(name="gpu", default=True, total_nodes=3),
        Partition(name="ht", total_nodes=1),
    )


def test_limits_of_a_partition_are_read() -> None:
    line = "PartitionName=p Default=NO MaxNodes=4 MaxCPUsPerNode=24 Nodes=n[0-3] MaxMemPerCPU=4000 TRES=cpu=96"
    limits = Partition(name="p", max_nodes=4, max_cpus_per_node=24, max_mem_mib_per_cpu=4000)
    assert parse_partitions(line) == (limits,)
    assert parse_partitions(line + " MaxTime=1-00:30:00 ")[0].max_time_s == 88_200


@pytest.mark.parametrize(("release", "name"), [("22.05", "edge"), ("24.11", "trixie"), ("26.05", "forky")])
def test_configuration_is_read_in_every_release(release: str, name: str) -> None:
    config = parse_config(captured(release, "config.txt"))
    assert (config["ClusterName"], config["SlurmUser"], config["MinJobAge"]) == (name, "root(0)", "300 sec")


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_configured_hooks_are_read_in_every_release(release: str) -> None:
    config = parse_config(captured(release, "lab/config.txt"))
    assert {key: config[key] for key in ("Prolog", "Epilog", "EpilogSlurmctld", "SlurmctldHost")} == {
        "Prolog": "/lab/hooks/prolog",
        "Epilog": "/lab/hooks/epilog",
        "EpilogSlurmctld": "/lab/hooks/epilog_slurmctld",
        "SlurmctldHost": "host(127.0.0.1)",
    }


def test_numbered_configuration_keys_become_one_key_with_all_values() -> None:
    text = "Prolog[0]               = /ours\nProlog[1]               = /site/a*\nPrologFlags             = Alloc[x]\n"
    assert parse_config(text) == {"Prolog": "/ours,/site/a*", "PrologFlags": "Alloc[x]"}
