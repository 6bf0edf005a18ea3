"""The policy `graded`: how many CPUs and how much memory a job gets, whether it waits, and on which server.

The servers have 8 GPUs, 24 CPUs and 512,000 MiB. The share of one GPU is 3 CPUs and 64,000 MiB.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocate_cases import HUNGRY, claim, points, server, servers

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand

Requests = dict[str, tuple[float, int]]


def get_requests(grants: tuple[Allocation, ...]) -> Requests:
    return {grant.job: (grant.cpus, grant.mem_mib) for grant in grants}


def get_servers(grants: tuple[Allocation, ...]) -> dict[str, tuple[str, ...]]:
    return {grant.job: grant.servers for grant in grants}


def test_a_light_job_gets_less_than_its_share() -> None:
    (grant,) = allocate([claim("a", "light")], servers(1), "graded")
    assert grant == Allocation(
        job="a",
        cpus=1.0,
        mem_mib=20_000,
        servers=("n0",),
        speed=1.0,
        cpu_reason="1 CPUs per GPU instead of 3 (its share is 3): runs at 1 times the speed of its share",
        mem_reason="20000 MiB per GPU instead of 64000 (its share is 64000): runs at 1 times the speed of its share",
    )


def test_cpus_that_light_jobs_do_not_need_go_to_hungry_jobs_on_the_same_server() -> None:
    queue = [claim(str(number), "light" if number < 4 else "hungry") for number in range(8)]
    given = get_requests(allocate(queue, servers(1), "graded"))
    assert [given[str(number)] for number in range(4)] == [(1, 20_000)] * 4
    # the minimum is 4 x 1 + 4 x 3 of 24 CPUs; 8 CPUs are left, and the next option costs 3 more
    assert sorted(given[str(number)][0] for number in range(4, 8)) == [3, 3, 6, 6]


def test_each_job_gets_its_share_when_all_waiting_jobs_are_hungry() -> None:
    queue = [claim(str(number), "hungry") for number in range(40)]
    assert set(get_requests(allocate(queue, servers(1), "graded")).values()) == {(3, 64_000)}


def test_the_last_job_of_the_queue_gets_all_cpus_that_it_can_use() -> None:
    (grant,) = allocate([claim("a", "hungry")], servers(1), "graded")
    assert (grant.cpus, grant.speed) == (12, 2.5)


def test_the_reserve_setting_keeps_cpus_for_idle_gpus() -> None:
    strict = GradedSettings(drain=1.0, reserve=1.0)
    queue = [claim(str(number), "hungry") for number in range(3)]
    assert [grant.cpus for grant in allocate(queue, servers(1), "graded", strict)] == [3, 3, 3]
    loose = GradedSettings(drain=1.0, reserve=0.0)
    assert [grant.cpus for grant in allocate(queue, servers(1), "graded", loose)] == [12, 6, 6]


def test_cpus_and_memory_are_divided_independently() -> None:
    """A job that needs memory and jobs that need CPUs do not limit each other."""
    queue = [claim("m", "learned"), *(claim(str(number), "light") for number in range(5)), claim("c", "hungry")]
    given = get_requests(allocate([*queue, claim("d", "hungry")], servers(1), "graded"))
    assert given["m"] == (3, 192_000)
    assert (given["c"], given["d"]) == ((6, 64_000), (6, 64_000))


def test_raised_memory_requests_fit_into_the_memory_of_the_server() -> None:
    """The minimum is 6 x 64,000 + 2 x 20,000 MiB; 88,000 are left, and the next option costs 64,000 more."""
    queue = [claim(str(number), "learned" if number < 6 else "light") for number in range(8)]
    given = [grant.mem_mib for grant in allocate(queue, servers(1), "graded")]
    assert sorted(given[:6]) == [64_000] * 5 + [128_000]


def test_cpus_are_divided_even_when_memory_is_overcommitted() -> None:
    """Two jobs ask for all of the memory, so no memory is left; CPUs of the light jobs are left."""
    full = [claim(f"m{number}", cpus=1, mem_mib=512_000) for number in range(2)]
    queue = [*full, *(claim(f"l{number}", "light") for number in range(4)), claim("a", "hungry"), claim("b", "hungry")]
    given = get_requests(allocate(queue, servers(1), "graded"))
    assert (given["a"], given["b"]) == ((12, 64_000), (6, 64_000))


def test_a_large_job_behind_the_window_counts_as_a_waiting_job() -> None:
    """Hungry jobs ask for 7 GPUs, the next job for 8. The window ends after the hungry jobs, the queue does not."""
    queue = [*(claim(str(number), "hungry") for number in range(7)), claim("big", gpus_per_node=8)]
    settings = GradedSettings(drain=2.0, reserve=1.0)
    assert {grant.cpus for grant in allocate(queue, servers(1), "graded", settings)} == {3}


def test_cpus_of_running_jobs_are_not_given_to_waiting_jobs() -> None:
    """7 GPUs are in use with 22 of 24 CPUs. The 2 CPUs left are less than a share, and the job waits for its share."""
    full = replace(server(free=1), cpus_free=2)
    (grant,) = allocate([claim("a", "hungry")], [full], "graded")
    assert (grant.cpus, grant.servers) == (3, ())


def test_cpus_of_jobs_without_gpus_are_not_given_to_waiting_jobs() -> None:
    busy = replace(server(), cpus_free=4)
    (grant,) = allocate([claim("a", "hungry")], [busy], "graded")
    assert (grant.cpus, grant.servers) == (3, ("n0",))


def test_memory_of_running_jobs_is_not_given_to_waiting_jobs() -> None:
    full = replace(server(free=1), mem_free_mib=70_000)
    (grant,) = allocate([claim("a", "learned")], [full], "graded")
    assert (grant.mem_mib, grant.servers) == (64_000, ("n0",))


def test_a_light_job_is_placed_where_the_hungry_job_before_it_does_not_fit() -> None:
    given = allocate([claim("a", "hungry"), claim("b", "light")], [replace(server(free=1), cpus_free=2)], "graded")
    assert get_servers(given) == {"a": (), "b": ("n0",)}


@pytest.mark.parametrize(
    ("run_s", "startable_s", "cpus"),
    [
        (None, 0.0, 6),  # it could start only now
        (None, 1e6, 3),  # it has waited long enough for any run time
        (4000.0, 900.0, 6),  # with 6 CPUs it would save 2,000 s, so it may wait 1,000 s
        (4000.0, 1000.0, 3),
        (0.0, 0.0, 3),
    ],
)
def test_a_job_waits_for_more_cpus_at_most_half_of_the_time_that_they_save(
    run_s: float | None, startable_s: float, cpus: int
) -> None:
    """One GPU and 4 CPUs are free, so the job could start with its share. No other job waits."""
    demand = claim("a", run_s=run_s, startable_s=startable_s, speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0)))
    busy = [replace(server(free=1), cpus_free=4), *(server(f"m{n}", free=0) for n in range(3))]
    (grant,) = allocate([demand], busy, "graded")
    assert (grant.cpus, grant.servers) == (cpus, ("n0",) if cpus == 3 else ())


def test_a_light_job_gets_the_slot_with_few_cpus_before_a_hungry_job_accepts_its_share() -> None:
    demand = claim("h", run_s=0.0, startable_s=1e6, speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0)))
    queue = [demand, claim("l", "light")]
    busy = [replace(server(free=1), cpus_free=3), *(server(f"m{n}", free=0) for n in range(3))]
    assert get_servers(allocate(queue, busy, "graded")) == {"h": (), "l": ("n0",)}


def test_a_job_with_all_gpus_of_a_node_keeps_its_full_share() -> None:
    demand = claim("a", "light", gpus_per_node=8)
    (grant,) = allocate([demand], servers(2), "graded")
    assert (grant.cpus, grant.mem_mib) == (3, 64_000)


def test_a_job_of_two_nodes_gets_two_different_servers() -> None:
    (grant,) = allocate([claim("a", gpus_per_node=4, nodes=2)], servers(3), "graded")
    assert len(set(grant.servers)) == 2


def test_a_request_above_the_share_is_kept_if_it_makes_the_job_faster() -> None:
    queue = [claim(str(number), "hungry", cpus=6) for number in range(8)]
    assert {grant.cpus for grant in allocate(queue, servers(1), "graded")} == {6}


def test_a_request_above_the_share_is_lowered_if_it_does_not_make_the_job_faster() -> None:
    (grant,) = allocate([claim("a", "light", cpus=6)], servers(1), "graded")
    assert grant.cpus == 1


def test_limits_of_partition_and_qos_are_respected() -> None:
    demand = claim("a", "hungry", most_cpus=6.0, least_mem_mib=30_000, speeds=HUNGRY)
    assert get_requests(allocate([demand], servers(1), "graded")) == {"a": (6, 64_000)}


def test_a_raised_request_still_fits_every_server_that_could_run_the_job() -> None:
    small = server("small", gpus=2, cpus=6, mem_mib=128_000)
    assert get_requests(allocate([claim("a", "hungry")], [*servers(1), small], "graded"))["a"] == (6, 64_000)


def test_jobs_of_one_partition_do_not_use_cpus_of_another_partition() -> None:
    """Eight jobs wait for the eight GPUs of n0. The empty n1 is not in their partition."""
    here, there = frozenset({"n0"}), frozenset({"n1"})
    crowd = [claim(str(number), "hungry", servers=here) for number in range(8)]
    given = get_requests(allocate([*crowd, claim("x", "hungry", servers=there)], servers(2), "graded"))
    assert {given[str(number)] for number in range(8)} == {(3, 64_000)}
    assert given["x"] == (12, 64_000)


def test_a_job_too_large_for_the_cluster_does_not_block_later_jobs() -> None:
    queue = [claim("huge", gpus_per_node=8, nodes=9), claim("a", "hungry")]
    given = allocate(queue, servers(1), "graded")
    assert get_requests(given)["a"] == (12, 64_000)
    assert get_servers(given) == {"huge": (), "a": ("n0",)}


def test_hungry_jobs_get_servers_with_many_free_cpus_per_gpu_and_light_jobs_with_few() -> None:
    rich, poor = replace(server("rich", free=4), cpus_free=20), replace(server("poor", free=4), cpus_free=8)
    given = allocate([claim("h", "hungry", most_cpus=6.0), claim("l", "light")], [rich, poor], "graded")
    assert get_servers(given) == {"h": ("rich",), "l": ("poor",)}


@pytest.mark.parametrize("likes", ["hungry", "light"])
def test_an_idle_server_is_used_last(likes: str) -> None:
    broken = [replace(server(name, free=4), cpus_free=cpus) for name, cpus in (("some", 8), ("many", 24))]
    (grant,) = allocate([claim("a", likes, most_cpus=6.0)], [server("whole"), *broken], "graded")
    assert grant.servers != ("whole",)


def test_jobs_behind_the_window_get_no_more_than_comparable_jobs_in_the_window() -> None:
    queue = [claim(str(number), "light" if number % 2 else "hungry") for number in range(20)]
    given = get_requests(allocate(queue, servers(1), "graded"))
    assert {given[str(number)] for number in range(8, 20, 2)} == {(6, 64_000)}


def test_a_request_is_kept_if_speeds_at_the_share_and_the_request_are_unknown() -> None:
    demand = JobDemand(
        job="a", gpus_per_node=1, cpus=3, mem_mib=64_000, speeds=points((4, 70_000, 1.0), (6, 70_000, 2.0))
    )
    (grant,) = allocate([demand], servers(1), "graded")
    assert (grant.cpus, grant.mem_mib, grant.speed) == (3, 64_000, None)
