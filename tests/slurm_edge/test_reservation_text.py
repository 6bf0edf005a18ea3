"""`scontrol show reservation -o` and further fields of partitions and nodes, on captures of three releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmwrap.model.cluster import Partition, Reservation
from slurmwrap.slurm.scontrol_parser import parse_max_switch_wait_s, parse_nodes, parse_partitions, parse_reservations

CAPTURES = Path(__file__).parents[1] / "data" / "slurm"
HOUR = 3600
FREE = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), max_size=60) | st.sampled_from(
    [
        " State=DOWN Default=NO",
        " Gres=gpu:9 MemSpecLimit=9",
        " Nodes=n[0-999]",
        " Flags=MAINT",
        " Weight=7 Sockets=9",
        " Comment=x Reason=y",
    ]
)


def captured(name: str) -> str:
    return (CAPTURES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("capture", "start", "nodes"),
    [
        ("22.05", 1795260624, ("n0", "n3")),
        ("24.11/block", 1795261359, ("n4", "n5")),
        ("26.05/block", 1795261376, ("n4", "n5")),
    ],
)
def test_reservations_are_read_in_every_release_and_a_forged_comment_adds_none(
    capture: str, start: int, nodes: tuple[str, ...]
) -> None:
    maintenance, part, tres = parse_reservations(captured(f"{capture}/reservations.txt"))
    assert maintenance == Reservation(
        name="maint1",
        start=start,
        end=start + HOUR,
        nodes=("n1", "n2"),
        flags=frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}),
        cpus=64,
    )
    assert (part.name, len(part.nodes), part.cpus, part.flags) == ("part", 1, 4, frozenset({"SPEC_NODES"}))
    assert (tres.nodes, tres.flags, tres.end - tres.start) == (nodes, frozenset({"DAILY", "REPLACE_DOWN"}), HOUR)


@pytest.mark.parametrize("text", ["", "No reservations in the system\n", "ReservationName=\n"])
def test_no_reservations_are_an_empty_result(text: str) -> None:
    assert parse_reservations(text) == ()


def test_a_reservation_of_licenses_only_has_no_nodes() -> None:
    line = "ReservationName=lic StartTime=10 EndTime=20 Duration=10 Nodes=(null) NodeCnt=0 Flags=ANY_NODES,LICENSE_ONLY"
    flags = frozenset({"ANY_NODES", "LICENSE_ONLY"})
    assert parse_reservations(line) == (Reservation(name="lic", start=10, end=20, flags=flags),)


RESERVED = "ReservationName=r StartTime=10 EndTime=20 Duration=10 Nodes=n[1-2] NodeCnt=2 Flags=MAINT TRES=cpu=64"


@given(comment=FREE)
def test_the_comment_of_a_reservation_changes_no_other_field(comment: str) -> None:
    assert parse_reservations(f"{RESERVED} Comment={comment}\n") == parse_reservations(RESERVED)


def test_a_comment_line_that_copies_its_own_reservation_is_ignored() -> None:
    stale = RESERVED.replace("n[1-2]", "n9")
    assert parse_reservations(f"{RESERVED} Comment=was\n{stale}\n") == parse_reservations(RESERVED)


LIVE = (
    "NodeName=n1 CoresPerSocket=16 CPUAlloc=3 CPUTot=32 ActiveFeatures=ib Gres=gpu:a100:4(S:0-1) "
    "GresUsed=gpu:a100:1(IDX:2) RealMemory=1000 AllocMem=5 Sockets=2 State=MIXED Weight=3 Partitions=gpu "
)


@given(reason=FREE, comment=FREE, extra=FREE)
def test_free_text_of_a_node_changes_no_other_field(reason: str, comment: str, extra: str) -> None:
    (plain,) = parse_nodes(LIVE)
    (node,) = parse_nodes(f"{LIVE} Reason={reason} [root@1] Comment={comment} Extra={extra}\n")
    assert replace(node, reason="") == plain


@given(feature=FREE, partition=FREE)
def test_features_and_partition_names_with_blanks_change_no_other_field_of_a_node(feature: str, partition: str) -> None:
    # 22.05: scontrol update accepts such features, and scontrol create such a name
    (plain,) = parse_nodes(LIVE)
    text = LIVE.replace("Features=ib", f"Features=a{feature}").replace("Partitions=gpu", f"Partitions=p{partition}")
    (node,) = parse_nodes(text)
    assert replace(node, features=(), partitions=()) == replace(plain, features=(), partitions=())


PARTITION = (
    "PartitionName=p AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A MaxNodes=4 "
    "MaxTime=01:00:00 MinNodes=2 Nodes=n[0-3] OverSubscribe=NO State=UP TotalCPUs=96 MaxMemPerNode=UNLIMITED"
)


ACCESS = ("allow_groups", "allow_accounts", "deny_accounts", "allow_qos", "deny_qos")


@given(name=FREE, accounts=FREE)
def test_names_and_accounts_with_blanks_change_no_other_field_of_a_partition(name: str, accounts: str) -> None:
    forged = PARTITION.replace("=p ", f"=p{name} ", 1).replace("Accounts=ALL", f"Accounts=a{accounts} Exclusive=NODE")
    (found,) = parse_partitions(forged)
    found = replace(found, **dict.fromkeys(ACCESS, ()))
    assert found == Partition(name=f"p{name}", default=True, max_nodes=4, max_time_s=HOUR, min_nodes=2)


def test_a_partition_says_who_may_use_it_and_what_it_bills() -> None:
    line = (
        "PartitionName=p AllowGroups=ml,vision DenyAccounts=guests,my labs AllowQos=ALL AllocNodes=ALL Default=NO "
        "QoS=N/A DefaultTime=00:05:00 Hidden=YES RootOnly=YES ReqResv=YES TRES=cpu=8 "
        "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.0"
    )
    assert parse_partitions(line) == (
        Partition(
            name="p",
            allow_groups=("ml", "vision"),
            deny_accounts=("guests", "my labs"),
            hidden=True,
            root_only=True,
            needs_reservation=True,
            default_time_s=300,
            billing_weights=(("cpu", 1.0), ("memG", 0.25), ("gres/gpu", 2.0)),
        ),
    )


def test_a_comment_line_that_copies_an_earlier_node_is_ignored() -> None:
    stale = LIVE.replace("State=MIXED", "State=DOWN")
    assert parse_nodes(f"{LIVE} Comment=was\n{stale}\n") == parse_nodes(LIVE)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_node_has_sockets_weight_features_and_allocated_gpus(release: str) -> None:
    nodes = {node.name: node for node in parse_nodes(captured(f"{release}/block/nodes.txt"))}
    assert list(nodes) == [f"n{index}" for index in range(12)]
    busy = nodes["n6"]
    assert (busy.sockets, busy.gpu_sockets, busy.gpus_used, busy.gpus_used_at) == (2, (0, 0, 1, 1), 1, (2,))
    assert (nodes["n3"].gpus_used, nodes["n3"].gpus_used_at) == (3, (0, 1, 2))
    assert [nodes[name].weight for name in ("n0", "n1", "n10")] == [1, 2, 1]
    assert (nodes["n0"].state, nodes["n0"].gpus, nodes["n0"].features) == ("IDLE", 4, ("rack1", "ib"))
    assert {node.gpus for node in nodes.values()} == {4}  # comments and extras forged 9 and 64


@pytest.mark.parametrize(
    ("gres", "sockets"),
    [
        ("gpu:a100:8(S:0-1)", (0, 0, 0, 0, 1, 1, 1, 1)),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", (0, 0, 1, 1)),
        ("gpu:a100:2(S:1),nvme:1(S:0),gpu:h100:1(S:0)", (1, 1, 0)),
        ("gpu:4(S:0,2)", (0, 0, 2, 2)),
        ("gpu:a100:3(S:0-1)", ()),  # not divisible: Slurm does not show the socket of each GPU
        ("gpu:a100:2(S:0),gpu:h100:2", ()),
        ("gpu:a100:4", ()),
        ("gpu:4000000000(S:0)", ()),
    ],
)
def test_sockets_of_gpus_are_known_only_if_slurm_shows_them(gres: str, sockets: tuple[int, ...]) -> None:
    assert parse_nodes(f"NodeName=n Gres={gres} State=IDLE")[0].gpu_sockets == sockets


@pytest.mark.parametrize(
    ("used", "count", "at"),
    [
        ("gpu:a100:0(IDX:N/A)", 0, ()),
        ("gpu:a100:3(IDX:0-1,5)", 3, (0, 1, 5)),
        ("gpu:a100:1(IDX:4),gpu:h100:2(IDX:0-1),shard:8(0/2)", 3, (0, 1, 4)),
        ("gpu:a100:2", 2, ()),  # a node that does not answer
        ("gpu:a100:2(IDX:0-999999999)", 2, ()),
        ("gpu:a100:2(IDX:7-)", 2, ()),
    ],
)
def test_indices_of_allocated_gpus_are_known_if_slurm_shows_them(used: str, count: int, at: tuple[int]) -> None:
    (node,) = parse_nodes(f"NodeName=n Gres=gpu:a100:8 GresUsed={used} State=IDLE")
    assert (node.gpus_used, node.gpus_used_at) == (count, at)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_whole_node_partition_is_recognised_in_either_wording(release: str) -> None:
    assert parse_partitions(captured(f"{release}/block/partitions.txt")) == (
        Partition(name="gpu", default=True, total_nodes=12),
        Partition(name="whole", max_time_s=HOUR, min_nodes=2, exclusive=True, total_nodes=12),
        Partition(name="hid", state="DOWN", total_nodes=2, hidden=True),
    )


def test_a_partition_names_its_own_topology_and_qos() -> None:
    found = {p.name: (p.topology, p.qos) for p in parse_partitions(captured("26.05/several/partitions.txt"))}
    assert found == {"gpu": ("", ""), "whole": ("", ""), "hid": ("", ""), "onblocks": ("blocks", "")}
    assert parse_partitions("PartitionName=p QoS=part Exclusive=TOPO State=DRAIN ") == (
        Partition(name="p", qos="part", state="DRAIN"),
    )


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [
        ("sched_interval=2,max_switch_wait=3600", 3600),
        ("max_switch_wait=0", 0),
        ("bf_max_switch_wait=9,max_switch_wait=x", 300),
        ("(null)", 300),
    ],
)
def test_max_switch_wait_is_the_sites_or_slurms_default(parameters: str, seconds: int) -> None:
    assert parse_max_switch_wait_s({"SchedulerParameters": parameters}) == seconds
    assert parse_max_switch_wait_s({}) == 300
