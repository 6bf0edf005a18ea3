"""Limits shown by `scontrol show assoc_mgr` become Quotas; the texts were captured from a real slurmctld."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.model.cluster import Node
from slurmwrap.model.limits import NO_LIMITS, Association, Limits, Qos, Quotas
from slurmwrap.slurm.assoc_mgr_parser import enforced, parse_limits
from slurmwrap.slurm.scontrol_parser import parse_nodes
from slurmwrap.slurm.snapshot import make_assoc_mgr_request

CAPTURES = Path(__file__).parents[1] / "data" / "slurm" / "22.05"
ALICE, BOB = ("alice", 1003), ("bob", 1004)


def captured(name: str) -> str:
    return (CAPTURES / name).read_text(encoding="utf-8")


def test_limits_of_parent_accounts_apply_minus_the_usage_of_others() -> None:
    lab = Limits(cpus_left=120 - 14, mem_mib_left=921_600 - 48_128)
    assert parse_limits(captured("assoc_mgr.txt"), *ALICE).associations == (
        Association(account="lab", limits=lab),
        Association(
            account="ml",
            partition="prerun",
            limits=Limits(cpus_per_job=4, mem_mib_per_job=16_384, cpus_left=106, mem_mib_left=873_472),
        ),
        Association(
            account="ml",
            default=True,
            limits=Limits(cpus_per_job=24, cpus_left=106, mem_mib_left=873_472),
        ),
    )


def test_each_qos_gives_what_is_left_for_the_user_and_the_account() -> None:
    big = Limits(
        cpus_per_job=16,
        mem_mib_per_job=204_800,
        cpus_per_node=12,
        cpus_left=32 - 8,  # MaxTRESPerUser; GrpTRES leaves 92
        mem_mib_left=300_000 - 40_960,
    )
    assert parse_limits(captured("assoc_mgr.txt"), *ALICE).qos == (
        Qos(name="normal", accounts={"ml": NO_LIMITS}, used=True),
        Qos(name="big", limits=big, accounts={"ml": Limits(cpus_left=56)}, used=True),
        Qos(name="part", limits=Limits(cpus_per_job=20, mem_mib_left=512_000)),
    )


def test_a_user_who_never_used_the_qos_gets_the_limit_shown_for_others() -> None:
    big = parse_limits(captured("assoc_mgr.txt"), "eve", 1005).qos[1]
    assert (big.limits.cpus_left, big.limits.mem_mib_left, big.used) == (32, 300_000, False)


def test_a_user_with_only_pending_jobs_has_no_usage() -> None:
    big = parse_limits(captured("assoc_mgr.txt"), *BOB).qos[1]
    assert (big.limits.cpus_left, big.limits.mem_mib_left, big.used) == (32, 300_000, True)


def test_with_private_usage_only_the_limits_of_accounts_are_unknown() -> None:
    private, open_ = (parse_limits(captured(name), *ALICE) for name in ("assoc_mgr_usage.txt", "assoc_mgr.txt"))
    assert [a.limits for a in private.associations] == [
        NO_LIMITS,
        Limits(cpus_per_job=4, mem_mib_per_job=16_384),
        Limits(cpus_per_job=24),
    ]
    assert private.qos == open_.qos


def test_associations_of_other_users_are_ignored() -> None:
    assert parse_limits(captured("assoc_mgr.txt"), "ali", 1003).associations == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Current Association Manager state\n\nNo associations currently cached in Slurm.\n\n\nNo QOS currently cached",
        "scontrol: error: unknown\nClusterName             = lab\nPartitionName=gpu QoS=N/A\n",
    ],
)
def test_without_accounting_there_are_no_quotas(text: str) -> None:
    assert parse_limits(text, *ALICE) == Quotas()


MINUTES = (
    "QOS=q(7) GrpTRES=cpu=N(0) GrpTRESMins=cpu=5000(1000) GrpTRESRunMins=cpu=3000(500),mem=800(900) MaxTRESPJ= "
    "MaxTRESMinsPJ=cpu=2600,mem=70 MinTRESPJ=cpu=4,mem=100 Account Limits=No Accounts User Limits=No Users"
)


def test_minutes_and_minimum_requests_are_limits_too() -> None:
    (qos,) = parse_limits(MINUTES, *ALICE).qos
    assert qos.limits == Limits(
        cpu_minutes_left=2500, mem_mib_minutes_left=0, least_cpus_per_job=4, least_mem_mib_per_job=100
    )


NEWER = (
    "ClusterName=c Account=ml UserName=alice(1003) Partition= Priority=0 ID=9 ParentAccount= Lineage=/ml/0-alice/ "
    "DefAssoc=Yes GrpTRES=cpu=20(5) MaxTRESPJ=cpu=9 MinPrioThresh= Comment=raise GrpTRES=cpu=999(0) UserName= \n"
    "QOS=q(7) GrpTRES=cpu=N(0) MaxTRESPJ= PreemptMode=OFF Priority=0 "
    "Account Limits= ml={MaxJobsPA=N(1) MaxTRESPA=cpu=64(8) MaxTRESRunMinsPA=cpu=N(1)} "
    "User Limits= bob(1004)={MaxJobsPU=N(1) MaxTRESPU=cpu=32(30) MaxTRESRunMinsPU=cpu=600(0)} "
    "alice(1003)={MaxJobsPU=N(1) MaxTRESPU=cpu=32(8) MaxTRESRunMinsPU=cpu=600(100)}\n"
)


def test_newer_releases_name_user_limit_and_running_minutes_and_end_with_a_comment() -> None:
    """The grammar of src/scontrol/info_assoc_mgr.c from 24.11 on; not captured."""
    assert parse_limits(NEWER, *ALICE) == Quotas(
        associations=(Association(account="ml", default=True, limits=Limits(cpus_per_job=9, cpus_left=15)),),
        qos=(
            Qos(
                name="q",
                limits=Limits(cpus_left=24, cpu_minutes_left=500),
                accounts={"ml": Limits(cpus_left=56)},
                used=True,
            ),
        ),
    )


@pytest.mark.parametrize(
    "limit", ["MaxTRESPJ=billing=100", "GrpTRES=cpu=N(1),billing=50(1)", "GrpTRESMins=billing=9(1)"]
)
def test_a_limit_on_billing_is_recorded(limit: str) -> None:
    (qos,) = parse_limits(f"QOS=q(7) {limit} PreemptMode=OFF", *ALICE).qos
    assert qos.limits.billed


def test_a_cycle_of_parent_accounts_ends() -> None:
    rows = (
        "ClusterName=c Account=a UserName= Partition= ParentAccount=b(2) GrpTRES=cpu=9(1)\n"
        "ClusterName=c Account=b UserName= Partition= ParentAccount=a(1) GrpTRES=cpu=7(1)\n"
        "ClusterName=c Account=a UserName=alice(1003) Partition= DefAssoc=Yes GrpTRES=cpu=N(1)\n"
    )
    (association,) = parse_limits(rows, *ALICE).associations
    assert association == Association(account="a", default=True, limits=Limits(cpus_left=6))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("associations,limits,qos", True),
        ("safe", True),
        ("all", True),
        ("associations", False),
        ("none", False),
        ("", False),
    ],
)
def test_limits_count_only_if_slurmctld_enforces_them(value: str, kept: bool) -> None:
    assert enforced({"AccountingStorageEnforce": value}) is kept


@pytest.mark.parametrize("user", ["", "a b", "x\nshow hostnames", "a;b", "a,b", "a=b"])
def test_a_user_name_with_special_characters_is_not_requested(user: str) -> None:
    assert make_assoc_mgr_request(user) == ""


def test_accounting_of_gpus_does_not_change_the_parsed_node() -> None:
    """AccountingStorageTRES=gres/gpu adds gres/gpu to CfgTRES and AllocTRES, which are not needed."""
    node = parse_nodes(captured("nodes_accounting.txt"))[0]
    assert isinstance(node, Node)
    assert (node.name, node.state, node.gpus, node.gpus_used, node.cpus_alloc, node.mem_alloc_mib) == (
        *("n0", "MIXED", 8, 2),
        *(14, 48_128),
    )
