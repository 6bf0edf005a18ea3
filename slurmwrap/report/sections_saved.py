"""Sections about slurmwrap itself: what pre-runs, retries, placement and tuning saved, and wrong decisions. Pure."""

from __future__ import annotations

from typing import Any

from slurmwrap.report import text_format
from slurmwrap.report.night_report import NightReport, RuleRow, Saving
from slurmwrap.report.report_page import Column, ColumnKind, ReportTable, Section, TableRow

MEANS = {
    "prerun": "Pre-runs",
    "retry": "Retries",
    "placement": "Placement",
    "tuning": "Tuning",
}


def make_saved_section(report: NightReport) -> Section:
    return Section(
        key="saved",
        title="What was saved",
        lead=(_describe_preruns(report), _describe_delay(report), _describe_holdout(report)),
        tables=(_make_savings_table(report), _make_retried_table(report), _make_caught_table(report)),
        charts=("savings",),
    )


def _describe_preruns(report: NightReport) -> str:
    trials, used = report.preruns, text_format.hours(report.preruns.gpu_hours)
    outcomes = f"{trials.passed:,} passed, {trials.failed:,} failed, {trials.inconclusive:,} inconclusive"
    if not trials.passed + trials.failed + trials.inconclusive:
        return ""
    stopped = f"they stopped {text_format.count(trials.stopped_jobs, 'job')}"
    kept = f", so {text_format.count(trials.gpus_never_started, 'GPU')} never started" if trials.stopped_jobs else ""
    return (
        f"Pre-runs on one GPU: {outcomes}; {stopped}{kept}. They used {used} GPU-hours themselves."
        f"{_describe_estimate(report)}"
    )


def _describe_delay(report: NightReport) -> str:
    """Describe the delay by pre-runs. It is part of no sum, because it is not known whether the GPUs were idle."""
    trials = report.preruns
    if not trials.delayed_jobs:
        return ""
    return (
        f"{text_format.count(trials.delayed_jobs, 'job')} started as soon as their pre-run released them, "
        f"{text_format.duration(trials.delay_s)} after submission on average: a delay of at most "
        f"{text_format.hours(trials.delay_gpu_hours)} GPU-hours, if their GPUs were free all that "
        "time. It is not subtracted."
    )


def _describe_estimate(report: NightReport) -> str:
    """Describe the saving by pre-runs; "" if the page has a table of savings, which shows it."""
    saved = report.preruns.saved
    if report.savings:
        return ""
    if saved.gpu_hours is None:
        return f" Saved: not estimated (n = {saved.n}, {saved.needed} needed)."
    return f" Saved: about {text_format.hours(saved.gpu_hours)} GPU-hours (n = {saved.n})."


def _describe_holdout(report: NightReport) -> str:
    held = report.holdout
    if not held.share and not held.held_out:
        return ""
    groups = f"{text_format.count(held.held_out, 'job')} had no pre-run, chosen at random; {held.control:,} had one"
    if held.difference is None or held.low is None or held.high is None:
        return f"By experiment: not estimated yet; {groups} ({held.needed} of each are needed)."
    return (
        f"By experiment: a pre-run saves {text_format.hours(held.difference)} GPU-hours per job "
        f"(95 % interval {text_format.hours(held.low)} to {text_format.hours(held.high)}); {groups}."
    )


def _make_savings_table(report: NightReport) -> ReportTable:
    return _make_estimates_table(report, "savings", "Saved, by what", spared=True)


def _make_retried_table(report: NightReport) -> ReportTable:
    return _make_estimates_table(report, "retried", "Done automatically", spared=False)


def _make_estimates_table(report: NightReport, key: str, title: str, *, spared: bool) -> ReportTable:
    return ReportTable(
        key=key,
        title=title,
        columns=(
            Column(key="what", head="by"),
            Column(key="gpu_hours", head="GPU-hours", kind=ColumnKind.GAINED, none="not estimated"),
            Column(key="low", head="from", kind=ColumnKind.GAINED, group="95 % interval", alone="at least"),
            Column(key="high", head="to", kind=ColumnKind.GAINED, group="95 % interval", alone="at most"),
            Column(key="n", head="n", kind=ColumnKind.COUNT),
            Column(key="needed", head="needed", kind=ColumnKind.COUNT, data=True),
            Column(key="formula", head="formula"),
        ),
        rows=tuple(
            TableRow(
                (MEANS.get(one.what, one.what), one.gpu_hours, one.low, one.high, one.n, one.needed, one.formula),
                more=_describe_missing_cases(one),
            )
            for one in (report.savings if report.headline.attempts else ())
            if one.spared is spared and not (report.own and one.gpu_hours is None)
        ),
    )


def _describe_missing_cases(one: Saving) -> str:
    return one.note or (f"{one.needed} cases are needed" if one.gpu_hours is None else "")


def _make_caught_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="caught",
        title="Caught on one GPU",
        lead="What the pre-runs found; below each, what the newest said.",
        columns=(
            Column(key="category", head="category", kind=ColumnKind.CATEGORY),
            Column(key="preruns", head="pre-runs", kind=ColumnKind.COUNT),
            Column(key="stopped_jobs", head="jobs stopped", kind=ColumnKind.COUNT),
            Column(key="users", head="users", kind=ColumnKind.COUNT),
            Column(key="gpus_never_started", head="GPUs never started", kind=ColumnKind.COUNT),
        ),
        rows=tuple(
            TableRow((one.category, one.preruns, one.stopped_jobs, one.users, one.gpus_never_started), more=one.reason)
            for one in report.caught
        ),
        limit=8,
    )


# ---- wrong decisions


def make_wrong_section(report: NightReport) -> Section:
    return Section(
        key="wrong",
        title="Wrong decisions",
        lead=(_describe_retries(report),),
        tables=(_make_errors_table(report), _make_agreement_table(report), _make_decided_table(report)),
    )


def _describe_retries(report: NightReport) -> str:
    again = report.retries
    if not again.jobs:
        return ""
    return (
        f"Retries: {again.jobs:,}; {again.completed:,} completed, {again.failed_again:,} failed again, "
        f"{again.cancelled:,} cancelled, {again.unfinished:,} not ended yet."
    )


def _make_errors_table(report: NightReport) -> ReportTable:
    wrong = report.wrong
    found = (
        ("Retries that failed for the same reason again", wrong.retries_failed_again, wrong.retries, "retries"),
        ("Pre-runs that passed what one GPU could have shown", wrong.preruns_missed, wrong.preruns_passed, "passes"),
        ("Refused jobs that then ran well", wrong.false_refusals, wrong.refusals, "refusals"),
    )
    return ReportTable(
        key="wrong",
        title="How often slurmwrap was wrong",
        columns=(
            Column(key="what", head="what"),
            Column(key="wrong", head="wrong", kind=ColumnKind.COUNT),
            Column(key="of", head="of", kind=ColumnKind.COUNT),
            Column(key="cases", head="cases", narrow=False),
            Column(key="share", head="share", kind=ColumnKind.SHARE),
        ),
        rows=tuple(TableRow((what, errors, of, noun, errors / of)) for what, errors, of, noun in found if of),
    )


def _make_agreement_table(report: NightReport) -> ReportTable:
    return ReportTable(
        key="agreement",
        title="Was it right?",
        lead="By what came next.",
        columns=(
            Column(key="rule", head="rule"),
            Column(key="right", head="right", kind=ColumnKind.COUNT),
            Column(key="wrong", head="wrong", kind=ColumnKind.COUNT),
            Column(key="open", head="not known yet", kind=ColumnKind.COUNT),
            Column(key="freed", head="hours freed", kind=ColumnKind.HOURS, narrow=False),
        ),
        rows=tuple(
            TableRow((one.rule, one.agree, one.disagree, one.open, one.freed_hours if one.rule == "limit" else None))
            for one in report.agreement
        ),
    )


def _make_decided_table(report: NightReport) -> ReportTable:
    heads = ("done", "refused", "waiting", "advised only", "observed only")
    return ReportTable(
        key="rules",
        title="What was decided",
        columns=(
            Column(key="rule", head="rule"),
            *(Column(key=head.split()[0], head=head, kind=ColumnKind.COUNT) for head in heads),
        ),
        rows=tuple(TableRow(_list_rule_cells(one)) for one in report.rules),
    )


def _list_rule_cells(one: RuleRow) -> tuple[Any, ...]:
    return tuple(getattr(one, name) for name in ("rule", "done", "refused", "waiting", "advised", "observed"))
