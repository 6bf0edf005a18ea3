"""What one job may be given where leases end. A share is 3 CPUs and 64,000 MiB; a CPU costs 1, a MiB nearly nothing."""

from __future__ import annotations

from allocate_cases import claim, points, server

from slurmwrap.placement.allocation_options import AllocationOption, Prices, share_of
from slurmwrap.placement.demand import JobDemand
from slurmwrap.sim.mechanism.lease_assignment import Menu, make_menu

PRICES = Prices(cpu=1.0, mib=1e-6)


def menu(one: JobDemand) -> Menu:
    return make_menu(one, share_of(one, [server()]), PRICES)


def given(rungs: tuple[AllocationOption, ...]) -> list[tuple[float, int]]:
    return [(rung.cpus, rung.mem_mib) for rung in rungs]


def test_the_floor_is_the_cheapest_as_fast_as_the_share() -> None:
    one = menu(claim("a", speeds=points((1, 20_000, 0.9), (2, 40_000, 1.0), (3, 64_000, 1.0))))
    assert given(one.options) == [(2, 40_000)]
    assert one.floor == one.steps[0] == one.options[0]


def test_what_needs_more_than_the_share_of_anything_is_no_floor_however_cheap() -> None:
    """Else not everybody's floor would fit where everybody's share does."""
    one = menu(claim("a", speeds=points((1, 128_000, 1.0), (3, 64_000, 1.0))))
    assert given(one.options) == [(1, 128_000), (3, 64_000)]
    assert given(one.steps) == [(3, 64_000)]


def test_steps_go_by_speed_and_not_by_its_logarithm() -> None:
    """From 3 to 6 CPUs the speed gains 1 in 3, to 12 it gains 4 in 9: by logarithms 6 would come first."""
    one = menu(claim("a", speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0), (12, 64_000, 5.0))))
    assert given(one.steps) == [(3, 64_000), (12, 64_000)]
    assert given(one.options) == [(3, 64_000), (6, 64_000), (12, 64_000)]
    assert one.steps[1].gain == 4 / 9


def test_nothing_is_offered_that_is_no_faster_than_what_needs_less() -> None:
    one = menu(claim("a", speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0), (6, 128_000, 2.0), (9, 64_000, 1.9))))
    assert given(one.options) == [(3, 64_000), (6, 64_000)]


def test_limits_hold_and_where_they_forbid_the_share_the_job_keeps_what_it_asks() -> None:
    speeds = points((2, 64_000, 0.8), (3, 64_000, 1.0), (6, 64_000, 2.0))
    assert given(menu(claim("a", speeds=speeds, most_cpus=5.0)).steps) == [(3, 64_000)]
    assert given(menu(claim("a", speeds=speeds, cpus=2, most_cpus=2.0)).steps) == [(2, 64_000)]


def test_least_amounts_raise_the_floor() -> None:
    one = claim("a", "light", least_cpus=2.0, least_mem_mib=30_000)
    assert given(menu(one).steps) == [(2, 30_000)]


def test_a_job_of_a_whole_server_keeps_its_share() -> None:
    assert given(menu(claim("a", "light", gpus_per_node=8)).steps) == [(3, 64_000)]


def test_where_the_speed_at_the_share_is_unknown_it_keeps_what_it_asks() -> None:
    one = menu(claim("a", cpus=2, speeds=points((4, 64_000, 1.0), (6, 64_000, 2.0))))
    assert given(one.steps) == given(one.options) == [(2, 64_000)]
    assert one.floor.speed is None


def test_nothing_is_known_of_a_job_that_fits_nowhere() -> None:
    one = claim("a", "hungry", gpus_per_node=16)
    assert given(make_menu(one, None, PRICES).steps) == [(3, 64_000)]
