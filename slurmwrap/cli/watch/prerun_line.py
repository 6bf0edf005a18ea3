"""Describe the pre-run of a watched job: its verdict, or its state in Slurm and its progress. Pure."""

from __future__ import annotations

from datetime import tzinfo

from slurmwrap.cli.watch.job_status import JobStatus, WatchedPrerun
from slurmwrap.report.pending_reasons import explain_reason
from slurmwrap.report.text_format import clock, flat, format_state, span
from slurmwrap.slurm.squeue_parser import WatchedJob

# Reasons with which a pre-run only waits for a free GPU.
_WAITS_FOR_RESOURCES = ("", "None", "Resources", "Priority")


def describe_prerun(status: JobStatus, trial: WatchedPrerun, zone: tzinfo | None) -> str:
    """Return the pre-run's verdict; without one its present state, and how long the job waits for it at most."""
    if trial.verdict is not None:
        return f"{trial.verdict.outcome.value}: {flat(trial.verdict.reason)}"
    eligible = status.record.eligible_time or 0
    left = f"; the job starts without it in {span(eligible - status.at)}" if eligible > status.at else ""
    if trial.row is not None and trial.row.record.reason == "Dependency":
        # The job waits for its pre-run again once the dependency is satisfied, so the time left is not known yet.
        left = ""
    return f"(job {trial.job_id}) {_describe_state(status.at, trial, zone)}{left}"


def _describe_state(now: float, trial: WatchedPrerun, zone: tzinfo | None) -> str:
    if trial.row is None:
        return "is not known to Slurm any more, and left no verdict"
    state = trial.row.record.state
    if state == "PENDING":
        return _describe_pending(now, trial.row, zone)
    if state in ("SUSPENDED", "STOPPED"):
        return "is suspended"
    if trial.row.record.ended:
        how = "ended" if state in ("COMPLETED", "FAILED") else format_state(state)
        return f"{how}; it left no verdict"
    return _describe_running(now, trial, trial.row)


def _describe_pending(now: float, row: WatchedJob, zone: tzinfo | None) -> str:
    reason = row.record.reason
    due = ""
    if row.expected_start and row.expected_start > now:
        due = f", expected to start at {clock(row.expected_start, now, zone)}"
    if reason in _WAITS_FOR_RESOURCES:
        return f"waits for a free GPU{due}"
    if reason == "Dependency":
        return "waits for the same dependency"
    return f"waits: {explain_reason(reason).words} ({flat(reason)}){due}"


def _describe_running(now: float, trial: WatchedPrerun, row: WatchedJob) -> str:
    seen, start = trial.seen, row.record.start_time
    if seen is None or not start:
        return f"has run for {span(now - start)}" if start else "starts"
    if seen.stage == "starting":
        return f"has started {span(now - start)} ago"
    text = f"has run for {span(now - start)}"
    if seen.stage == "profiling":
        text += ": it measures its use of CPUs"
    elif seen.stage == "rehearsing":
        text += f": {seen.steps} steps ran, and it goes on with shortened epochs"
    elif seen.steps or seen.steps_wanted:
        of = f" of {seen.steps_wanted}" if seen.steps <= seen.steps_wanted else ""
        text += f": {seen.steps}{of} steps"
    return text if seen.gpu_percent is None else f"{text}, GPU {seen.gpu_percent:.0f} % busy"
