"""Fit how much speed jobs lose next to other jobs on their nodes, from runs of the same work at this site. Pure.

Compared are runs of one user's script with the same options, on as many GPUs of one partition, by their counted steps:
those that had a node for themselves and those next to which others were busy. The model is

    ln(speed) = what the work has - sum over resources of weight x own part x others' part - weight x far

A part is the share of the node's CPUs, memory or PCIe that is in use, others' over the time of the run; `far` is 1 on
several leaf switches, so that distance is not taken for contention. The weights are those of a ridge regression within
each work. Only a bound that holds with near certainty counts: the estimate less Z standard errors, which are the larger
of the usual ones and those over users, so that one user's runs prove nothing. docs/placement.md describes the use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum, log, sqrt

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.cluster import NO_EVIDENCE, ContentionWeights, Node
from slurmwrap.model.resource_profile import MOST_PCIE_UNUSED, is_sensitive

# Fewest pairs of a run alone and a run of the same work next to others, and fewest users of whom they are.
LEAST_PAIRS, LEAST_USERS = 20, 3
# A run counts as next to others from this clash on.
_BESIDE = 0.01
Z = 3.0
MOST_WEIGHT = 4.0
# A smaller change of a weight would move no job, and may be chance.
_LEAST_CHANGE = 0.05
# Variance of the noise of ln(speed) over that of a weight before anything is known: 0.1² and 1².
_RIDGE = 0.01
# A speed that differs more from the mean of its work is cut: another program under the same name.
_MOST_RATIO = 4.0
_RESOURCES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run with GPUs: one whose steps were counted, or only a neighbour of such runs. None: unknown."""

    uid: int
    work: tuple[str, ...] = ()  # script, variant, GPUs, partition; () for a neighbour
    nodes: tuple[str, ...]
    gpus: int
    start: float  # Unix seconds
    end: float
    steps_per_s: float | None = None
    cpus_used: float | None = None  # on one node
    mem_peak_mib: int | None = None  # on one node
    gpu_pcie: float | None = None  # mean share over its GPUs
    sensitivity: Mapping[str, float]  # of its profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionCase:
    """One run in the regression. `clash`: own part x others' part of CPUs, memory and PCIe."""

    uid: int
    work: tuple[str, ...]
    log_speed: float
    clash: tuple[float, float, float]
    far: bool


def make_contention_cases(
    runs: Sequence[ComparedRun], nodes: Mapping[str, Node], leaf_of: Mapping[str, str]
) -> tuple[ContentionCase, ...]:
    """Return the runs with counted steps on known nodes. `leaf_of`: node -> leaf switch, as far as it is known."""
    at: dict[str, list[ComparedRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.end):
        for name in run.nodes:
            at[name].append(run)
    ends = {name: [run.end for run in there] for name, there in at.items()}
    longest = max((run.end - run.start for run in runs), default=0.0)
    found = []
    for run in runs:
        if run.work and run.steps_per_s and run.end > run.start and all(name in nodes for name in run.nodes):
            each = []
            for name in run.nodes:
                first, last = (bisect_left(ends[name], when) for when in (run.start, run.end + longest))
                each.append(_compute_clash(run, nodes[name], at[name][first:last]))
            leaves = {leaf_of.get(name) for name in run.nodes}
            cpus, memory, pcie = (fsum(values) / len(values) for values in zip(*each, strict=True))
            found.append(
                ContentionCase(
                    uid=run.uid,
                    work=(str(run.uid), *run.work),
                    log_speed=log(run.steps_per_s),
                    clash=(cpus, memory, pcie),
                    far=len(leaves) > 1,
                )
            )
    return tuple(found)


def _compute_clash(run: ComparedRun, node: Node, there: Sequence[ComparedRun]) -> tuple[float, ...]:
    """Return the products of own and others' part, 0 of a resource to which the run is not sensitive."""
    own = _compute_parts(run, node)
    others = [0.0] * _RESOURCES
    for other in there:
        if other is not run and (both_s := min(run.end, other.end) - max(run.start, other.start)) > 0:
            parts = _compute_parts(other, node)
            others = [sum_ + part * both_s / (run.end - run.start) for sum_, part in zip(others, parts, strict=True)]
    suffers = (
        is_sensitive(run.sensitivity, "cpu"),
        is_sensitive(run.sensitivity, "mem_bw"),
        (run.gpu_pcie or 0.0) > MOST_PCIE_UNUSED,
    )
    return tuple(a * min(1.0, b) * has for a, b, has in zip(own, others, suffers, strict=True))


def _compute_parts(run: ComparedRun, node: Node) -> tuple[float, float, float]:
    gpus = run.gpus / len(run.nodes)
    amounts = (
        ((run.cpus_used or 0.0), node.cpus),
        (float(run.mem_peak_mib or 0), node.mem_mib),
        ((run.gpu_pcie or 0.0) * gpus, node.gpus),
    )
    cpus, memory, pcie = (min(1.0, some / whole) if whole else 0.0 for some, whole in amounts)
    return cpus, memory, pcie


def fit_contention_weights(cases: Sequence[ContentionCase]) -> ContentionWeights:
    """Return the weights of the node score that the cases prove; NO_EVIDENCE if they prove nothing.

    A weight is never below that of NO_EVIDENCE and never above MOST_WEIGHT.
    """
    works: dict[tuple[str, ...], list[ContentionCase]] = defaultdict(list)
    for case in cases:
        works[case.work].append(case)
    compared = {work: same for work, same in works.items() if _count_pairs(same)}
    pairs = sum(map(_count_pairs, compared.values()))
    users = {same[0].uid for same in compared.values()}
    if pairs < LEAST_PAIRS or len(users) < LEAST_USERS:
        return NO_EVIDENCE
    rows = [row for same in compared.values() for row in _center(same)]
    bounds = _compute_lower_bounds(rows, works=len(compared))
    before = (NO_EVIDENCE.cpus, NO_EVIDENCE.memory, NO_EVIDENCE.pcie)
    cpus, memory, pcie = (
        round(min(MOST_WEIGHT, bound), 3) if bound >= least + _LEAST_CHANGE else least
        for least, bound in zip(before, bounds[:_RESOURCES], strict=True)
    )
    if (cpus, memory, pcie) == before:
        return NO_EVIDENCE
    return ContentionWeights(cpus=cpus, memory=memory, pcie=pcie, pairs=pairs)


def _count_pairs(same: Sequence[ContentionCase]) -> int:
    beside = sum(max(case.clash) >= _BESIDE for case in same)
    return min(beside, len(same) - beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A case less the mean of its work: loss of ln(speed), and the regressors."""

    uid: int
    loss: float
    x: tuple[float, ...]


def _center(same: Sequence[ContentionCase]) -> list[_Row]:
    most = log(_MOST_RATIO)
    middle = sorted(case.log_speed for case in same)[len(same) // 2]
    losses = [max(-most, min(most, middle - case.log_speed)) for case in same]
    columns = list(zip(*((*case.clash, float(case.far)) for case in same), strict=True))
    means = [fsum(column) / len(same) for column in columns]
    loss = fsum(losses) / len(same)
    return [
        _Row(uid=case.uid, loss=one - loss, x=tuple(v - m for v, m in zip((*case.clash, case.far), means, strict=True)))
        for case, one in zip(same, losses, strict=True)
    ]


def _compute_lower_bounds(rows: Sequence[_Row], *, works: int) -> list[float]:
    """Return estimate less Z standard errors for each regressor."""
    size = range(len(rows[0].x))
    gram = [[fsum(row.x[i] * row.x[j] for row in rows) + _RIDGE * (i == j) for j in size] for i in size]
    inverse = _invert(gram)
    moments = [fsum(row.x[i] * row.loss for row in rows) for i in size]
    weights = [fsum(inverse[i][j] * moments[j] for j in size) for i in size]
    errors = [row.loss - fsum(weight * x for weight, x in zip(weights, row.x, strict=True)) for row in rows]
    noise = fsum(error * error for error in errors) / max(1, len(rows) - works - len(weights))
    scores: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(weights))
    for row, error in zip(rows, errors, strict=True):
        scores[row.uid] = [sum_ + x * error for sum_, x in zip(scores[row.uid], row.x, strict=True)]
    by_user = len(scores) / (len(scores) - 1)
    bounds = []
    for i in size:
        usual = noise * inverse[i][i]
        over_users = by_user * fsum(
            fsum(part * score for part, score in zip(inverse[i], own, strict=True)) ** 2 for own in scores.values()
        )
        bounds.append(weights[i] - Z * sqrt(max(usual, over_users)))
    return bounds


def _invert(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a positive definite matrix (Gauss-Jordan)."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [value - factor * other for value, other in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]
