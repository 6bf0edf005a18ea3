"""Which partitions --partition=auto may choose: by access, limits and time, and none to anyone's disadvantage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.placement.partition_choice import (
    MOST_LISTED,
    PartitionNeeds,
    PartitionUser,
    SuitablePartitions,
    find_earlier_partition,
    find_suitable_partitions,
    rank_partitions,
)

HOUR = 3600
ADA = PartitionUser(groups=frozenset({"ada", "vision"}))
NEEDS = PartitionNeeds(nodes=1, time_limit_s=HOUR)
GPU = Partition(name="gpu", default=True)


def choose(
    *partitions: Partition,
    needs: PartitionNeeds = NEEDS,
    user: PartitionUser = ADA,
    gpus: dict[str, str] | None = None,
    **more: Any,
) -> SuitablePartitions:
    """Choose on a cluster with these partitions. `gpus`: the type of GPU by partition."""
    nodes = [Node(name=p, state="IDLE", gpus=8, gpu_type=t, partitions=(p,)) for p, t in (gpus or {}).items()]
    default = next((one.name for one in partitions if one.default), "")
    snapshot = Snapshot(taken_at=0.0, nodes=tuple(nodes), partitions=partitions, default_partition=default, **more)
    return find_suitable_partitions(snapshot, needs, user, ("prerun",))


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        (Partition(name="x", state="DOWN"), "its state is DOWN"),
        (Partition(name="x", hidden=True), "it is hidden"),
        (Partition(name="x", root_only=True), "it is for root only"),
        (Partition(name="x", needs_reservation=True), "its jobs need a reservation"),
        (Partition(name="x", allow_groups=("physics", "bio")), "it is for the groups physics, bio"),
        (Partition(name="x", max_time_s=600), "its MaxTime is 10 min"),
        (Partition(name="x", min_nodes=2), "a job has at least 2 nodes there"),
        (Partition(name="x", priority_tier=2), "its PriorityTier is above that of gpu"),
        (
            Partition(name="x", billing_weights=(("cpu", 1.0), ("gres/gpu", 2.0))),
            "it is billed higher than gpu (TRESBillingWeights)",
        ),
        (Partition(name="prerun"), "the site keeps it for pre-runs"),
    ],
)  # fmt: skip
def test_a_partition_is_left_out_with_its_reason(partition: Partition, reason: str) -> None:
    found = choose(GPU, partition)
    assert found == SuitablePartitions(names=("gpu",), left_out={partition.name: reason})


@pytest.mark.parametrize(
    "partition",
    [
        Partition(name="x", allow_groups=("vision",)),
        Partition(name="x", allow_accounts=("physics",)),  # the user's default account is not known: Slurm decides
        Partition(name="x", max_time_s=HOUR),
        Partition(name="x", priority_tier=1, billing_weights=(("cpu", 0.5),)),
        Partition(name="x", preempt_mode="REQUEUE"),  # nothing is preempted without PreemptType
    ],
)
def test_a_partition_may_be_chosen(partition: Partition) -> None:
    assert choose(GPU, partition).names == ("gpu", "x")


def test_a_named_account_or_qos_that_a_partition_does_not_take_excludes_it() -> None:
    theirs = replace(ADA, account="vision", qos="normal")
    found = choose(
        GPU,
        Partition(name="physics", allow_accounts=("physics",)),
        Partition(name="both", allow_accounts=("Physics", "Vision"), deny_qos=("scavenger",)),
        Partition(name="denied", deny_accounts=("vision",)),
        Partition(name="urgent", allow_qos=("high",)),
        user=theirs,
    )
    assert found.names == ("gpu", "both")
    assert found.left_out["denied"] == "it is not for the account vision"
    assert found.left_out["urgent"] == "it is not for the QOS normal"


def test_limits_per_node_exclude_a_partition() -> None:
    needs = replace(NEEDS, cpus_per_node=16, mem_mib_per_node=64_000)
    small = Partition(name="small", max_cpus_per_node=8)
    light = Partition(name="light", max_mem_mib_per_node=32_000)
    assert choose(GPU, small, light, needs=needs).names == ("gpu",)


def test_preemptible_partitions_need_the_users_consent() -> None:
    idle = Partition(name="idle", priority_tier=0, preempt_mode="REQUEUE")
    killed = Partition(name="killed", priority_tier=0, preempt_mode="CANCEL")
    found = choose(GPU, idle, killed, preempts=True)
    assert found.names == ("gpu",)
    assert found.left_out["idle"].endswith("--preemptible allows it")
    agreed = choose(GPU, idle, killed, needs=replace(NEEDS, preemptible=True), preempts=True)
    assert agreed.names == ("gpu", "idle")  # a job that is cancelled does not go on


def test_a_default_partition_without_gpus_is_no_measure_for_a_gpu_job() -> None:
    billed = (("cpu", 1.0), ("gres/gpu", 16.0))
    gpu, long = (Partition(name=name, billing_weights=billed) for name in ("gpu", "gpu-long"))
    found = choose(
        Partition(name="normal", default=True), gpu, long,
        needs=replace(NEEDS, gpus=True, any_gpu_type=True), gpus={"gpu": "a100", "gpu-long": "a100"},
    )  # fmt: skip
    assert found == SuitablePartitions(names=("gpu", "gpu-long"), left_out={"normal": "it has no GPUs"})


def test_a_job_that_names_no_type_gets_no_other_gpus_than_in_the_default_partition() -> None:
    partitions, types = (GPU, Partition(name="old")), {"gpu": "a100", "old": "rtx2080"}
    found = choose(*partitions, needs=replace(NEEDS, gpus=True, any_gpu_type=True), gpus=types)
    assert found.names == ("gpu",)
    assert found.left_out["old"].startswith("it has other GPUs than gpu (rtx2080)")
    # With a type or a feature, Slurm decides which partitions have it.
    assert choose(*partitions, needs=replace(NEEDS, gpus=True), gpus=types).names == ("gpu", "old")


def test_without_a_time_limit_the_default_limit_must_suffice() -> None:
    brief = Partition(name="brief", default_time_s=600)
    unlimited, expected = PartitionNeeds(nodes=1), PartitionNeeds(nodes=1, run_s=500.0)
    assert choose(GPU, brief, needs=unlimited).left_out == {"brief": "without --time a job ends there after 10 min"}
    assert choose(GPU, brief, needs=expected).names == ("gpu", "brief")
    assert choose(replace(GPU, default_time_s=600), brief, needs=unlimited).names == ("gpu", "brief")


def test_without_a_usable_default_partition_the_cheapest_one_is_the_measure() -> None:
    dear = Partition(name="dear", billing_weights=(("cpu", 4.0),))
    cheap, same = Partition(name="cheap"), Partition(name="same")
    assert choose(replace(GPU, state="DOWN"), dear, cheap, same).names == ("cheap", "same")
    assert choose(dear, cheap).names == ("cheap",)
    assert choose(dear).names == ("dear",)


def test_the_earliest_start_is_first_and_the_list_is_short() -> None:
    names = tuple("abcdef")
    assert rank_partitions(names, {"a": 9000.0, "b": 1030.0, "c": 1010.0, "e": 2000.0}, 1000.0) == ("b", "c", "e", "a")
    assert len(rank_partitions(names, {}, 0.0)) == MOST_LISTED


@pytest.mark.parametrize(
    ("current", "other", "told"),
    [(4 * HOUR, 1 * HOUR, True), (4 * HOUR, 3.5 * HOUR, False), (900, 400, False), (900, 0, True)],
)
def test_an_advice_needs_a_material_difference(current: float, other: float, told: bool) -> None:
    assert (find_earlier_partition(1e9 + current, {"x": 1e9 + other}, 1e9) == "x") is told
    assert find_earlier_partition(1e9 + current, {}, 1e9) == ""
