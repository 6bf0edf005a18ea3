"""Synergy-Tune in one round. Servers of 8 GPUs, 24 CPUs, 512,000 MiB: a share is 3 CPUs and 64,000 MiB."""

from __future__ import annotations

from allocate_cases import claim, points, server, servers

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation


def given(grants: tuple[Allocation, ...]) -> list[tuple[float, int, tuple[str, ...]]]:
    return [(grant.cpus, grant.mem_mib, grant.servers) for grant in grants]


def test_the_best_demand_as_long_as_it_fits_then_an_earlier_one_gives_back() -> None:
    queue = [claim(str(number), "hungry") for number in range(3)]
    assert given(allocate(queue[:2], servers(1), "tune")) == [(12, 64_000, ("n0",)), (12, 64_000, ("n0",))]
    assert given(allocate(queue, servers(1), "tune")) == [
        (3, 64_000, ("n0",)),
        (12, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
    ]


def test_the_victim_with_most_cpus_gives_back_first_and_only_as_many_as_needed() -> None:
    greedy = points((3, 64_000, 1.0), (14, 64_000, 4.0))
    milder = points((3, 64_000, 1.0), (10, 64_000, 3.0))
    queue = [claim("a", speeds=milder), claim("b", speeds=greedy), claim("c")]
    assert given(allocate(queue, servers(1), "tune")) == [
        (10, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
        (3, 64_000, ("n0",)),
    ]


def test_a_job_below_its_share_keeps_its_small_demand_and_is_no_victim() -> None:
    queue = [claim("l", "light"), *(claim(str(number), "hungry") for number in range(7))]
    grants = allocate(queue, servers(1), "tune")
    assert given(grants)[0] == (1, 20_000, ("n0",))
    assert all(grant.servers for grant in grants)
    assert sum(grant.cpus for grant in grants) <= 24


def test_everybody_has_a_place_when_all_gpus_are_asked_for() -> None:
    queue = [claim(str(number), ("hungry", "learned", "light", "")[number % 4]) for number in range(32)]
    assert all(grant.servers for grant in allocate(queue, servers(4), "tune"))


def test_memory_is_given_back_too() -> None:
    queue = [claim("m", "learned"), claim("n", "learned"), *(claim(str(number)) for number in range(6))]
    grants = allocate(queue, servers(1), "tune")
    assert [grant.mem_mib for grant in grants[:2]] == [64_000, 64_000]
    assert all(grant.servers for grant in grants)


def test_where_not_even_the_share_fits_the_job_waits_with_its_share() -> None:
    (grant,) = allocate([claim("a", "hungry")], [server(free=0)], "tune")
    assert (grant.cpus, grant.servers) == (3, ())


def test_a_share_is_whole_cpus() -> None:
    """20 CPUs for 8 GPUs: the share of one is 2, and all eight have a place."""
    queue = [claim(str(number), "hungry") for number in range(8)]
    grants = allocate(queue, [server(cpus=20)], "tune")
    assert all(grant.servers for grant in grants)
    assert min(grant.cpus for grant in grants) == 2


def test_a_job_whose_limits_forbid_its_share_keeps_what_it_asks() -> None:
    (grant,) = allocate([claim("a", "hungry", cpus=2, most_cpus=2.0)], servers(1), "tune")
    assert grant.cpus == 2
