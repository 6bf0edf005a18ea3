"""A job's pre-run in one line of `slurmwrap watch`: what Slurm says of it, and what it has done so far. Pure."""

from __future__ import annotations

from datetime import tzinfo

from slurmwrap.cli.watch.job_status import JobStatus, WatchedPrerun
from slurmwrap.cli.watch.pending_reasons import meaning
from slurmwrap.cli.watch.watch_format import clock, flat, span, state_word
from slurmwrap.slurm.squeue_parser import Watched

_FOR_A_GPU = ("", "None", "Resources", "Priority")  # nothing but its turn is missing


def describe_prerun(facts: JobStatus, trial: WatchedPrerun, zone: tzinfo | None) -> str:
    """Its verdict; else what it does now, and how long the job waits for it at most."""
    if trial.verdict is not None:
        return f"{trial.verdict.outcome.value}: {flat(trial.verdict.reason)}"
    eligible = facts.record.eligible_time or 0
    left = f"; the job starts without it in {span(eligible - facts.at)}" if eligible > facts.at else ""
    if trial.row is not None and trial.row.record.reason == "Dependency":
        left = ""  # the job waits for it anew when the dependency is met
    return f"(job {trial.job_id}) {_state(facts.at, trial, zone)}{left}"


def _state(now: float, trial: WatchedPrerun, zone: tzinfo | None) -> str:
    if trial.row is None:
        return "is not known to Slurm any more, and left no verdict"
    state = trial.row.record.state
    if state == "PENDING":
        return _waits(now, trial.row, zone)
    if state in ("SUSPENDED", "STOPPED"):
        return "is suspended"
    if trial.row.record.ended:
        how = "ended" if state in ("COMPLETED", "FAILED") else state_word(state)
        return f"{how}; it left no verdict"
    return _runs(now, trial, trial.row)


def _waits(now: float, row: Watched, zone: tzinfo | None) -> str:
    reason = row.record.reason
    due = ""
    if row.expected_start and row.expected_start > now:
        due = f", expected to start at {clock(row.expected_start, now, zone)}"
    if reason in _FOR_A_GPU:
        return f"waits for a free GPU{due}"
    if reason == "Dependency":
        return "waits for the same dependency"
    return f"waits: {meaning(reason).words} ({flat(reason)}){due}"


def _runs(now: float, trial: WatchedPrerun, row: Watched) -> str:
    seen, start = trial.seen, row.record.start_time
    if seen is None or not start:
        return f"has run for {span(now - start)}" if start else "starts"
    if seen.stage == "starting":
        return f"has started {span(now - start)} ago"
    told = f"has run for {span(now - start)}"
    if seen.stage == "profiling":
        told += ": it measures its use of CPUs"
    elif seen.steps or seen.steps_wanted:
        of = f" of {seen.steps_wanted}" if seen.steps <= seen.steps_wanted else ""
        told += f": {seen.steps}{of} steps"
    return told if seen.gpu_percent is None else f"{told}, GPU {seen.gpu_percent:.0f} % busy"
