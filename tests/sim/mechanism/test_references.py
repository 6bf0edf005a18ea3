"""The mechanisms of Synergy's authors in one round, on servers of 8 GPUs, 24 CPUs and 512,000 MiB."""

from __future__ import annotations

from collections.abc import Sequence

from allocate_cases import points, servers
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.placement.demand import Allocation, JobDemand
from slurmwrap.sim.mechanism.reference_mechanisms import (
    reference_greedy,
    reference_proportional,
    reference_tetris,
    reference_tune,
)

SPEEDS = {
    "hungry": points((3, 64_000, 1.0), (12, 64_000, 3.0)),
    "mild": points((3, 64_000, 1.0), (6, 64_000, 1.5)),
    "learned": points((3, 64_000, 1.0), (3, 192_000, 2.0)),
    "wide": points((3, 64_000, 1.0), (9, 192_000, 2.0)),
    "light": points((1, 16_000, 1.0)),
    "lopsided": points((1, 64_000, 1.0), (1, 192_000, 2.0)),  # best with less than its share of CPUs
    "": (),
}
queues = st.lists(st.tuples(st.sampled_from(sorted(SPEEDS)), st.sampled_from([1, 1, 1, 2, 4, 8, 16])), max_size=16)


def job(kind: str, gpus: int = 1, name: str = "") -> JobDemand:
    return JobDemand(job=name or kind, gpus_per_node=gpus, cpus=3.0, mem_mib=64_000, speeds=SPEEDS[kind])


def list_allocations(grants: Sequence[Allocation]) -> list[tuple[float, int, tuple[str, ...], float | None]]:
    return [(grant.cpus, grant.mem_mib, grant.servers, grant.speed) for grant in grants]


def test_proportional_gives_each_gpu_its_share_of_every_resource() -> None:
    grants = reference_proportional([job("hungry"), job("light", 2), job("")], servers(1))
    assert list_allocations(grants) == [(3, 64_000, ("n0",) * gpus, 1.0) for gpus in (1, 2, 1)]


def test_proportional_fills_servers_in_order_and_skips_jobs_that_do_not_fit() -> None:
    grants = reference_proportional([job("light", 6), job("light", 6), job("light", 6)], servers(2))
    assert [grant.servers for grant in grants] == [("n0",) * 6, ("n0",) * 2 + ("n1",) * 4, ()]


def test_with_consolidate_a_job_uses_one_server_if_possible() -> None:
    queue = [job("light", 6), job("light", 6), job("light", 2), job("light", 2)]
    grants = reference_proportional(queue, servers(2), consolidate=True)
    assert [grant.servers for grant in grants] == [("n0",) * 6, ("n1",) * 6, ("n0",) * 2, ("n1",) * 2]
    apart = reference_proportional([job("light", 7), job("light", 7), job("light", 2)], servers(2), consolidate=True)
    assert apart[2].servers == ("n0", "n1")


def test_greedy_places_only_jobs_whose_best_amount_fits() -> None:
    queue = [job("hungry"), job("hungry"), job("hungry"), job("light")]
    assert list_allocations(reference_greedy(queue, servers(1))) == [
        (12, 64_000, ("n0",), 3.0),
        (12, 64_000, ("n0",), 3.0),
        (12, 64_000, (), None),
        (1, 16_000, (), None),
    ]
    assert [bool(grant.servers) for grant in reference_greedy([*queue[1:], *queue[:1]], servers(1))] == [
        True,
        True,
        False,
        False,
    ]


def test_tune_gives_best_amounts_then_shares_then_cuts_earlier_jobs() -> None:
    queue = [job("mild"), job("hungry"), job("hungry"), job("mild"), job("")]
    assert list_allocations(reference_tune(queue, servers(1))) == [
        (6, 64_000, ("n0",), 1.5),
        (3, 64_000, ("n0",), 1.0),
        (3, 64_000, ("n0",), 1.0),
        (3, 64_000, ("n0",), 1.0),
        (3, 64_000, ("n0",), None),
    ]


def test_tune_places_every_job_whose_gpus_fit() -> None:
    kinds = ("hungry", "learned", "light", "", "wide", "mild")
    queue = [job(kinds[number % 6], gpus) for number, gpus in enumerate((8, 4, 4, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1))]
    for consolidate in (False, True):
        grants = reference_tune(queue, servers(4), consolidate=consolidate)
        assert [len(grant.servers) for grant in grants] == [claim.gpus for claim in queue]
        for name in ("n0", "n1", "n2", "n3"):
            assert sum(grant.cpus * grant.servers.count(name) for grant in grants) <= 24
            assert sum(grant.mem_mib * grant.servers.count(name) for grant in grants) <= 512_000


@settings(max_examples=60)
@given(queues, st.booleans(), st.booleans())
def test_tune_overfills_no_server_and_gives_no_job_less_than_its_share(
    queue: list[tuple[str, int]], consolidate: bool, largest_first: bool
) -> None:
    claims = [job(kind, gpus) for kind, gpus in queue]
    while sum(claim.gpus for claim in claims) > 16:
        claims.pop()
    grants = reference_tune(claims, servers(2), consolidate=consolidate, largest_first=largest_first)
    for name in ("n0", "n1"):
        assert sum(grant.cpus * grant.servers.count(name) for grant in grants) <= 24 + 1e-6
        assert sum(grant.mem_mib * grant.servers.count(name) for grant in grants) <= 512_000
    assert [len(grant.servers) for grant in grants] == [claim.gpus for claim in claims]
    assert all((grant.speed or 1.0) >= 1.0 for grant in grants)


def test_tune_cuts_a_job_even_if_that_frees_no_missing_resource() -> None:
    """The last job lacks memory; `hungry` has the most CPUs, so it is cut first, but it has no extra memory."""
    queue = [job("hungry"), job("learned"), job("learned"), job(""), job("")]
    assert list_allocations(reference_tune(queue, servers(1))) == [
        (3, 64_000, ("n0",), 1.0),
        (3, 64_000, ("n0",), 1.0),
        (3, 192_000, ("n0",), 2.0),
        (3, 64_000, ("n0",), None),
        (3, 64_000, ("n0",), None),
    ]


def test_tune_largest_first_places_by_gpus_and_keeps_the_order_of_results() -> None:
    queue = [job("hungry"), job("hungry", 2)]
    assert list_allocations(reference_tune(queue, servers(1), largest_first=True)) == [
        (3, 64_000, ("n0",), 1.0),
        (3, 64_000, ("n0", "n0"), 1.0),
    ]
    assert list_allocations(reference_tune(queue, servers(2), largest_first=True)) == [
        (12, 64_000, ("n1",), 3.0),
        (12, 64_000, ("n0", "n0"), 3.0),
    ]


def test_tetris_prefers_a_job_whose_demand_fits_what_is_free() -> None:
    """Two jobs with four times the share leave no CPUs; after one of them the light job fits best."""
    queue = [job("light"), job("hungry", name="a"), job("hungry", name="b"), job("hungry", name="c")]
    grants = reference_tetris(queue, servers(1))
    assert [bool(grant.servers) for grant in grants] == [False, True, True, False]


def test_tetris_follows_the_order_among_equal_jobs() -> None:
    grants = reference_tetris([job("hungry"), job("hungry"), job("hungry")], servers(1))
    assert [bool(grant.servers) for grant in grants] == [True, True, False]


@given(queues)
@settings(max_examples=60, deadline=None)
def test_tetris_gives_each_job_its_best_or_nothing(queue: list[tuple[str, int]]) -> None:
    demands = [job(kind, gpus, str(number)) for number, (kind, gpus) in enumerate(queue)]
    grants = reference_tetris(demands, servers(2))
    greedy = reference_greedy(demands, servers(2))
    for grant, other, demand in zip(grants, greedy, demands, strict=True):
        assert (grant.cpus, grant.mem_mib) == (other.cpus, other.mem_mib)
        assert len(grant.servers) in (0, demand.gpus)
    used = sum(len(grant.servers) for grant in grants)
    assert used <= 16
    assert sum(len(grant.servers) * grant.cpus for grant in grants) <= 48 + 1e-6
