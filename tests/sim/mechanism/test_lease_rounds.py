"""The policy `graded` with leases.

The servers have 8 GPUs, 24 CPUs and 512,000 MiB. The share of one GPU is 3 CPUs and 64,000 MiB.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from allocate_cases import LIGHT, claim, points, queues, server, servers
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.allocation_options import share_of
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.throughput import find_speed
from slurmwrap.sim.mechanism.lease_rounds import allocate_lease_rounds

FEW, MANY = settings(max_examples=12), settings(max_examples=25)
Situation = tuple[tuple[JobDemand, ...], tuple[Server, ...]]
# speeds relative to the share, as for Synergy's models; WIDE gains most at its last point
WIDE = points((3, 64_000, 1.0), (6, 64_000, 1.75), (9, 64_000, 2.0), (12, 64_000, 2.9))
STEEP = points((3, 64_000, 1.0), (6, 64_000, 2.5))


def allocate_round(queue: Sequence[JobDemand], cluster: Sequence[Server], lead: float = 1.0) -> tuple[Allocation, ...]:
    return allocate_lease_rounds(queue, cluster, GradedSettings(lead=lead))


def count_gpus(queue: Sequence[JobDemand], grants: Sequence[Allocation]) -> int:
    return sum(one.gpus for one, grant in zip(queue, grants, strict=True) if grant.servers)


def sum_speeds(queue: Sequence[JobDemand], grants: Sequence[Allocation]) -> float:
    return sum(one.gpus * (grant.speed or 1.0) for one, grant in zip(queue, grants, strict=True) if grant.servers)


@st.composite
def empty_clusters(draw: st.DrawFn) -> tuple[tuple[JobDemand, ...], tuple[Server, ...]]:
    """One to five equal, empty servers, and jobs of any kind."""
    count, size = draw(st.integers(1, 5)), draw(st.sampled_from([2, 4, 8]))
    cpus, memory = size * draw(st.integers(1, 8)) + draw(st.integers(0, 3)), size * draw(st.integers(8_000, 80_000))
    cluster = tuple(server(f"n{number}", gpus=size, cpus=cpus, mem_mib=memory) for number in range(count))
    return draw(queues(cluster)), cluster


@st.composite
def one_gpu_jobs(draw: st.DrawFn) -> tuple[tuple[JobDemand, ...], tuple[Server, ...]]:
    """At most as many one-GPU jobs as GPUs, each with a profile that contains its share."""
    cluster = servers(draw(st.integers(1, 3)))
    speeds = st.lists(
        st.tuples(st.integers(1, 24), st.sampled_from([21_000, 64_000, 128_000, 256_000]), st.floats(0.1, 4.0)),
        max_size=6,
        unique_by=lambda row: row[:2],
    )
    profiles = [points((3, 64_000, 1.0), *draw(speeds)) for _ in range(draw(st.integers(1, 5)))]
    count = draw(st.integers(0, 8 * len(cluster)))
    return tuple(
        claim(str(n), speeds=tuple({(p.cpus, p.mem_mib): p for p in draw(st.sampled_from(profiles))}.values()))
        for n in range(count)
    ), cluster


# ------------------------------------------------------------------------------------------- properties


@MANY
@given(empty_clusters())
def test_allocations_fit_are_as_fast_as_the_share_and_use_as_many_gpus_as_tune(
    situation: Situation,
) -> None:
    queue, cluster = situation
    grants = allocate_round(queue, cluster)
    assert count_gpus(queue, grants) >= count_gpus(queue, allocate(queue, cluster, "tune"))
    taken_gpus, cpus, memory = Counter[str](), Counter[str](), Counter[str]()
    for one, grant in zip(queue, grants, strict=True):
        assert len(set(grant.servers)) == len(grant.servers) in (0, one.nodes)
        for name in grant.servers:
            assert one.servers is None or name in one.servers
            taken_gpus[name] += one.gpus_per_node
            cpus[name] += round(grant.cpus * one.gpus_per_node * 1000)
            memory[name] += grant.mem_mib * one.gpus_per_node
        able = [s for s in cluster if s.gpus >= one.gpus_per_node and (one.servers is None or s.name in one.servers)]
        share = share_of(one, able)
        if share is None or (grant.cpus, grant.mem_mib) == (one.cpus, one.mem_mib):
            continue
        at_share = find_speed(one.speeds, share.cpus, share.mem_mib)
        assert find_speed(one.speeds, grant.cpus, grant.mem_mib) >= at_share * 0.999999
        assert grant.cpus >= one.least_cpus and (one.most_cpus is None or grant.cpus <= one.most_cpus + 1e-9)
        assert grant.mem_mib >= one.least_mem_mib and (one.most_mem_mib is None or grant.mem_mib <= one.most_mem_mib)
    for each in cluster:
        assert taken_gpus[each.name] <= each.gpus
        assert cpus[each.name] <= each.cpus * 1000
        assert memory[each.name] <= each.mem_mib


@FEW
@given(one_gpu_jobs(), st.sampled_from([0.0, 1.0]))
def test_every_one_gpu_job_is_placed_while_gpus_are_free(situation: Situation, lead: float) -> None:
    queue, cluster = situation
    grants = allocate_round(queue, cluster, lead)
    assert all(grant.servers for grant in grants)
    assert all((grant.speed or 0.0) >= 1 - 1e-9 for grant in grants)


@FEW
@given(one_gpu_jobs())
def test_a_round_does_at_least_the_work_of_synergy_tune(
    situation: Situation,
) -> None:
    queue, cluster = situation
    assert (
        sum_speeds(queue, allocate_round(queue, cluster, lead=0.0))
        >= sum_speeds(queue, allocate(queue, cluster, "tune")) - 1e-6
    )


@FEW
@given(empty_clusters())
def test_server_order_and_job_names_do_not_change_the_result(
    situation: Situation,
) -> None:
    queue, cluster = situation
    grants = allocate_round(queue, cluster)
    assert allocate_round(queue, tuple(reversed(cluster))) == grants
    renamed = [replace(one, job=f"x{len(queue) - number}") for number, one in enumerate(queue)]
    assert [replace(grant, job="") for grant in allocate_round(renamed, cluster)] == [
        replace(g, job="") for g in grants
    ]


# ------------------------------------------------------------------------------------------- single cases


def test_an_empty_queue_gives_no_allocations() -> None:
    assert allocate_round((), servers(1)) == ()


def test_without_servers_each_job_waits_with_its_request() -> None:
    assert allocate_round([claim("a", "hungry")], ()) == (Allocation(job="a", cpus=3, mem_mib=64_000),)


def test_an_allocation_says_why_it_differs_from_the_request() -> None:
    (grant,) = allocate_round([claim("a", "light")], servers(1))
    assert grant == Allocation(
        job="a",
        cpus=1.0,
        mem_mib=20_000,
        servers=("n0",),
        speed=1.0,
        cpu_reason="1 CPUs per GPU instead of 3: runs at 1 times the speed of its share",
        mem_reason="20000 MiB per GPU instead of 64000: runs at 1 times the speed of its share",
    )


def test_hungry_jobs_are_mixed_with_light_ones_on_every_server() -> None:
    """8 hungry jobs before 8 light jobs of 1 CPU: 4 of each fit on a server if each hungry job gets 5 CPUs."""
    queue = [claim(f"h{n}", speeds=points((3, 64_000, 1.0), (5, 64_000, 1.5))) for n in range(8)]
    queue += [claim(f"l{n}", speeds=LIGHT) for n in range(8)]
    grants = allocate_round(queue, servers(2))
    assert [grant.cpus for grant in grants] == [5] * 8 + [1] * 8
    assert Counter(grant.servers for grant in grants[:8]) == {("n0",): 4, ("n1",): 4}


def test_steep_jobs_are_raised_before_wide_jobs_unlike_with_tune() -> None:
    """Two steep jobs with 6 CPUs each gain more than one wide job with 9 or 12."""
    queue = [claim(f"w{n}", speeds=WIDE) for n in range(2)] + [claim(f"s{n}", speeds=STEEP) for n in range(2)]
    queue += [claim(f"l{n}", speeds=LIGHT) for n in range(4)]
    assert [grant.cpus for grant in allocate_round(queue, servers(1), lead=0.0)[:4]] == [3, 3, 6, 6]
    assert [grant.cpus for grant in allocate(queue, servers(1), "tune")[:4]] != [3, 3, 6, 6]


def test_cpus_too_few_for_the_next_step_are_used_by_an_option_in_between() -> None:
    """24 - 6 x 3 - 1 = 5 CPUs are left for the last job: 12 do not fit, and the option of 5 is not a step."""
    late = points((3, 64_000, 1.0), (5, 64_000, 1.1), (12, 64_000, 2.9))
    queue = [*(claim(str(n)) for n in range(6)), claim("l", "light"), claim("a", speeds=late)]
    assert allocate_round(queue, servers(1))[-1].cpus == 5


def test_the_first_jobs_of_the_queue_are_raised_before_equal_later_jobs() -> None:
    queue = [claim(str(n), speeds=STEEP) for n in range(4)] + [claim(f"p{n}") for n in range(4)]
    assert [grant.cpus for grant in allocate_round(queue, servers(1))] == [3] * 8
    assert [grant.cpus for grant in allocate_round([*queue[:7], claim("l", "light")], servers(1))][:4] == [3, 3, 3, 3]
    light = [claim(f"l{n}", "light") for n in range(4)]
    assert [grant.cpus for grant in allocate_round([*queue[:4], *light], servers(1))] == [6, 6, 3, 3, 1, 1, 1, 1]


@pytest.mark.parametrize(("lead", "cpus"), [(0.0, [3, 6]), (5.0, [6, 3])])
def test_the_lead_setting_weights_the_first_jobs_of_the_queue(lead: float, cpus: list[float]) -> None:
    """The second job gains slightly more from the same CPUs."""
    first, second = points((3, 64_000, 1.0), (6, 64_000, 1.5)), points((3, 64_000, 1.0), (6, 64_000, 1.6))
    queue = [claim("a", speeds=first), claim("b", speeds=second), *(claim(f"p{n}") for n in range(4))]
    queue += [claim(f"l{n}", "light") for n in range(2)]
    assert [grant.cpus for grant in allocate_round(queue, servers(1), lead)[:2]] == cpus


def test_large_jobs_are_placed_before_small_jobs_use_idle_servers() -> None:
    queue = [*(claim(str(n)) for n in range(8)), claim("big", gpus_per_node=8)]
    assert all(grant.servers for grant in allocate_round(queue, servers(2)))


def test_a_job_of_several_nodes_gets_the_same_allocation_on_each() -> None:
    one = claim("a", speeds=STEEP, gpus_per_node=4, nodes=2)
    (grant,) = allocate_round([one], servers(2))
    assert (grant.cpus, grant.servers) == (6, ("n0", "n1"))


def test_a_job_that_does_not_fit_waits_and_the_next_job_is_placed() -> None:
    queue = [*(claim(str(n)) for n in range(7)), claim("big", gpus_per_node=4), claim("small")]
    assert [grant.job for grant in allocate_round(queue, servers(1)) if not grant.servers] == ["big"]


def test_a_round_keeps_no_reserve_for_other_jobs() -> None:
    """Without leases, idle GPUs keep a reserve, and the jobs of the queue may request more than is free."""
    queue = [claim(str(n), speeds=STEEP) for n in range(3)]
    assert [grant.cpus for grant in allocate_round(queue, servers(1))] == [6, 6, 6]
    still = GradedSettings(drain=1.0, reserve=1.0)
    assert [grant.cpus for grant in allocate(queue, servers(1), "graded", still)] == [3, 3, 3]
