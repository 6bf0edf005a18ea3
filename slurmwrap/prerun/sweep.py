"""Which job of a sweep is tried next, and for how long one goes on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def choose_next(waiting: Mapping[T, Sequence[str]], passed: Collection[str]) -> T:
    """The job with most words that no argument list of a passed one had; of several the first. `waiting`: job -> its
    arguments; not empty."""
    known = set(passed)
    return max(waiting, key=lambda job: len(set(waiting[job]) - known))


def has_time(elapsed_s: float, longest_s: float, budget_s: float) -> bool:
    """Whether another trial, as long as the longest so far, ends within the budget."""
    return elapsed_s + longest_s <= budget_s
