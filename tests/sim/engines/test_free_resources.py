"""Node selection in the Slurm model: cases of select/cons_tres as the model implements it."""

from __future__ import annotations

import numpy as np
import pytest

from slurmwrap.sim.engines.free_resources import FreeResources, ServerAssignment, make_free_resources
from slurmwrap.sim.engines.sim_request import Ask, make_ask
from slurmwrap.sim.sim_job import make_equal_servers


def make_free(*free: tuple[int, int], per_leaf: int | None = None) -> FreeResources:
    """Servers of 8 GPUs and 24 CPUs, each with its free (GPUs, CPUs)."""
    found = make_free_resources(make_equal_servers(len(free), gpus=8, cpus=24, mem_gb=80), per_leaf)
    found.gpus[:] = [gpus for gpus, _ in free]
    found.cpus[:] = [cpus for _, cpus in free]
    found.free_gpus = int(found.gpus.sum())
    return found


def make_request(gpus: int, nodes: int | None = None) -> Ask:
    """A request with three CPUs and 10 GB per GPU."""
    return make_ask(gpus, nodes, 3.0, 10_240.0)


def test_a_job_gets_the_server_with_the_fewest_free_cpus_that_holds_it() -> None:
    assert make_free((8, 24), (4, 12), (6, 18)).seats(make_request(4)) == ServerAssignment(servers=(1,), units=(4,))


def test_gpus_without_enough_free_cpus_cannot_be_used() -> None:
    assert make_free((4, 11), (4, 12)).seats(make_request(4)) == ServerAssignment(servers=(1,), units=(4,))


def test_a_spread_job_gets_the_fewest_servers_and_the_last_with_the_tightest_fit() -> None:
    assert make_free((5, 15), (7, 21), (3, 9), (2, 6)).seats(make_request(9)) == ServerAssignment(
        servers=(1, 3), units=(7, 2)
    )


def test_the_requested_number_of_nodes_is_used() -> None:
    assert make_free((8, 24), (8, 24), (5, 15)).seats(make_request(8, 2)) == ServerAssignment(
        servers=(2, 0), units=(1, 1)
    )
    assert make_free((8, 24), (3, 9)).seats(make_request(8, 2)) is None


def test_gpus_that_do_not_divide_evenly_use_the_requested_number_of_nodes() -> None:
    assert make_free((8, 24), (8, 24)).seats(make_request(9, 2)) == ServerAssignment(servers=(0, 1), units=(8, 1))
    assert make_free((8, 24), (8, 24)).seats(make_request(3, 2)) == ServerAssignment(servers=(0, 1), units=(2, 1))


def test_with_leaf_switches_the_first_server_of_the_tightest_leaf_is_used() -> None:
    assert make_free((8, 24), (8, 24), (8, 24), (4, 12), per_leaf=2).seats(make_request(2)) == ServerAssignment(
        servers=(2,), units=(2,)
    )


def test_one_leaf_switch_is_preferred_over_servers_with_fewer_free_gpus() -> None:
    free = make_free((8, 24), (4, 12), (8, 24), (8, 24), per_leaf=2)
    assert free.seats(make_request(16, 2)) == ServerAssignment(servers=(2, 3), units=(1, 1))


def test_a_job_that_requires_one_leaf_switch_does_not_get_two() -> None:
    free = make_free((8, 24), (0, 0), (8, 24), (0, 0), per_leaf=2)
    assert free.seats(make_request(16, 2)) == ServerAssignment(servers=(0, 2), units=(1, 1))
    assert free.seats(make_request(16, 2), leaves=1) is None


def test_only_allowed_servers_are_used() -> None:
    assert make_free((8, 24), (8, 24)).seats(make_request(2), np.array([False, True])) == ServerAssignment(
        servers=(1,), units=(2,)
    )


def test_taken_resources_are_not_free_until_given_back() -> None:
    free = make_free((8, 24), (8, 24))
    seats = free.seats(make_request(12))
    assert seats is not None
    free.take(make_request(12), seats)
    assert (free.gpus.tolist(), free.cpus.tolist(), free.free_gpus) == ([0, 4], [0.0, 12.0], 4)
    free.give_back(make_request(12), seats)
    assert (free.gpus.tolist(), free.cpus.tolist(), free.free_gpus) == ([8, 8], [24.0, 24.0], 16)


def test_taking_more_than_is_free_is_an_error() -> None:
    with pytest.raises(ValueError, match="server 0"):
        make_free((2, 6)).take(make_request(4), ServerAssignment(servers=(0,), units=(4,)))
