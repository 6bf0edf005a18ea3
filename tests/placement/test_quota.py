"""Limits of QOS and association restrict what tuning adds, but not the request itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from placement_cases import IDLE, SHAPE, request

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Partition
from slurmwrap.model.limits import NO_LIMITS, Association, Limits, Qos, Quotas, strictest
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.plan_placement import plan
from slurmwrap.placement.quota import compute_limits, keep
from slurmwrap.placement.tuning_bounds import Bounds
from slurmwrap.sbatch.job_request import CpuUnit, MemUnit, OptionChange, ResourceShape

# 2 nodes of 4 GPUs each, -c8 and 64,000 MiB per node: 2 CPUs and 16,000 MiB per GPU, 16 CPUs and 128,000 MiB in all
WANTS = Bounds(cpus_per_gpu=4.0, mem_mib_per_gpu=24_000, cpu_reason="c", mem_reason="m")


@pytest.mark.parametrize(
    ("limits", "cpus", "mem"),
    [
        (Limits(), 4.0, 24_000),
        (Limits(cpus_per_job=32, mem_mib_per_job=192_000), 4.0, 24_000),
        (Limits(cpus_per_job=24), 3.0, 24_000),
        (Limits(cpus_left=24, mem_mib_left=160_000), 3.0, 20_000),
        (Limits(cpus_per_node=12, mem_mib_per_node=80_000), 3.0, 20_000),
        (Limits(cpus_per_job=16, mem_mib_per_job=128_000), None, None),
        (Limits(cpus_per_job=17), None, 24_000),  # not enough for one more CPU on each node
        (Limits(cpus_left=0, mem_mib_left=0), None, None),
        (Limits(cpu_minutes_left=24 * 60, mem_mib_minutes_left=160_000 * 60), 3.0, 20_000),
        (Limits(billed=True), None, None),
        (Limits(least_cpus_per_job=30, least_mem_mib_per_job=200_000), 4.0, 24_000),
    ],
)
def test_raised_cpus_and_memory_stop_at_the_limit(limits: Limits, cpus: float | None, mem: int | None) -> None:
    kept = keep(WANTS, replace(SHAPE, time_limit_s=3600), limits).given
    assert (kept.cpus_per_gpu, kept.mem_mib_per_gpu) == (cpus, mem)


def test_nothing_is_raised_if_minutes_are_limited_and_the_run_time_is_unknown() -> None:
    assert keep(WANTS, SHAPE, Limits(cpu_minutes_left=1_000_000)).given.cpus_per_gpu is None


@pytest.mark.parametrize(
    ("limits", "cpus", "mem"),
    [
        # a lower request is always allowed
        (Limits(cpus_per_job=1, mem_mib_per_job=1, cpus_left=0, billed=True), 1.0, 8_000),
        (Limits(least_cpus_per_job=12, least_mem_mib_per_job=96_001), 1.5, 12_001),
        (Limits(least_cpus_per_job=16, least_mem_mib_per_job=130_000), None, None),
    ],
)
def test_lowered_cpus_and_memory_stop_at_the_minimum_of_the_qos(
    limits: Limits, cpus: float | None, mem: int | None
) -> None:
    kept = keep(Bounds(cpus_per_gpu=1.0, mem_mib_per_gpu=8_000), SHAPE, limits).given
    assert (kept.cpus_per_gpu, kept.mem_mib_per_gpu) == (cpus, mem)


def test_memory_per_cpu_stays_within_the_limit_after_rounding() -> None:
    shape = ResourceShape(
        nodes=1, max_nodes=1, tasks_per_node=1, gpus=2, gpus_per_node=2, cpus=7, cpu_unit=CpuUnit.PER_TASK,
        mem_mib=1000, mem_unit=MemUnit.PER_CPU,
    )  # fmt: skip
    limit = 10_000
    given = keep(Bounds(mem_mib_per_gpu=9_000), shape, Limits(mem_mib_per_job=limit)).given
    assert given.mem_mib_per_gpu is not None
    per_cpu = -(-given.mem_mib_per_gpu * 2 // 7)
    assert per_cpu > 1000 and per_cpu * 7 <= limit


def cpus(value: int) -> Limits:
    return Limits(cpus_per_job=value)


GPU, LONG = Partition(name="gpu"), Partition(name="long", qos="Part")
QUOTAS = Quotas(
    associations=(
        Association(account="ml", default=True, limits=cpus(50)),
        Association(account="ml", partition="long", limits=cpus(40)),
        Association(account="bio", limits=cpus(60)),
    ),
    qos=(
        Qos(name="normal", limits=cpus(70), used=True, accounts={"bio": Limits(cpus_left=5)}),
        Qos(name="big", limits=cpus(30)),
        Qos(name="part", limits=cpus(20)),
    ),
)


@pytest.mark.parametrize(
    ("options", "partitions", "least"),
    [
        ({}, [GPU], cpus(50)),
        ({}, [GPU, LONG], cpus(20)),  # both associations, and the QOS of partition long
        ({"account": "ML"}, [GPU], cpus(50)),
        ({"account": "bio"}, [GPU], Limits(cpus_per_job=60, cpus_left=5)),
        ({"account": "other"}, [GPU], Limits(cpus_per_job=50, cpus_left=5)),  # not visible: all limits count
        ({"qos": "big"}, [GPU], cpus(30)),
        ({"qos": "unseen"}, [GPU], cpus(50)),
    ],
)
def test_the_strictest_limit_that_may_apply_is_used(
    options: dict[str, str], partitions: list[Partition], least: Limits
) -> None:
    assert compute_limits(request(options=options), partitions, QUOTAS) == least


def test_a_given_qos_and_account_override_those_of_the_request() -> None:
    assert compute_limits(request(options={"qos": "normal"}), [GPU], QUOTAS, qos="big", account="bio") == cpus(30)


def test_an_association_with_the_partition_replaces_the_general_association() -> None:
    known = Quotas(
        associations=(
            Association(account="ml", default=True, limits=cpus(10)),
            Association(account="ml", partition="long", limits=cpus(40)),
        )
    )
    assert compute_limits(request(), [LONG], known) == cpus(40)


def test_all_qos_count_if_the_user_has_no_jobs() -> None:
    known = Quotas(qos=(Qos(name="a", limits=cpus(70)), Qos(name="b", limits=Limits(mem_mib_left=9))))
    assert compute_limits(request(), [GPU], known) == Limits(cpus_per_job=70, mem_mib_left=9)


def test_no_limits_if_nothing_is_known() -> None:
    assert compute_limits(request(), [GPU], Quotas()) == NO_LIMITS
    assert strictest() == NO_LIMITS


HUNGRY = ResourceProfile(key="k", cpus_per_gpu=4.0, mem_mib_per_gpu=20_000, runs=5)


def list_tuned_options(quotas: Quotas) -> list[OptionChange]:
    tuned_plan = plan(request(), HUNGRY, replace(IDLE, quotas=quotas), [], Config())
    return [wish for wish in tuned_plan.lines if wish.option in ("cpus-per-task", "mem")]


def test_the_plan_stays_within_the_limits_and_gives_the_reason() -> None:
    def limited(**limits: int) -> Quotas:
        return Quotas(qos=(Qos(name="normal", limits=Limits(**limits)),))

    free = {wish.option: wish.value for wish in list_tuned_options(Quotas())}
    assert free == {"cpus-per-task": "16", "mem": "96000M"}
    assert {w.option: w.value for w in list_tuned_options(limited(cpus_per_job=25))} == free | {"cpus-per-task": "12"}
    held = list_tuned_options(limited(cpus_left=10, mem_mib_left=0))
    assert [(wish.option, wish.value) for wish in held] == [("cpus-per-task", None), ("mem", None)]
    assert held[0].reason == "QOS and association leave 10 CPUs, no more than it asked for"
