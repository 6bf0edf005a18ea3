"""Wanted: which runs a person asks to see, by the words of `slurmwrap history` and `slurmwrap jobs`. Pure.

`matches` tests a record; store/list_queries.py asks a database the same, so that what a large site keeps need not be
read.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.job_run import JobRun

# Categories of a judged run that did not fail.
NO_FAILURES = ("success", "cancelled", "completed_with_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """What is left empty asks for everything. Times in Unix seconds."""

    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # patterns: "sweep*"
    categories: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    # Slurm's in capitals; PENDING and RUNNING: it has not ended.
    states: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    # It ended then or later, or not yet.
    since: float | None = None
    # It ended, or if it has not ended began, before.
    until: float | None = None
    failed: bool = False


def state_of(run: JobRun) -> str:
    """Slurm's record; of a run that has not ended PENDING or RUNNING."""
    return run.state or ("PENDING" if run.start_time is None else "RUNNING")


def failed(run: JobRun) -> bool:
    """Judged, and neither completed, with an error in the output or without, nor cancelled."""
    return run.diagnosis is not None and run.diagnosis.category not in NO_FAILURES


def matches(run_filter: RunFilter, run: JobRun) -> bool:
    """Whether the run is one of them."""
    category = run.diagnosis.category if run.diagnosis is not None else ""
    chosen = (
        (run_filter.users, run.user),
        (run_filter.accounts, run.account),
        (run_filter.categories, category),
        (run_filter.decisions, run.decision),
        (run_filter.states, state_of(run)),
    )
    return (
        all(not words or word in words for words, word in chosen)
        and (not run_filter.partitions or bool(set(run_filter.partitions) & set(run.partition.split(","))))
        and (not run_filter.names or any(fnmatchcase(run.name, pattern) for pattern in run_filter.names))
        and (not run_filter.nodes or bool(set(run_filter.nodes) & set(run.nodes)))
        and (not run_filter.failed or failed(run))
        and within(run_filter, run)
    )


def moment_of(run: JobRun) -> int:
    """By what lists are sorted: its end, or its beginning while it runs or waits. Unix seconds."""
    return run.end_time or run.start_time or run.attempt.submit_time


def within(run_filter: RunFilter, run: JobRun) -> bool:
    """Whether it lies in the time that is asked for."""
    late_enough = run_filter.since is None or run.end_time is None or run.end_time >= run_filter.since
    return late_enough and (run_filter.until is None or moment_of(run) < run_filter.until)
