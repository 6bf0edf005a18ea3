"""Synergy-Tune in one round.

The servers have 8 GPUs, 24 CPUs and 512,000 MiB. The share of one GPU is 3 CPUs and 64,000 MiB.
"""

from __future__ import annotations

from allocate_cases import claim, points, server, servers

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation


def get_allocations(grants: tuple[Allocation, ...]) -> list[tuple[float, int, tuple[str, ...]]]:
    return [(grant.cpus, grant.mem_mib, grant.servers) for grant in grants]


def test_each_job_gets_its_best_demand_until_none_fits_then_an_earlier_job_is_cut() -> None:
    queue = [claim(str(number), "hungry") for number in range(3)]
    assert get_allocations(allocate(queue[:2], servers(1), "tune")) == [(12, 64_000, ("n0",)), (12, 64_000, ("n0",))]
    assert get_allocations(allocate(queue, servers(1), "tune")) == [
        (3, 64_000, ("n0",)),
        (12, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
    ]


def test_the_job_with_the_most_cpus_is_cut_first_and_only_as_many_as_needed() -> None:
    greedy = points((3, 64_000, 1.0), (14, 64_000, 4.0))
    milder = points((3, 64_000, 1.0), (10, 64_000, 3.0))
    queue = [claim("a", speeds=milder), claim("b", speeds=greedy), claim("c")]
    assert get_allocations(allocate(queue, servers(1), "tune")) == [
        (10, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
    ]


def test_a_job_below_its_share_is_not_cut() -> None:
    queue = [claim("l", "light"), *(claim(str(number), "hungry") for number in range(7))]
    grants = allocate(queue, servers(1), "tune")
    assert get_allocations(grants)[0] == (1, 20_000, ("n0",))
    assert all(grant.servers for grant in grants)
    assert sum(grant.cpus for grant in grants) <= 24


def test_every_job_is_placed_when_all_gpus_are_requested() -> None:
    queue = [claim(str(number), ("hungry", "learned", "light", "")[number % 4]) for number in range(32)]
    assert all(grant.servers for grant in allocate(queue, servers(4), "tune"))


def test_memory_is_cut_too() -> None:
    queue = [claim("m", "learned"), claim("n", "learned"), *(claim(str(number)) for number in range(6))]
    grants = allocate(queue, servers(1), "tune")
    assert [grant.mem_mib for grant in grants[:2]] == [64_000, 64_000]
    assert all(grant.servers for grant in grants)


def test_a_job_waits_with_its_share_if_the_share_does_not_fit() -> None:
    (grant,) = allocate([claim("a", "hungry")], [server(free=0)], "tune")
    assert (grant.cpus, grant.servers) == (3, ())


def test_a_share_is_a_whole_number_of_cpus() -> None:
    """With 20 CPUs for 8 GPUs the share of one GPU is 2 CPUs, and all eight jobs are placed."""
    queue = [claim(str(number), "hungry") for number in range(8)]
    grants = allocate(queue, [server(cpus=20)], "tune")
    assert all(grant.servers for grant in grants)
    assert min(grant.cpus for grant in grants) == 2


def test_a_job_whose_limits_are_below_its_share_keeps_its_request() -> None:
    (grant,) = allocate([claim("a", "hungry", cpus=2, most_cpus=2.0)], servers(1), "tune")
    assert grant.cpus == 2


def test_a_job_below_its_share_stays_below_it_when_another_job_does_not_fit() -> None:
    """The second job asks for more CPUs than are left. Raising the first job to its share would not help it."""
    given, waiting = allocate([claim("l", "light"), claim("b", cpus=24)], servers(1), "tune")
    assert (given.cpus, given.mem_mib) == (1, 20_000)
    assert waiting.servers == ()
