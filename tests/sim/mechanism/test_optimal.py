"""The optimal allocation of one round, compared to all possible allocations and to tune."""

from __future__ import annotations

from itertools import product

from allocate_cases import points, servers
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.demand import JobDemand, Server
from slurmwrap.sim.mechanism.optimal import allocate_optimal, allocate_optimal_placed, list_group_options
from slurmwrap.sim.mechanism.reference_mechanisms import reference_tune

SPEEDS = (
    points((1, 16_000, 1.0)),
    points((3, 64_000, 1.0), (4, 64_000, 1.2), (6, 64_000, 1.9), (12, 128_000, 2.0)),
    points((1, 64_000, 0.4), (3, 64_000, 2.0), (9, 64_000, 5.0)),
    points((3, 64_000, 1.0), (3, 192_000, 1.5), (6, 192_000, 2.5)),
    (),
)


def make_demand(speeds: int, gpus: int = 1, *, cpus: float = 3.0, name: str = "a") -> JobDemand:
    return JobDemand(job=name, gpus_per_node=gpus, cpus=cpus, mem_mib=64_000, speeds=SPEEDS[speeds])


def make_server(gpus: int = 4) -> Server:
    return Server(
        name="n0",
        gpus=gpus,
        cpus=3 * gpus,
        mem_mib=64_000 * gpus,
        gpus_free=gpus,
        cpus_free=3 * gpus,
        mem_free_mib=64_000 * gpus,
    )


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 2)), min_size=1, max_size=4))
def test_no_other_allocation_has_a_higher_total_speed(kinds: list[tuple[int, int]]) -> None:
    queue = [make_demand(speeds, gpus) for speeds, gpus in kinds]
    while sum(one.gpus for one in queue) > 4:
        queue.pop()
    menus = [list_group_options(one, (3.0, 64_000)) for one in queue]
    best = max(
        sum(option.speed for option in choice)
        for choice in product(*menus)
        if sum(option.cpus * option.gpus for option in choice) <= 12
        and sum(option.mem_mib * option.gpus for option in choice) <= 256_000
    )
    grants = allocate_optimal(queue, [make_server()])
    assert abs(sum(grant.speed or 1.0 for grant in grants) - best) < 1e-6
    assert sum(grant.cpus * one.gpus for grant, one in zip(grants, queue, strict=True)) <= 12
    assert sum(grant.mem_mib * one.gpus for grant, one in zip(grants, queue, strict=True)) <= 256_000
    assert [len(grant.servers) for grant in grants] == [one.gpus for one in queue]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=32))
def test_no_job_is_slower_than_at_its_share_and_tune_is_not_faster_in_total(kinds: list[int]) -> None:
    queue = [make_demand(speeds) for speeds in kinds]
    grants = allocate_optimal(queue, servers(4))
    assert all((grant.speed or 1.0) >= 1.0 and grant.servers for grant in grants)
    tuned = sum(grant.speed or 1.0 for grant in reference_tune(queue, servers(4)))
    assert sum(grant.speed or 1.0 for grant in grants) >= tuned - 1e-6


def test_options_slower_than_the_share_or_dominated_are_left_out() -> None:
    assert [
        (option.cpus, option.mem_mib, option.speed) for option in list_group_options(make_demand(1), (3.0, 64_000))
    ] == [
        (3, 64_000, 1.0),
        (4, 64_000, 1.2),
        (6, 64_000, 1.9),
        (12, 128_000, 2.0),
    ]
    assert [(option.cpus, option.speed) for option in list_group_options(make_demand(2), (3.0, 64_000))] == [
        (3, 1.0),
        (9, 2.5),
    ]
    assert [(option.cpus, option.mem_mib) for option in list_group_options(make_demand(0), (3.0, 64_000))] == [
        (1, 16_000)
    ]


def test_of_equal_jobs_those_of_lower_priority_get_the_faster_options() -> None:
    queue = [make_demand(2), make_demand(2), make_demand(0), make_demand(0)]
    assert [grant.cpus for grant in allocate_optimal(queue, [make_server()])] == [3, 3, 1, 1]
    assert [grant.cpus for grant in allocate_optimal([*queue[:3], make_demand(0)], [make_server(), make_server()])] == [
        9,
        9,
        1,
        1,
    ]
    assert [
        grant.cpus for grant in allocate_optimal([make_demand(2), make_demand(2), make_demand(0)], [make_server(5)])
    ] == [3, 9, 1]


def test_a_job_that_does_not_fit_into_the_rest_gets_no_server() -> None:
    queue = [make_demand(4, 2, cpus=5.0), make_demand(4, 1, cpus=5.0), make_demand(0, 4), make_demand(0)]
    assert [grant.servers for grant in allocate_optimal(queue, [make_server()])] == [("n0",) * 2, (), (), ("n0",)]


def test_an_empty_queue_gives_no_allocations() -> None:
    assert allocate_optimal([], [make_server()]) == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([1, 1, 1, 2, 4, 8, 12])), max_size=14))
def test_placed_jobs_fit_on_each_server_and_are_no_faster_than_in_the_pool(kinds: list[tuple[int, int]]) -> None:
    cluster = servers(2)
    queue = [make_demand(speeds, gpus, name=str(number)) for number, (speeds, gpus) in enumerate(kinds)]
    pool, grants = allocate_optimal(queue, cluster), allocate_optimal_placed(queue, cluster)
    for server in cluster:
        here = [(grant, grant.servers.count(server.name)) for grant in grants]
        assert sum(gpus for _, gpus in here) <= server.gpus
        assert sum(gpus * grant.cpus for grant, gpus in here) <= server.cpus + 1e-6
        assert sum(gpus * grant.mem_mib for grant, gpus in here) <= server.mem_mib + 1e-6
    for one, grant, demand in zip(pool, grants, queue, strict=True):
        assert len(grant.servers) in ((0, demand.gpus) if one.servers else (0,))
        assert (grant.speed or 0.0) <= (one.speed or 0.0) + 1e-9


def test_a_vertex_divides_few_jobs_so_most_keep_what_the_pool_gives() -> None:
    cluster = servers(2)
    queue = [make_demand(number % 4, name=str(number)) for number in range(16)]
    pool, grants = allocate_optimal(queue, cluster), allocate_optimal_placed(queue, cluster)
    assert all(grant.servers for grant in grants)
    assert sum(one.speed != grant.speed for one, grant in zip(pool, grants, strict=True)) <= 3 * len(cluster)
