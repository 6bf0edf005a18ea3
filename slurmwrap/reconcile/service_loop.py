"""Pass after pass until asked to stop: the reconciler as a service."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.errors import SlurmwrapError
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilerState, Services
from slurmwrap.reconcile.reconcile_pass import reconcile_once

# A job is COMPLETING, or an Epilog is still to be heard of.
_SOON_S = 2.0
_AWAY_S, _AWAY_MAX_S = 5.0, 300.0
_TICK_S = 0.25


def watch(
    edges: Services,
    *,
    poll_s: float,
    woken: Callable[[], object],
    stopped: Callable[[], bool],
    report: Callable[[PassSummary], None] = lambda summary: None,
) -> None:
    """Passes until `stopped()`: every `poll_s`, sooner while jobs are ending or when `woken()` changes its value.

    When Slurm, MUNGE or the database cannot be used it says so once and tries ever more rarely, up to every five
    minutes. Nothing is judged meanwhile: half of the evidence would make wrong diagnoses.
    """
    book, away_s = ReconcilerState(), 0.0
    while not stopped():
        seen = woken()
        try:
            summary = reconcile_once(edges, book)
        except SlurmwrapError as error:
            if not away_s:
                edges.say(f"trying again until it works: {error}")
            away_s = min(_AWAY_MAX_S, away_s * 2 or _AWAY_S)
            _wait(edges, away_s, stopped)
            continue
        if away_s:
            edges.say("it works again")
            away_s = 0.0
        report(summary)
        soon = summary.waiting or summary.held_back
        _wait(edges, min(_SOON_S, poll_s) if soon else poll_s, _combine_stops(stopped, woken, seen))


def _combine_stops(stopped: Callable[[], bool], woken: Callable[[], object], seen: object) -> Callable[[], bool]:
    return lambda: stopped() or woken() != seen


def _wait(edges: Services, seconds: float, over: Callable[[], bool]) -> None:
    """A wake file touched by many jobs in a row is one wake: nothing is done within the first second."""
    began = edges.clock.now()
    edges.clock.sleep(min(1.0, seconds))
    # A clock that is put back ends the wait.
    while 0 <= edges.clock.now() - began < seconds and not over():
        edges.clock.sleep(_TICK_S)
