"""How much faster the same work is on more GPUs, by complete runs. Pure.

The same work: one user's program with the same settings for the cost of a step and for the length of the training. If
the length is given in epochs, or in the program, a run on more GPUs does the same work, and the run times are compared.
If it is given in steps, each GPU is assumed to keep its batch: then the speed is steps per second times GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import log2

from slurmwrap.digest import sha256_hex
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.resource_profile import RunSpeed

# Runs that a mean goes over, and points that a profile keeps.
_MEAN_RUNS, _MOST_POINTS = 8, 24
# From one number of GPUs to twice as many, work that is not so many times as fast does not use them.
LEAST_GAIN = 1.3


def make_run_speed(
    *,
    gpus: int,
    nodes: int,
    run_s: float,
    steps_per_s: float | None,
    at: float,
    variant: str,
    length: Sequence[tuple[str, str]],
) -> RunSpeed | None:
    """Return the speed of one complete run; None if it had no GPU or took no time.

    `variant`, `length`: by job_key.derive_variant() and derive_length(). `at`: its end, Unix seconds.
    """
    if gpus < 1 or nodes < 1 or run_s <= 0:
        return None
    return RunSpeed(
        work=sha256_hex(json.dumps([variant, [list(pair) for pair in length]]).encode())[:12],
        gpus=gpus,
        nodes=nodes,
        run_s=run_s,
        steps_per_s=steps_per_s,
        at=at,
        by_steps=any("epoch" not in name and _is_count(value) for name, value in length)
        and not any("epoch" in name for name, _ in length),
    )


def _is_count(value: str) -> bool:
    return value.replace("_", "").isdecimal()


def merge_speeds(known: Sequence[RunSpeed], new: RunSpeed) -> tuple[RunSpeed, ...]:
    """Return the points with one more run, newest first."""
    same = [one for one in known if (one.work, one.gpus, one.nodes) == (new.work, new.gpus, new.nodes)]
    for old in same:
        share = 1 / min(old.runs + 1, _MEAN_RUNS)
        steps = new.steps_per_s
        if old.steps_per_s is not None:
            steps = old.steps_per_s if steps is None else old.steps_per_s + share * (steps - old.steps_per_s)
        new = replace(
            new,
            runs=old.runs + 1,
            run_s=old.run_s + share * (new.run_s - old.run_s),
            steps_per_s=steps,
            at=max(old.at, new.at),
        )
    return (new, *(one for one in known if one not in same))[:_MOST_POINTS]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The speed on so many GPUs, as a multiple of that on the fewest. `runs`: the number of runs behind it."""

    gpus: int
    nodes: int
    speed: float
    runs: int
    by_steps: bool = False  # as in RunSpeed: each GPU is assumed to keep its batch


def list_scaling(speeds: Iterable[RunSpeed], work: str | None = None) -> tuple[ScalingPoint, ...]:
    """Return the speeds of the work that ran on most numbers of GPUs, the newest of these; () if there is only one.

    `work`: of this work only.
    """
    works: dict[str, dict[int, RunSpeed]] = {}
    for one in speeds:
        if work in (None, one.work) and _get_rate(one) is not None:
            by_gpus = works.setdefault(one.work, {})
            # On as many GPUs, the fewest nodes.
            known = by_gpus.get(one.gpus)
            if known is None or (one.nodes, -one.at) < (known.nodes, -known.at):
                by_gpus[one.gpus] = one
    best = max(works.values(), key=lambda found: (len(found), max(one.at for one in found.values())), default={})
    if len(best) < 2:
        return ()
    rates = {gpus: _get_rate(one) or 0.0 for gpus, one in best.items()}
    least = rates[min(rates)]
    return tuple(
        ScalingPoint(
            gpus=gpus,
            nodes=best[gpus].nodes,
            speed=rate / least,
            runs=best[gpus].runs,
            by_steps=best[gpus].by_steps,
        )
        for gpus, rate in sorted(rates.items())
    )


def _get_rate(one: RunSpeed) -> float | None:
    if one.by_steps:
        return one.steps_per_s * one.gpus if one.steps_per_s else None
    return 1 / one.run_s if one.run_s > 0 else None


def find_enough_gpus(points: Sequence[ScalingPoint], gpus: int) -> tuple[ScalingPoint, ScalingPoint] | None:
    """Return (the point that suffices, the one that gains too little) for a request of `gpus`; None if it is fine.

    From each point to the next, twice the GPUs must make it at least LEAST_GAIN times as fast.
    """
    for fewer, more in pairwise(points):
        wanted = LEAST_GAIN ** log2(more.gpus / fewer.gpus)
        if fewer.gpus < gpus and more.gpus <= gpus and more.speed < wanted * fewer.speed:
            return fewer, more
    return None


def describe_scaling(points: Sequence[ScalingPoint]) -> str:
    """Return the points in words: "8 GPUs: 6.1x of one (3 runs); 16: 7.0x (1 run)"."""
    base = "one" if points[0].gpus == 1 else f"{points[0].gpus} GPUs"
    parts = [
        f"{one.gpus}{' GPUs' if number == 0 else ''}: {one.speed:.1f}x{f' of {base}' if number == 0 else ''}"
        f" ({one.runs} run{'s' * (one.runs > 1)})"
        for number, one in enumerate(points[1:])
    ]
    return "; ".join(parts) + ("; if each GPU keeps its batch" if points[0].by_steps else "")
