"""Simulated node failures and lemon nodes."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.sim_nodes import (
    Hardware,
    count_wanted_nodes,
    draw_hardware,
    draw_nodes,
    draw_struck_node,
    draw_time_to_failure,
)
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

DEFAULT = FailureSettings()
SERVERS = make_equal_servers(1000, gpus=8, cpus=24, mem_gb=500)
NONE = frozenset[int]()


def make_hardware(lemons: frozenset[int] = NONE) -> Hardware:
    return replace(draw_hardware(SERVERS, DEFAULT, 1), lemons=lemons)


def test_the_number_of_lemon_nodes_matches_the_published_share() -> None:
    counts = [len(draw_hardware(SERVERS, DEFAULT, seed).lemons) for seed in range(20)]
    assert all(11 <= count <= 18 for count in counts)
    assert len(set(counts)) > 1


def test_the_failure_rate_and_the_share_of_lemon_nodes_match_the_publication() -> None:
    whole = draw_hardware(SERVERS, DEFAULT, 1)
    lemons = sum(DEFAULT.lemon_share) / 2 * len(SERVERS)
    by_lemons, by_others = lemons * whole.lemon_rate, (len(SERVERS) - lemons) * whole.healthy_rate
    assert (by_lemons + by_others) * 86_400 / len(SERVERS) == pytest.approx(6.5 / 1000)
    assert by_lemons / (by_lemons + by_others) == pytest.approx(1 - 4 / 14)


def test_without_lemon_nodes_all_nodes_fail_at_the_published_rate() -> None:
    found = draw_hardware(SERVERS, FailureSettings(lemon_share=(0.0, 0.0)), 1)
    assert (len(found.lemons), found.healthy_rate * 86_400) == (0, pytest.approx(6.5 / 1000))


def test_a_small_cluster_has_a_lemon_node_with_the_expected_frequency() -> None:
    small = make_equal_servers(10, gpus=8, cpus=24, mem_gb=500)
    mean = fmean(len(draw_hardware(small, DEFAULT, seed).lemons) for seed in range(2000))
    assert mean == pytest.approx(0.145, abs=0.04)


def test_excluding_a_node_keeps_the_other_drawn_nodes() -> None:
    before = draw_nodes(make_hardware(), 4, NONE, 1, 7, 0)
    after = draw_nodes(make_hardware(), 4, frozenset({before[1]}), 1, 7, 0)
    assert len(set(before)) == 4
    assert after[:3] == (before[0], before[2], before[3])
    assert before[1] not in after


def test_a_job_that_needs_every_node_gets_excluded_ones_too() -> None:
    three = replace(make_hardware(), names=("a", "b", "c"))
    assert sorted(draw_nodes(three, 3, frozenset({1}), 1, 7, 0)) == [0, 1, 2]


def test_the_mean_time_to_failure_follows_the_rates_of_the_nodes() -> None:
    whole = make_hardware(frozenset({0}))
    mean = fmean(draw_time_to_failure(whole, (0, 1), 1, job, 0) for job in range(4000))
    assert mean == pytest.approx(1 / (whole.lemon_rate + whole.healthy_rate), rel=0.06)


def test_a_lemon_node_fails_in_proportion_to_its_rate() -> None:
    whole = make_hardware(frozenset({1}))
    hits = sum(draw_struck_node(whole, (0, 1, 2), 1, job, 0) == 1 for job in range(2000))
    assert hits / 2000 == pytest.approx(whole.lemon_rate / whole.rate((0, 1, 2)), abs=0.02)


def test_with_a_failure_rate_of_zero_no_node_fails() -> None:
    quiet = draw_hardware(SERVERS, FailureSettings(node_failures_per_day=0.0), 1)
    assert draw_time_to_failure(quiet, (0, 1), 1, 1, 0) == float("inf")


@pytest.mark.parametrize(("gpus", "asked", "nodes"), [(1, None, 1), (9, None, 2), (8, 4, 4), (8001, None, 1000)])
def test_the_number_of_nodes_of_a_job(gpus: int, asked: int | None, nodes: int) -> None:
    job = SimJob(number=0, job="a", submit_s=0, work_s=1, gpus=gpus, nodes=asked)
    assert count_wanted_nodes(job, make_hardware()) == nodes


def test_an_empty_list_of_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="no servers"):
        draw_hardware((), DEFAULT, 1)
