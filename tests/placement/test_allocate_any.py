"""Properties of the allocation for every policy, every queue and every cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isclose

import pytest
from allocate_cases import situations, speed
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.allocation_options import share_of
from slurmwrap.placement.demand import Allocation, JobDemand, Server
from slurmwrap.placement.throughput import find_speed

Situation = tuple[tuple[JobDemand, ...], tuple[Server, ...]]
POLICIES = ("graded", "tune", "proportional")
FEW, MANY = settings(max_examples=12), settings(max_examples=30)  # each example is a queue of up to 12 jobs


def list_able_servers(demand: JobDemand, servers: Sequence[Server]) -> list[Server]:
    return [
        s for s in servers if s.gpus >= demand.gpus_per_node and (demand.servers is None or s.name in demand.servers)
    ]


def as_asked(demand: JobDemand, grant: Allocation) -> bool:
    return (grant.cpus, grant.mem_mib) == (demand.cpus, demand.mem_mib)


@MANY
@given(situations(), st.sampled_from(POLICIES))
def test_every_allocation_fits_into_the_free_resources_of_its_servers(situation: Situation, policy: str) -> None:
    queue, servers = situation
    grants = allocate(queue, servers, policy)
    assert [grant.job for grant in grants] == [claim.job for claim in queue]
    gpus, cpus, memory = Counter[str](), Counter[str](), Counter[str]()
    for claim, grant in zip(queue, grants, strict=True):
        names = {server.name for server in list_able_servers(claim, servers)}
        assert grant.servers == () or len(set(grant.servers) & names) == len(grant.servers) == claim.nodes
        per_node = grant.cpus * claim.gpus_per_node
        assert as_asked(claim, grant) or isclose(per_node, round(per_node), abs_tol=1e-6)  # whole CPUs
        for name in grant.servers:
            gpus[name] += claim.gpus_per_node
            cpus[name] += round(per_node * 1000)
            memory[name] += grant.mem_mib * claim.gpus_per_node
    for server in servers:
        assert gpus[server.name] <= server.gpus_free
        assert cpus[server.name] <= server.cpus_free * 1000
        assert memory[server.name] <= server.mem_free_mib


@MANY
@given(situations(), st.sampled_from(("graded", "tune")))
def test_no_job_is_slowed_or_changed_beyond_its_limits_or_without_a_profile(situation: Situation, policy: str) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        if as_asked(claim, grant):
            continue
        possible = list_able_servers(claim, servers)
        assert claim.speeds
        assert grant.cpus >= claim.least_cpus and grant.mem_mib >= claim.least_mem_mib
        assert claim.most_cpus is None or grant.cpus <= claim.most_cpus
        assert claim.most_mem_mib is None or grant.mem_mib <= claim.most_mem_mib
        for server in possible:
            assert grant.cpus * claim.gpus_per_node <= server.cpus + 1e-6
            assert grant.mem_mib * claim.gpus_per_node <= server.mem_mib
        share = share_of(claim, possible)
        if share is None:
            continue
        assert speed(claim, grant) >= find_speed(claim.speeds, share.cpus, share.mem_mib) * 0.999999
        if policy == "graded":  # Synergy-Tune ignores the request and uses the share
            assert speed(claim, grant) >= find_speed(claim.speeds, claim.cpus, claim.mem_mib) * 0.999999
        if any(s.gpus == claim.gpus_per_node for s in possible):  # the job has all GPUs of a node
            assert grant.cpus >= share.cpus - 1e-9 and grant.mem_mib >= share.mem_mib


@FEW
@given(situations())
def test_policy_proportional_keeps_every_request(situation: Situation) -> None:
    queue, servers = situation
    assert all(map(as_asked, queue, allocate(queue, servers, "proportional")))


@FEW
@given(situations(), st.sampled_from(POLICIES))
def test_server_order_and_later_unchanged_jobs_do_not_change_the_result(situation: Situation, policy: str) -> None:
    queue, servers = situation
    assert allocate(queue, servers, policy) == allocate(queue, tuple(reversed(servers)), policy)
    plain = tuple(
        JobDemand(job=c.job, gpus_per_node=c.gpus_per_node, nodes=c.nodes, cpus=c.cpus, mem_mib=c.mem_mib)
        for c in queue
    )
    half = len(plain) // 2
    assert allocate(plain, servers, policy)[:half] == allocate(plain[:half], servers, policy)


def test_an_unknown_policy_is_refused_with_its_name() -> None:
    with pytest.raises(ValueError, match="'fair'"):
        allocate((), (), "fair")
