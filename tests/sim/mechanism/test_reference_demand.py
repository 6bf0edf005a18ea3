"""The best amount for a job in Synergy's mechanisms.

A server has 8 GPUs, 24 CPUs and 512,000 MiB. A share is 3 CPUs and 64,000 MiB.
"""

from __future__ import annotations

import pytest
from allocate_cases import points, server

from slurmwrap.placement.demand import JobDemand
from slurmwrap.sim.mechanism.reference_mechanisms import Amount, compute_best_amount

HUNGRY = points((3, 64_000, 1.0), (9, 64_000, 2.0), (12, 128_000, 3.0), (24, 128_000, 3.0))
MEMORY = points((3, 64_000, 1.0), (6, 192_000, 2.5))


def compute_amount(gpus: int, speeds: tuple = HUNGRY) -> Amount:
    return compute_best_amount(
        JobDemand(job="a", gpus_per_node=gpus, cpus=3.0, mem_mib=64_000, speeds=speeds), server()
    )


def test_the_best_amount_has_the_fewest_cpus_of_the_fastest_points() -> None:
    assert compute_amount(1) == Amount(cpus=12, mem_mib=128_000, speed=3.0)


def test_speed_is_relative_to_the_share() -> None:
    assert compute_amount(1, points((3, 64_000, 2.0), (12, 64_000, 5.0))).speed == 2.5


@pytest.mark.parametrize(
    ("gpus", "speed"), [(2, 3.0), (4, 1 + 2 / 3), (8, 1.0)], ids=["fits", "half of the CPUs", "its share is all"]
)
def test_if_one_server_has_too_few_cpus_the_speed_is_interpolated_linearly(gpus: int, speed: float) -> None:
    given = compute_amount(gpus)
    assert given == Amount(cpus=24 / max(gpus, 2), mem_mib=512_000 / max(gpus, 4), speed=pytest.approx(speed))


def test_missing_memory_does_not_reduce_the_speed_if_the_cpus_suffice() -> None:
    assert compute_amount(4, MEMORY) == Amount(cpus=6, mem_mib=128_000, speed=2.5)


def test_a_job_with_more_gpus_than_a_server_has_at_most_its_share() -> None:
    light = points((1, 16_000, 1.0))
    assert compute_amount(16) == Amount(cpus=3, mem_mib=64_000, speed=1.0)
    assert compute_amount(16, light) == Amount(cpus=1, mem_mib=16_000, speed=1.0)


def test_without_a_profile_the_best_amount_is_the_share_with_unknown_speed() -> None:
    assert compute_amount(1, ()) == compute_amount(1, points((12, 128_000, 3.0))) == Amount(cpus=3, mem_mib=64_000)
