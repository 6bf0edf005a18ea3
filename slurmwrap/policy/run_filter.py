"""RunFilter: select the runs that the options of `slurmwrap history` and `slurmwrap jobs` ask for. Pure.

`matches` tests one record. store/list_queries.py makes a database query of the same filter, so that a large site's
records need not all be read.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.job_run import JobRun

# Categories of judged runs that did not fail.
NO_FAILURES = ("success", "cancelled", "completed_with_error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions on runs. An empty field selects everything. Times in Unix seconds."""

    clusters: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # patterns, e.g. "sweep*"
    categories: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    # Slurm's states in capitals. PENDING and RUNNING select runs that have not ended.
    states: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    # It ended at this time or later, or has not ended.
    since: float | None = None
    # It ended before this time or, if it has not ended, began before it.
    until: float | None = None
    failed: bool = False


def state_of(run: JobRun) -> str:
    """Return Slurm's final state, or PENDING or RUNNING for a run that has not ended."""
    return run.state or ("PENDING" if run.start_time is None else "RUNNING")


def failed(run: JobRun) -> bool:
    """Return True if the run was judged as neither completed (with or without an error in its output) nor cancelled."""
    return run.diagnosis is not None and run.diagnosis.category not in NO_FAILURES


def matches(run_filter: RunFilter, run: JobRun) -> bool:
    """Return True if the filter selects the run."""
    category = run.diagnosis.category if run.diagnosis is not None else ""
    chosen = (
        (run_filter.clusters, run.attempt.cluster),
        (run_filter.users, run.user),
        (run_filter.accounts, run.account),
        (run_filter.categories, category),
        (run_filter.decisions, run.decision),
        (run_filter.states, state_of(run)),
    )
    return (
        all(not values or value in values for values, value in chosen)
        and (not run_filter.partitions or bool(set(run_filter.partitions) & set(run.partition.split(","))))
        and (not run_filter.names or any(fnmatchcase(run.name, pattern) for pattern in run_filter.names))
        and (not run_filter.nodes or bool(set(run_filter.nodes) & set(run.nodes)))
        and (not run_filter.failed or failed(run))
        and within(run_filter, run)
    )


def moment_of(run: JobRun) -> int:
    """Return the time by which lists are sorted: its end, or its begin while it runs or waits. Unix seconds."""
    return run.end_time or run.start_time or run.attempt.submit_time


def within(run_filter: RunFilter, run: JobRun) -> bool:
    """Return True if the run lies within the filter's times."""
    late_enough = run_filter.since is None or run.end_time is None or run.end_time >= run_filter.since
    return late_enough and (run_filter.until is None or moment_of(run) < run_filter.until)
