"""The policy `graded`: who climbs, who waits, and where.

Servers of 8 GPUs, 24 CPUs and 512,000 MiB: a share is 3 CPUs and 64,000 MiB.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from allocate_cases import HUNGRY, claim, points, server, servers

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand

Asks = dict[str, tuple[float, int]]


def asks(grants: tuple[Allocation, ...]) -> Asks:
    return {grant.job: (grant.cpus, grant.mem_mib) for grant in grants}


def names(grants: tuple[Allocation, ...]) -> dict[str, tuple[str, ...]]:
    return {grant.job: grant.servers for grant in grants}


def test_a_light_job_takes_what_it_needs_and_not_its_share() -> None:
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


def test_what_light_jobs_leave_goes_to_hungry_ones_beside_them() -> None:
    queue = [claim(str(number), "light" if number < 4 else "hungry") for number in range(8)]
    given = asks(allocate(queue, servers(1), "graded"))
    assert [given[str(number)] for number in range(4)] == [(1, 20_000)] * 4
    # 4 + 4 x 3 of 24 are the floors: of the 8 left each rung up costs 3
    assert sorted(given[str(number)][0] for number in range(4, 8)) == [3, 3, 6, 6]


def test_where_all_are_hungry_and_wait_everybody_keeps_the_share() -> None:
    queue = [claim(str(number), "hungry") for number in range(40)]
    assert set(asks(allocate(queue, servers(1), "graded")).values()) == {(3, 64_000)}


def test_the_last_job_of_a_queue_takes_what_nobody_waits_for() -> None:
    (grant,) = allocate([claim("a", "hungry")], servers(1), "graded")
    assert (grant.cpus, grant.speed) == (12, 2.5)


def test_idle_gpus_keep_a_reserve_for_jobs_that_may_come() -> None:
    strict = GradedSettings(drain=1.0, reserve=1.0)
    queue = [claim(str(number), "hungry") for number in range(3)]
    assert [grant.cpus for grant in allocate(queue, servers(1), "graded", strict)] == [3, 3, 3]
    loose = GradedSettings(drain=1.0, reserve=0.0)
    assert [grant.cpus for grant in allocate(queue, servers(1), "graded", loose)] == [12, 6, 6]


def test_cpus_and_memory_are_traded_apart() -> None:
    """One that wants memory and ones that want CPUs do not stand in each other's way."""
    queue = [claim("m", "learned"), *(claim(str(number), "light") for number in range(5)), claim("c", "hungry")]
    given = asks(allocate([*queue, claim("d", "hungry")], servers(1), "graded"))
    assert given["m"] == (3, 192_000)
    assert (given["c"], given["d"]) == ((6, 64_000), (6, 64_000))


def test_no_more_memory_is_asked_for_than_there_is() -> None:
    """6 x 64,000 + 2 x 20,000 MiB are the floors: of the 88,000 left each rung up costs 64,000."""
    queue = [claim(str(number), "learned" if number < 6 else "light") for number in range(8)]
    given = [grant.mem_mib for grant in allocate(queue, servers(1), "graded")]
    assert sorted(given[:6]) == [64_000] * 5 + [128_000]


def test_cpus_are_divided_also_where_memory_is_spoken_for_more_than_once() -> None:
    """Two want all of the memory, so that no more can be given; the CPUs of light jobs can."""
    full = [claim(f"m{number}", cpus=1, mem_mib=512_000) for number in range(2)]
    queue = [*full, *(claim(f"l{number}", "light") for number in range(4)), claim("a", "hungry"), claim("b", "hungry")]
    given = asks(allocate(queue, servers(1), "graded"))
    assert (given["a"], given["b"]) == ((12, 64_000), (6, 64_000))


def test_a_large_job_next_in_the_queue_is_somebody_who_waits() -> None:
    """7 GPUs of hungry jobs and one of 8 GPUs behind: not the end of a queue, though the window ends there."""
    queue = [*(claim(str(number), "hungry") for number in range(7)), claim("big", gpus_per_node=8)]
    settings = GradedSettings(drain=2.0, reserve=1.0)
    assert {grant.cpus for grant in allocate(queue, servers(1), "graded", settings)} == {3}


def test_running_jobs_keep_the_cpus_that_they_hold() -> None:
    """7 GPUs run with 22 of 24 CPUs: the 2 left are less than a share, and a share is what the job may wait for."""
    full = replace(server(free=1), cpus_free=2)
    (grant,) = allocate([claim("a", "hungry")], [full], "graded")
    assert (grant.cpus, grant.servers) == (3, ())


def test_cpus_held_by_jobs_without_gpus_are_not_given_away() -> None:
    busy = replace(server(), cpus_free=4)
    (grant,) = allocate([claim("a", "hungry")], [busy], "graded")
    assert (grant.cpus, grant.servers) == (3, ("n0",))


def test_and_the_memory() -> None:
    full = replace(server(free=1), mem_free_mib=70_000)
    (grant,) = allocate([claim("a", "learned")], [full], "graded")
    assert (grant.mem_mib, grant.servers) == (64_000, ("n0",))


def test_a_light_job_behind_a_hungry_one_starts_where_the_hungry_one_does_not_fit() -> None:
    given = allocate([claim("a", "hungry"), claim("b", "light")], [replace(server(free=1), cpus_free=2)], "graded")
    assert names(given) == {"a": (), "b": ("n0",)}


@pytest.mark.parametrize(
    ("run_s", "startable_s", "cpus"),
    [
        (None, 0.0, 6),  # just now
        (None, 1e6, 3),  # long enough, whatever its run time
        (4000.0, 900.0, 6),  # at 6 CPUs it would save 2,000 s: half of that is worth waiting
        (4000.0, 1000.0, 3),
        (0.0, 0.0, 3),
    ],
)
def test_a_job_waits_for_more_than_its_share_no_longer_than_half_of_what_that_saves(
    run_s: float | None, startable_s: float, cpus: int
) -> None:
    """One GPU and 4 CPUs are free: its share would start. Nobody else waits."""
    one = claim("a", run_s=run_s, startable_s=startable_s, speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0)))
    busy = [replace(server(free=1), cpus_free=4), *(server(f"m{n}", free=0) for n in range(3))]
    (grant,) = allocate([one], busy, "graded")
    assert (grant.cpus, grant.servers) == (cpus, ("n0",) if cpus == 3 else ())


def test_the_slot_with_few_cpus_goes_to_a_light_job_before_a_hungry_one_settles_for_less() -> None:
    one = claim("h", run_s=0.0, startable_s=1e6, speeds=points((3, 64_000, 1.0), (6, 64_000, 2.0)))
    queue = [one, claim("l", "light")]
    busy = [replace(server(free=1), cpus_free=3), *(server(f"m{n}", free=0) for n in range(3))]
    assert names(allocate(queue, busy, "graded")) == {"h": (), "l": ("n0",)}


def test_a_job_of_all_gpus_of_a_node_keeps_the_node_s_cpus_and_memory() -> None:
    one = claim("a", "light", gpus_per_node=8)
    (grant,) = allocate([one], servers(2), "graded")
    assert (grant.cpus, grant.mem_mib) == (3, 64_000)


def test_two_nodes_are_two_different_servers() -> None:
    (grant,) = allocate([claim("a", gpus_per_node=4, nodes=2)], servers(3), "graded")
    assert len(set(grant.servers)) == 2


def test_the_user_s_own_request_above_the_share_is_kept_where_it_is_faster() -> None:
    queue = [claim(str(number), "hungry", cpus=6) for number in range(8)]
    assert {grant.cpus for grant in allocate(queue, servers(1), "graded")} == {6}


def test_and_lowered_where_it_is_not() -> None:
    (grant,) = allocate([claim("a", "light", cpus=6)], servers(1), "graded")
    assert grant.cpus == 1


def test_limits_of_partition_and_qos_hold() -> None:
    one = claim("a", "hungry", most_cpus=6.0, least_mem_mib=30_000, speeds=HUNGRY)
    assert asks(allocate([one], servers(1), "graded")) == {"a": (6, 64_000)}


def test_a_raised_request_shuts_no_server_out_that_could_run_the_job() -> None:
    small = server("small", gpus=2, cpus=6, mem_mib=128_000)
    assert asks(allocate([claim("a", "hungry")], [*servers(1), small], "graded"))["a"] == (6, 64_000)


def test_jobs_of_one_partition_do_not_spend_what_only_another_one_has() -> None:
    """The hungry one of n0 sees eight jobs on n0's eight GPUs, though n1 is empty and not for them."""
    here, there = frozenset({"n0"}), frozenset({"n1"})
    crowd = [claim(str(number), "hungry", servers=here) for number in range(8)]
    given = asks(allocate([*crowd, claim("x", "hungry", servers=there)], servers(2), "graded"))
    assert {given[str(number)] for number in range(8)} == {(3, 64_000)}
    assert given["x"] == (12, 64_000)


def test_a_job_too_large_for_the_cluster_does_not_stop_those_behind_it() -> None:
    queue = [claim("huge", gpus_per_node=8, nodes=9), claim("a", "hungry")]
    given = allocate(queue, servers(1), "graded")
    assert asks(given)["a"] == (12, 64_000)
    assert names(given) == {"huge": (), "a": ("n0",)}


def test_hungry_jobs_go_where_most_cpus_are_left_per_gpu_and_light_ones_where_fewest_are() -> None:
    rich, poor = replace(server("rich", free=4), cpus_free=20), replace(server("poor", free=4), cpus_free=8)
    given = allocate([claim("h", "hungry", most_cpus=6.0), claim("l", "light")], [rich, poor], "graded")
    assert names(given) == {"h": ("rich",), "l": ("poor",)}


@pytest.mark.parametrize("likes", ["hungry", "light"])
def test_a_whole_server_is_broken_last(likes: str) -> None:
    broken = [replace(server(name, free=4), cpus_free=cpus) for name, cpus in (("some", 8), ("many", 24))]
    (grant,) = allocate([claim("a", likes, most_cpus=6.0)], [server("whole"), *broken], "graded")
    assert grant.servers != ("whole",)


def test_nobody_behind_the_window_asks_for_more_than_the_window_found_worth_it() -> None:
    queue = [claim(str(number), "light" if number % 2 else "hungry") for number in range(20)]
    given = asks(allocate(queue, servers(1), "graded"))
    assert {given[str(number)] for number in range(8, 20, 2)} == {(6, 64_000)}


def test_speeds_that_are_unknown_at_the_share_and_as_asked_leave_no_room_below_either() -> None:
    one = JobDemand(job="a", gpus_per_node=1, cpus=3, mem_mib=64_000, speeds=points((4, 70_000, 1.0), (6, 70_000, 2.0)))
    (grant,) = allocate([one], servers(1), "graded")
    assert (grant.cpus, grant.mem_mib, grant.speed) == (3, 64_000, None)
