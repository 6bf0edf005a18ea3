"""Runs that we placed, each next to a run of the same work that lay farther apart: what lying close gave. Pure.

Of the same work: one user's script with the same batch size, model and whatever else shifts what a step costs, on as
many GPUs. Speed is the program's own steps per second (gsub --count-steps).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurmwrap.report.categories import group_by
from slurmwrap.report.report_inputs import Paced
from slurmwrap.report.run_locality import ONE, UNKNOWN, find_locality

_UNKNOWN = -1


class Pair(NamedTuple):
    """Of the same work."""

    close: Paced
    apart: Paced

    @property
    def gpu_hours(self) -> float:
        """So much longer the close one would have held its GPUs at the other's speed; below 0: it was the slower."""
        return self.close.gpu_s * (self.close.steps_per_s / self.apart.steps_per_s - 1) / 3600


def find_pairs(runs: Sequence[Paced], switch_of: Mapping[str, str]) -> list[Pair]:
    """The placed runs among those of the same work that lay closest, each with the one that lay farther apart and ended
    nearest to it in time. No run is in two pairs."""
    return [
        pair for same in group_by(runs, lambda run: run.work).values() for pair in _pair_runs_of_work(same, switch_of)
    ]


def _pair_runs_of_work(runs: Sequence[Paced], switch_of: Mapping[str, str]) -> Iterable[Pair]:
    levels = group_by(runs, lambda run: _get_level(run.nodes, switch_of))
    levels.pop(_UNKNOWN, None)
    closest = min(levels, default=_UNKNOWN)
    apart = sorted((run for level in levels if level != closest for run in levels[level]), key=_make_order_key)
    ends = [run.ended for run in apart]
    for close in sorted((run for run in levels.get(closest, ()) if run.placed), key=_make_order_key):
        if not apart:
            break
        at = bisect_left(ends, close.ended)
        if at == len(ends) or (at and close.ended - ends[at - 1] < ends[at] - close.ended):
            at -= 1
        del ends[at]
        yield Pair(close, apart.pop(at))


def _make_order_key(run: Paced) -> tuple[float, tuple[str, ...]]:
    return run.ended, run.nodes


def _get_level(nodes: Sequence[str], switch_of: Mapping[str, str]) -> int:
    """0: one node, 1: one switch, 2: several."""
    if len(nodes) == 1:
        return 0
    found = find_locality(nodes, switch_of)
    return _UNKNOWN if found == UNKNOWN else 1 if found == ONE else 2
