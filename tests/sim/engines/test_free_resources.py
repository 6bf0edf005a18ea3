"""Where the model's Slurm puts a job: whole cases of select/cons_tres as the model has it."""

from __future__ import annotations

import numpy as np
import pytest

from slurmwrap.sim.engines.free_resources import FreeResources, ServerAssignment, make_free_resources
from slurmwrap.sim.engines.sim_request import Ask, make_ask
from slurmwrap.sim.sim_job import make_equal_servers


def floor(*free: tuple[int, int], per_leaf: int | None = None) -> FreeResources:
    """Servers of 8 GPUs and 24 CPUs with so many (GPUs, CPUs) free."""
    found = make_free_resources(make_equal_servers(len(free), gpus=8, cpus=24, mem_gb=80), per_leaf)
    found.gpus[:] = [gpus for gpus, _ in free]
    found.cpus[:] = [cpus for _, cpus in free]
    found.free_gpus = int(found.gpus.sum())
    return found


def asking(gpus: int, nodes: int | None = None) -> Ask:
    """With three CPUs and 10 GB for each GPU."""
    return make_ask(gpus, nodes, 3.0, 10_240.0)


def test_one_server_where_one_holds_it_the_one_with_fewest_free_cpus() -> None:
    assert floor((8, 24), (4, 12), (6, 18)).seats(asking(4)) == ServerAssignment(servers=(1,), units=(4,))


def test_gpus_without_cpus_beside_them_are_none() -> None:
    assert floor((4, 11), (4, 12)).seats(asking(4)) == ServerAssignment(servers=(1,), units=(4,))


def test_else_as_few_servers_as_hold_it_the_last_as_tight_as_can_be() -> None:
    assert floor((5, 15), (7, 21), (3, 9), (2, 6)).seats(asking(9)) == ServerAssignment(servers=(1, 3), units=(7, 2))


def test_a_number_of_nodes_is_kept() -> None:
    assert floor((8, 24), (8, 24), (5, 15)).seats(asking(8, 2)) == ServerAssignment(servers=(2, 0), units=(1, 1))
    assert floor((8, 24), (3, 9)).seats(asking(8, 2)) is None


def test_gpus_that_do_not_divide_evenly_lie_on_so_many_nodes_all_the_same() -> None:
    assert floor((8, 24), (8, 24)).seats(asking(9, 2)) == ServerAssignment(servers=(0, 1), units=(8, 1))
    assert floor((8, 24), (8, 24)).seats(asking(3, 2)) == ServerAssignment(servers=(0, 1), units=(2, 1))


def test_with_a_network_the_first_server_of_the_tightest_leaf() -> None:
    assert floor((8, 24), (8, 24), (8, 24), (4, 12), per_leaf=2).seats(asking(2)) == ServerAssignment(
        servers=(2,), units=(2,)
    )


def test_one_leaf_before_fewer_free_gpus_elsewhere() -> None:
    here = floor((8, 24), (4, 12), (8, 24), (8, 24), per_leaf=2)
    assert here.seats(asking(16, 2)) == ServerAssignment(servers=(2, 3), units=(1, 1))


def test_who_insists_on_one_leaf_gets_no_two() -> None:
    here = floor((8, 24), (0, 0), (8, 24), (0, 0), per_leaf=2)
    assert here.seats(asking(16, 2)) == ServerAssignment(servers=(0, 2), units=(1, 1))
    assert here.seats(asking(16, 2), leaves=1) is None


def test_only_where_it_may_run() -> None:
    assert floor((8, 24), (8, 24)).seats(asking(2), np.array([False, True])) == ServerAssignment(
        servers=(1,), units=(2,)
    )


def test_what_is_taken_is_gone_and_comes_back() -> None:
    here = floor((8, 24), (8, 24))
    seats = here.seats(asking(12))
    assert seats is not None
    here.take(asking(12), seats)
    assert (here.gpus.tolist(), here.cpus.tolist(), here.free_gpus) == ([0, 4], [0.0, 12.0], 4)
    here.give_back(asking(12), seats)
    assert (here.gpus.tolist(), here.cpus.tolist(), here.free_gpus) == ([8, 8], [24.0, 24.0], 16)


def test_more_than_there_is_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="server 0"):
        floor((2, 6)).take(asking(4), ServerAssignment(servers=(0,), units=(4,)))
