"""Rows of `slurmwrap jobs list`: a job with its runs, its state, and the actions that are still to be done. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import tzinfo

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_filter import NO_FAILURES, failed, moment_of, state_of
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import drop_empty_columns, fold_names, group_alike, label
from slurmwrap.report.job_report.timeline import JobTimeline

HEAD = ("job", "~cluster", "~name", "~user", ">GPUs", ">runs", "last", "result", "decision", "~to do")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """The present state of one job (one array task). Times in Unix seconds."""

    # The id that scontrol accepts.
    job: str
    job_id: int
    cluster: str
    name: str
    user: str
    account: str = ""
    partition: str = ""
    gpus: int = 0
    runs: int = 0
    failures: int = 0
    # Slurm's state of the last run; "" if no run of the job is known.
    state: str = ""
    category: str = ""
    decision: str = ""
    decision_reason: str = ""
    # Whether its user agreed to retries; None if it was not submitted by gsub.
    retry: bool | None = None
    retry_at: float | None = None
    # Number of actions that are decided and not done.
    to_do: int = 0
    incident: str = ""
    # End of the last run, or else its start, or else the submission.
    at: float = 0.0
    gpu_hours: float = 0.0


def list_fields(row: JobRow) -> dict[str, object]:
    """Return the row for JSON; all fields are plain values."""
    return {name: getattr(row, name) for name in JobRow.__slots__}


def make_job_row(runs: Sequence[JobRun], actions: Iterable[ActionRecord], submission: Submission | None) -> JobRow:
    """Return the row of one job; `runs` must not be empty."""
    ordered = sorted(runs, key=lambda run: run.attempt.submit_time)
    last = ordered[-1]
    found = last.diagnosis
    open_ones = [a for a in actions if a.mode == "act" and a.done_at is None]
    return JobRow(
        job=last.address or str(last.attempt.job_id),
        job_id=last.attempt.job_id,
        cluster=last.attempt.cluster,
        name=last.name,
        user=last.user,
        account=last.account,
        partition=last.partition,
        gpus=last.gpus,
        runs=len(ordered),
        failures=sum(map(failed, ordered)),
        state=state_of(last),
        category=found.category if found is not None else "",
        decision=last.decision,
        decision_reason=last.decision_reason,
        retry=submission.agreed if submission is not None else None,
        retry_at=last.retry_at,
        to_do=len(open_ones) or len(last.planned),
        incident=last.incident,
        at=float(moment_of(last)),
        gpu_hours=sum(run.gpu_hours for run in ordered),
    )


def make_waiting_row(submission: Submission) -> JobRow:
    """Return the row of a job of which no run is known."""
    return JobRow(
        job=str(submission.job_id),
        job_id=submission.job_id,
        cluster=submission.cluster,
        name=submission.name,
        user=submission.user,
        gpus=submission.gpus,
        retry=submission.agreed,
        at=submission.at,
    )


def format_job_table(
    rows: Sequence[JobRow], limit: int | None, *, zone: tzinfo | None, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """Return a table of at most `limit` lines, and how many jobs they show.

    Similar tasks of an array share a line, and so do similar failures under one job name.
    """
    groups = group_alike(rows, _make_fold_key)[:limit]
    users, clusters = len({row.user for row in rows}) > 1, len({row.cluster for row in rows}) > 1
    lines = [_format_line(group, zone, clusters=clusters, users=users) for group in groups]
    head, cells = drop_empty_columns(HEAD, lines)
    return text_format.table(head, cells, indent=0, columns=columns), sum(map(len, groups))


def _make_fold_key(row: JobRow) -> tuple[object, ...]:
    head = row.job.partition("_")[0] if "_" in row.job else ""
    if not head and row.category in ("", *NO_FAILURES):
        return (row.job, row.cluster, row.at)
    return (
        head,
        row.cluster,
        row.name,
        row.user,
        row.gpus,
        row.runs,
        _describe_result(row),
        row.decision,
        _describe_open_actions(row),
    )


def _format_line(group: Sequence[JobRow], zone: tzinfo | None, *, clusters: bool, users: bool) -> list[str]:
    row = group[0]
    return [
        label([one.job for one in group]),
        row.cluster if clusters else "",
        row.name,
        row.user if users else "",
        str(row.gpus),
        str(row.runs) if row.runs > 1 else "",
        text_format.moment(row.at, zone)[5:],
        _describe_result(row),
        row.decision if row.decision != "none" else "",
        _describe_open_actions(row),
    ]


def _describe_result(row: JobRow) -> str:
    if row.category and row.category not in ("success", "cancelled"):
        return get_title(row.category)
    return row.state.lower().replace("_", " ") or "not ended"


def _describe_open_actions(row: JobRow) -> str:
    return text_format.count(row.to_do, "action") if row.to_do else ""


def describe_stored_records(timeline: JobTimeline, actions: Iterable[ActionRecord]) -> dict[str, str]:
    """Return what else is stored about a job, by name; unknown values are left out."""
    asked, last = timeline.submission, timeline.attempts[-1] if timeline.attempts else None
    kept: dict[str, str] = {}
    if asked is not None:
        kept["retries"] = "on (--retry)" if asked.retry else "off (no --retry)"
        if asked.retry_on:
            kept["retries after"] = ", ".join(asked.retry_on)
        kept["pre-run"] = asked.prerun_mode + (f", job {asked.prerun_job_id}" if asked.prerun_job_id else "")
        if asked.held_out:
            kept["held out"] = "at random: it had no pre-run (prerun.holdout)"
        kept["fingerprint"] = asked.fingerprint[:16]
        kept["profile"] = asked.profile_key
        kept["inputs"] = ", ".join(fold_names(asked.inputs))
        kept["forced"] = ", ".join(asked.forced)
    if last is not None:
        kept["account"] = last.account
        kept["partition"] = last.partition
        kept["incident"] = last.incident
        kept["output"] = last.std_out
    if in_all := len(tuple(actions)):
        kept["actions"] = f"{text_format.count(in_all, 'action')} intended"
    return {name: text_format.visible(value) for name, value in kept.items() if value}
