"""What holds for every policy, every queue and every cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isclose

import pytest
from allocate_cases import situations, speed
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.claim import Claim, Grant, Server
from slurmwrap.placement.rungs import share_of
from slurmwrap.placement.speeds import speed_at

Situation = tuple[tuple[Claim, ...], tuple[Server, ...]]
POLICIES = ("graded", "tune", "proportional")
FEW = settings(max_examples=30, deadline=None)  # a queue of a dozen jobs each
policies = st.sampled_from(POLICIES)
OURS = st.sampled_from(("graded", "tune"))


def able(claim: Claim, servers: Sequence[Server]) -> list[Server]:
    return [s for s in servers if s.gpus >= claim.gpus_per_node and (claim.servers is None or s.name in claim.servers)]


def as_asked(claim: Claim, grant: Grant) -> bool:
    return (grant.cpus, grant.mem_mib) == (claim.cpus, claim.mem_mib)


@FEW
@given(situations(), policies)
def test_every_claim_gets_one_grant_in_the_order_of_the_queue(situation: Situation, policy: str) -> None:
    queue, servers = situation
    assert [grant.job for grant in allocate(queue, servers, policy)] == [claim.job for claim in queue]


@FEW
@given(situations(), policies)
def test_what_starts_on_a_server_fits_into_what_is_free_there(situation: Situation, policy: str) -> None:
    queue, servers = situation
    gpus, cpus, memory = Counter[str](), Counter[str](), Counter[str]()
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        for name in grant.servers:
            gpus[name] += claim.gpus_per_node
            cpus[name] += round(grant.cpus * claim.gpus_per_node * 1000)
            memory[name] += grant.mem_mib * claim.gpus_per_node
    for server in servers:
        assert gpus[server.name] <= server.gpus_free
        assert cpus[server.name] <= server.cpus_free * 1000
        assert memory[server.name] <= server.mem_free_mib


@FEW
@given(situations(), policies)
def test_a_job_that_starts_has_as_many_servers_as_it_needs_among_those_it_may_use(
    situation: Situation, policy: str
) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        names = {server.name for server in able(claim, servers)}
        assert grant.servers == () or len(set(grant.servers) & names) == len(grant.servers) == claim.nodes


@FEW
@given(situations(), OURS)
def test_no_job_is_slower_than_at_its_share_nor_than_as_it_asked(situation: Situation, policy: str) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        share = share_of(claim, able(claim, servers))
        if share is None or as_asked(claim, grant):
            continue
        assert speed(claim, grant) >= speed_at(claim.speeds, share.cpus, share.mem_mib) * 0.999999
        if policy == "graded":  # Synergy-Tune knows no request but the share
            assert speed(claim, grant) >= speed_at(claim.speeds, claim.cpus, claim.mem_mib) * 0.999999


@FEW
@given(situations(), OURS)
def test_what_differs_from_the_request_is_within_all_limits_and_what_every_possible_server_has(
    situation: Situation, policy: str
) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        if as_asked(claim, grant):
            continue
        assert grant.cpus >= claim.least_cpus and grant.mem_mib >= claim.least_mem_mib
        assert claim.most_cpus is None or grant.cpus <= claim.most_cpus
        assert claim.most_mem_mib is None or grant.mem_mib <= claim.most_mem_mib
        for server in able(claim, servers):
            assert grant.cpus * claim.gpus_per_node <= server.cpus + 1e-6
            assert grant.mem_mib * claim.gpus_per_node <= server.mem_mib


@FEW
@given(situations(), policies)
def test_a_node_is_given_whole_cpus(situation: Situation, policy: str) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        per_node = grant.cpus * claim.gpus_per_node
        assert as_asked(claim, grant) or isclose(per_node, round(per_node), abs_tol=1e-6)


@FEW
@given(situations(), OURS)
def test_a_job_that_owns_all_gpus_of_a_node_keeps_its_share_of_it(situation: Situation, policy: str) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        possible = able(claim, servers)
        share = share_of(claim, possible)
        if share is None or as_asked(claim, grant) or all(s.gpus > claim.gpus_per_node for s in possible):
            continue
        assert grant.cpus >= share.cpus - 1e-9 and grant.mem_mib >= share.mem_mib


@FEW
@given(situations(), OURS)
def test_a_job_of_which_nothing_is_known_keeps_what_it_asked(situation: Situation, policy: str) -> None:
    queue, servers = situation
    for claim, grant in zip(queue, allocate(queue, servers, policy), strict=True):
        assert claim.speeds or as_asked(claim, grant)


@FEW
@given(situations())
def test_proportional_leaves_every_request_as_it_is(situation: Situation) -> None:
    queue, servers = situation
    assert all(map(as_asked, queue, allocate(queue, servers, "proportional")))


@FEW
@given(situations(), policies)
def test_the_same_question_has_one_answer_whatever_the_order_of_the_servers(situation: Situation, policy: str) -> None:
    queue, servers = situation
    assert allocate(queue, servers, policy) == allocate(queue, tuple(reversed(servers)), policy)


@FEW
@given(situations(), policies)
def test_a_later_job_never_changes_where_an_earlier_one_starts_when_both_keep_their_requests(
    situation: Situation, policy: str
) -> None:
    queue, servers = situation
    plain = tuple(
        Claim(job=c.job, gpus_per_node=c.gpus_per_node, nodes=c.nodes, cpus=c.cpus, mem_mib=c.mem_mib) for c in queue
    )
    whole = allocate(plain, servers, policy)
    assert whole[: len(plain) // 2] == allocate(plain[: len(plain) // 2], servers, policy)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="'fair'"):
        allocate((), (), "fair")
