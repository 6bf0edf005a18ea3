"""Weights of busy neighbours: those of a synthetic site are recovered, and without an effect nothing changes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log

import pytest

from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, Node
from slurmwrap.profiling.contention import (
    MOST_WEIGHT,
    ComparedRun,
    ContentionCase,
    fit_contention_weights,
    make_contention_cases,
)

NODES = {name: Node(name=name, state="IDLE", gpus=8, cpus=64, mem_mib=512_000) for name in ("n1", "n2", "n3")}
SENSITIVE = {"cpu": 1.3, "mem_bw": 1.2}


def make_site(
    weights: ContentionWeights, *, seed: int = 1, users: int = 8, works: int = 30, runs: int = 8, far: float = 0.0
) -> list[ContentionCase]:
    """Make runs of which half are beside others, with 3 % noise, on a site with these weights."""
    rng = random.Random(seed)
    cases = []
    for work in range(works):
        speed = log(rng.uniform(0.5, 50))
        for run in range(runs):
            cpus, memory, pcie = (rng.uniform(0.0, 0.3) if run % 2 else 0.0 for _ in range(3))
            is_far = rng.random() < 0.3
            lost = weights.cpus * cpus + weights.memory * memory + weights.pcie * pcie + far * is_far
            cases.append(
                ContentionCase(
                    uid=work % users, work=(str(work),), log_speed=speed - lost + rng.gauss(0, 0.03),
                    clash=(cpus, memory, pcie), far=is_far,
                )
            )  # fmt: skip
    return cases


@pytest.mark.parametrize("seed", range(3))
def test_the_weights_of_a_site_are_recovered_from_below(seed: int) -> None:
    true = ContentionWeights(cpus=2.5, memory=1.6, pcie=0.8)
    found = fit_contention_weights(make_site(true, seed=seed, far=0.2))
    assert found.pairs == 120
    for name in ("cpus", "memory", "pcie"):
        assert getattr(true, name) - 0.35 < getattr(found, name) < getattr(true, name)


def test_without_an_effect_nothing_changes() -> None:
    none = ContentionWeights(cpus=0.0, memory=0.0, pcie=0.0)
    assert {fit_contention_weights(make_site(none, seed=seed)) for seed in range(40)} == {NO_EVIDENCE}
    assert fit_contention_weights(make_site(NO_EVIDENCE)) == NO_EVIDENCE  # what the score assumes anyway
    assert fit_contention_weights([]) == NO_EVIDENCE


def test_distance_is_not_taken_for_contention() -> None:
    none = ContentionWeights(cpus=0.0, memory=0.0, pcie=0.0)
    beside_is_far = [replace(case, far=case.far or max(case.clash) > 0) for case in make_site(none)]
    slow = [replace(case, log_speed=case.log_speed - 0.3 * case.far) for case in beside_is_far]
    assert fit_contention_weights(slow) == NO_EVIDENCE


def test_a_weight_has_an_upper_bound() -> None:
    found = fit_contention_weights(make_site(ContentionWeights(cpus=4.6, memory=1.0)))
    assert (found.cpus, found.memory, found.pcie) == (MOST_WEIGHT, 1.0, 0.0)


def test_few_pairs_few_users_and_one_user_among_others_prove_nothing() -> None:
    true = ContentionWeights(cpus=3.0)
    assert fit_contention_weights(make_site(true, works=4, runs=8)) == NO_EVIDENCE
    assert fit_contention_weights(make_site(true, users=2)) == NO_EVIDENCE
    none = ContentionWeights(cpus=0.0, memory=0.0, pcie=0.0)
    honest = make_site(none, users=8)
    liar = [replace(case, uid=99, work=("liar", *case.work)) for case in make_site(ContentionWeights(pcie=9.0))]
    assert fit_contention_weights([*honest, *liar]) == NO_EVIDENCE


def run(start: float, end: float, *nodes: str, cpus: float | None = 16.0, **values: object) -> ComparedRun:
    found = ComparedRun(
        uid=1, work=("w",), nodes=nodes, gpus=2 * len(nodes), start=start, end=end, steps_per_s=2.0, cpus_used=cpus,
        mem_peak_mib=128_000, sensitivity=SENSITIVE,
    )  # fmt: skip
    return replace(found, **values)  # type: ignore[arg-type]


def clash_of(runs: Sequence[ComparedRun], leaf_of: Mapping[str, str] | None = None) -> tuple[tuple[float, ...], bool]:
    case = make_contention_cases(runs, NODES, leaf_of or {})[0]
    return case.clash, case.far


def test_the_clash_is_own_part_times_others_over_the_time_of_the_run() -> None:
    one = run(0, 100, "n1")
    neighbour = replace(run(50, 300, "n1", cpus=32.0), work=(), steps_per_s=None)
    assert clash_of([one]) == ((0, 0, 0), False)
    assert clash_of([one, neighbour])[0] == pytest.approx((0.25 * 0.25, 0.25 * 0.125, 0))
    assert clash_of([one, run(0, 100, "n2"), run(-50, 0, "n1"), run(100, 900, "n1")])[0] == (0, 0, 0)
    unknown = replace(neighbour, cpus_used=None, mem_peak_mib=None)
    assert clash_of([one, unknown])[0] == (0, 0, 0)
    assert clash_of([replace(one, sensitivity={}), neighbour])[0] == (0, 0, 0)
    busy = [replace(each, gpu_pcie=0.5) for each in (one, neighbour)]
    assert clash_of(busy)[0][2] == pytest.approx(0.125 * 0.5 * 0.125)


def test_a_run_on_several_nodes_has_the_mean_of_them_and_may_be_far() -> None:
    runs = [run(0, 100, "n1", "n2"), replace(run(0, 100, "n2", cpus=64.0), work=())]
    assert clash_of(runs)[0][0] == pytest.approx(0.25 * 1.0 / 2)
    assert clash_of(runs, {"n1": "a", "n2": "a"})[1] is False
    assert clash_of(runs, {"n1": "a", "n2": "b"})[1] is True
    assert make_contention_cases([run(0, 100, "n9"), run(0, 100, "n1", steps_per_s=None)], NODES, {}) == ()
    assert exp(make_contention_cases(runs, NODES, {})[0].log_speed) == pytest.approx(2.0)
