"""Allocation options of one job with leases.

A share is 3 CPUs and 64,000 MiB. A CPU costs 1, a MiB nearly nothing.
"""

from __future__ import annotations

from allocate_cases import claim, points, server

from slurmwrap.placement.allocation_options import AllocationOption, Prices, share_of
from slurmwrap.placement.demand import JobDemand
from slurmwrap.sim.mechanism.lease_assignment import Menu, make_menu

PRICES = Prices(cpu=1.0, mib=1e-6)


def make_job_menu(job_menu: JobDemand) -> Menu:
    return make_menu(job_menu, share_of(job_menu, [server()]), PRICES)


def list_amounts(options: tuple[AllocationOption, ...]) -> list[tuple[float, int]]:
    return [(option.cpus, option.mem_mib) for option in options]


def test_the_minimum_option_is_the_cheapest_that_is_as_fast_as_the_share() -> None:
    job_menu = make_job_menu(claim("a", speeds=points((1, 20_000, 0.9), (2, 40_000, 1.0), (3, 64_000, 1.0))))
    assert list_amounts(job_menu.options) == [(2, 40_000)]
    assert job_menu.floor == job_menu.steps[0] == job_menu.options[0]


def test_the_minimum_option_exceeds_the_share_in_no_resource() -> None:
    """Otherwise the minimum options of all jobs might not fit where their shares fit."""
    job_menu = make_job_menu(claim("a", speeds=points((1, 128_000, 1.0), (3, 64_000, 1.0))))
    assert list_amounts(job_menu.options) == [(1, 128_000), (3, 64_000)]
    assert list_amounts(job_menu.steps) == [(3, 64_000)]


def test_steps_maximize_the_gain_of_speed_and_not_of_its_logarithm() -> None:
    """To 6 CPUs the speed gains 1 per 3 CPUs, to 12 it gains 4 per 9; by logarithms 6 would come first."""
    job_menu = make_job_menu(claim("a", speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0), (12, 64_000, 5.0))))
    assert list_amounts(job_menu.steps) == [(3, 64_000), (12, 64_000)]
    assert list_amounts(job_menu.options) == [(3, 64_000), (6, 64_000), (12, 64_000)]
    assert job_menu.steps[1].gain == 4 / 9


def test_options_that_need_more_without_being_faster_are_left_out() -> None:
    job_menu = make_job_menu(
        claim("a", speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0), (6, 128_000, 2.0), (9, 64_000, 1.9)))
    )
    assert list_amounts(job_menu.options) == [(3, 64_000), (6, 64_000)]


def test_limits_below_the_share_leave_only_the_request() -> None:
    speeds = points((2, 64_000, 0.8), (3, 64_000, 1.0), (6, 64_000, 2.0))
    assert list_amounts(make_job_menu(claim("a", speeds=speeds, most_cpus=5.0)).steps) == [(3, 64_000)]
    assert list_amounts(make_job_menu(claim("a", speeds=speeds, cpus=2, most_cpus=2.0)).steps) == [(2, 64_000)]


def test_least_cpus_and_memory_raise_the_minimum_option() -> None:
    job_menu = claim("a", "light", least_cpus=2.0, least_mem_mib=30_000)
    assert list_amounts(make_job_menu(job_menu).steps) == [(2, 30_000)]


def test_a_job_of_a_whole_server_keeps_its_share() -> None:
    assert list_amounts(make_job_menu(claim("a", "light", gpus_per_node=8)).steps) == [(3, 64_000)]


def test_a_job_keeps_its_request_if_the_speed_at_the_share_is_unknown() -> None:
    job_menu = make_job_menu(claim("a", cpus=2, speeds=points((4, 64_000, 1.0), (6, 64_000, 2.0))))
    assert list_amounts(job_menu.steps) == list_amounts(job_menu.options) == [(2, 64_000)]
    assert job_menu.floor.speed is None


def test_a_job_that_fits_on_no_server_keeps_its_request() -> None:
    job_menu = claim("a", "hungry", gpus_per_node=16)
    assert list_amounts(make_menu(job_menu, None, PRICES).steps) == [(3, 64_000)]
