"""The top of the page: verdict, headline figures with the preceding period, and suggested commands. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from math import fsum

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.report import text_format
from slurmwrap.report.confidence_interval import Interval, combine_intervals
from slurmwrap.report.formulas import list_glossary_terms
from slurmwrap.report.night_report import Headline, NightReport, Saving
from slurmwrap.report.report_page import Figure, NightVerdict, Page, SuggestedCommand, format_hours, format_signed
from slurmwrap.report.sections import list_sections

# A change of a share up to this size counts as no change.
SURE = 0.005


def build_page(report: NightReport, zone: tzinfo | None = UTC) -> Page:
    """Return the page of a report; times are shown in `zone`."""
    parts = list_sections(report)
    return Page(
        title=f"Report for {report.user}" if report.user else "Night report",
        whose=_describe_scope(report),
        since=report.since,
        until=report.until,
        period=_format_period(report, zone),
        day=datetime.fromtimestamp(report.until, zone).strftime("%Y-%m-%d"),
        zone=zone,
        verdict=make_night_verdict(report),
        figures=_list_figures(report) if _has_anything(report) else (),
        to_do=tuple(SuggestedCommand(reason=one.why, command=one.command) for one in report.to_do),
        sections=parts,
        notes=report.notes,
        glossary=list_glossary_terms(report, parts),
    )


def _describe_scope(report: NightReport) -> str:
    if not report.clusters:
        return "this cluster"
    return f"cluster{'s' if len(report.clusters) > 1 else ''} {', '.join(report.clusters)}"


def _format_period(report: NightReport, zone: tzinfo | None) -> str:
    start, end = (text_format.moment(at, zone) for at in (report.since, report.until))
    name = datetime.fromtimestamp(report.until, zone).astimezone(zone).tzname() or "local time"
    return f"{start} to {end} {name} ({text_format.duration(report.until - report.since)})"


def _has_anything(report: NightReport) -> bool:
    trials = report.preruns
    return bool(report.headline.attempts or trials.passed + trials.failed + trials.inconclusive)


def make_night_verdict(report: NightReport) -> NightVerdict:
    """Return the verdict in one sentence. It contains no text of a user, because it is the subject of a mail."""
    word = _select_word(report)
    return NightVerdict(
        word=word, sentence=f"{_describe_what_happened(report)} {_describe_what_is_left(report)}".strip()
    )


def _select_word(report: NightReport) -> str:
    if any(not one.advice for one in report.to_do):
        return "act"
    doubtful = report.to_do or report.suspects or report.lemons or _count_open_incidents(report)
    return "watch" if doubtful or _is_worse(report) else "quiet"


def _count_open_incidents(report: NightReport) -> int:
    return sum(one.over_at is None and not one.doubt for one in report.incidents)


def _is_worse(report: NightReport) -> bool:
    return (
        report.before is not None and _compute_lost_share(report.headline) - _compute_lost_share(report.before) > SURE
    )


def _compute_lost_share(head: Headline) -> float:
    return head.failed_gpu_hours / head.gpu_hours if head.gpu_hours else 0.0


def _describe_what_happened(report: NightReport) -> str:
    head = report.headline
    if not _has_anything(report):
        return "Nothing ended in this time."
    if not head.failed_attempts:
        return f"{text_format.count(head.attempts, 'run').capitalize()} ended, none failed."
    lost = text_format.percent(_compute_lost_share(head))
    share = f"{lost} of {format_hours(head.gpu_hours)} GPU-hours went into failed runs"
    return f"{share}{_compare_with_before(report)}{_describe_largest_part(report)}."


def _compare_with_before(report: NightReport) -> str:
    if report.before is None or not report.before.gpu_hours:
        return ""
    old, new = _compute_lost_share(report.before), _compute_lost_share(report.headline)
    if abs(new - old) <= SURE:
        return ", as in the period before"
    return f", {'up' if new > old else 'down'} from {text_format.percent(old)}"


def _describe_largest_part(report: NightReport) -> str:
    top = max(report.categories, key=lambda row: row.gpu_hours, default=None)
    if top is None or top.gpu_hours <= 0:
        return ""
    return f", the largest part by {get_title(top.category)}"


def _describe_what_is_left(report: NightReport) -> str:
    incidents = _count_open_incidents(report)
    parts = [
        f"{text_format.count(len(report.to_do), 'thing')} to do" if report.to_do else "",
        f"{text_format.count(incidents, 'incident')} still open" if incidents else "",
    ]
    sentence = ", ".join(part for part in parts if part)
    if sentence:
        return f"{sentence[0].upper()}{sentence[1:]}."
    return "Nothing to do." if _has_anything(report) and _select_word(report) == "quiet" else ""


def _list_figures(report: NightReport) -> tuple[Figure, ...]:
    found = (
        _make_jobs_figure(report),
        _make_held_figure(report),
        _make_failed_hours_figure(report),
        _make_failed_runs_figure(report),
        _make_saved_figure(report),
        _make_retried_figure(report),
        _make_wrong_figure(report),
        _make_limits_figure(report),
        _make_convergence_figure(report),
    )
    return tuple(figure for figure in (*found, _make_ettr_figure(report)) if figure is not None)


def _make_jobs_figure(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    of_users = "" if report.user else f" of {text_format.count(head.users, 'user')}"
    detail = f"{text_format.count(head.attempts, 'run')}{of_users}"
    by_gsub = f"; {text_format.count(head.gsub_jobs, 'call')} of gsub" if head.gsub_jobs else ""
    return Figure(
        key="jobs",
        label="jobs ended",
        value=f"{head.jobs:,}",
        detail=detail + by_gsub,
        change=_format_relative(head.jobs, before.jobs if before else None),
        number=head.jobs,
        before=before.jobs if before else None,
    )


def _make_held_figure(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    return Figure(
        key="gpu-hours",
        label="GPU-hours held",
        value=format_hours(head.gpu_hours),
        change=_format_relative(head.gpu_hours, before.gpu_hours if before else None),
        number=head.gpu_hours,
        before=before.gpu_hours if before else None,
    )


def _make_failed_hours_figure(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    old = _compute_lost_share(before) if before and before.gpu_hours else None
    change = _compute_lost_share(head) - old if old is not None else 0.0
    return Figure(
        key="failed-gpu-hours",
        label="GPU-hours in failed runs",
        value=format_hours(head.failed_gpu_hours),
        detail=f"{text_format.percent(_compute_lost_share(head))} of all",
        change=f"from {text_format.percent(old)}" if old is not None else "",
        tone="bad" if change > SURE else "good" if change < -SURE else "",
        number=head.failed_gpu_hours,
        before=before.failed_gpu_hours if before else None,
    )


def _make_failed_runs_figure(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    parts = [f"{head.cancelled_attempts:,} cancelled" if head.cancelled_attempts else ""]
    parts += [f"{head.unjudged_attempts:,} not judged yet" if head.unjudged_attempts else ""]
    flawed = head.completed_with_error_attempts
    parts += [f"{flawed:,} completed with an error in the output" if flawed else ""]
    return Figure(
        key="failed-runs",
        label="runs failed",
        value=f"{head.failed_attempts:,}",
        detail="; ".join(part for part in parts if part),
        change=_format_relative(head.failed_attempts, before.failed_attempts if before else None),
        number=head.failed_attempts,
        before=before.failed_attempts if before else None,
    )


def _make_saved_figure(report: NightReport) -> Figure | None:
    """Return the sum of the savings that could be estimated, and how many could; None if there is nothing to show.

    Retries have a figure of their own, because their GPU time was spent.
    """
    means = [one for one in report.savings if one.spared]
    if not means:
        return None
    known = [one for one in means if one.gpu_hours is not None]
    if report.own and not known:
        return None
    total, bounds = _sum_hours(known), _sum_intervals(known)
    parts = ["they cost more, by the formulas" if bounds and bounds[1] < 0 else "", _format_interval(bounds)]
    return Figure(
        key="saved",
        label="GPU-hours saved",
        value=_format_signed(total) if known else "not estimated",
        detail="; ".join(part for part in (*parts, f"{len(known)} of {len(means)} means estimated") if part),
        tone=_select_tone(bounds),
        number=total if known else None,
    )


def _make_retried_figure(report: NightReport) -> Figure | None:
    """Return the figure of the retries; None if it could not be estimated."""
    done = [one for one in report.savings if not one.spared and one.gpu_hours is not None]
    if not done:
        return None
    total, bounds = _sum_hours(done), _sum_intervals(done)
    what = "completed less failed; spent, without their users"
    return Figure(
        key="retried",
        label="GPU-hours done by retries",
        value=_format_signed(total),
        detail="; ".join(part for part in (_format_interval(bounds), what) if part),
        tone=_select_tone(bounds),
        number=total,
    )


def _sum_hours(known: Sequence[Saving]) -> float:
    return fsum(one.gpu_hours or 0.0 for one in known)


def _sum_intervals(known: Sequence[Saving]) -> Interval | None:
    """Return the interval of the sum; None if a part has no interval."""
    parts = [
        (one.gpu_hours, (one.low, one.high))
        for one in known
        if one.gpu_hours is not None and one.low is not None and one.high is not None
    ]
    return combine_intervals(_sum_hours(known), parts) if parts and len(parts) == len(known) else None


def _format_interval(bounds: Interval | None) -> str:
    """Return the 95 % interval as text, "" without one."""
    return f"95 %: {_format_signed(bounds[0])} to {_format_signed(bounds[1])}" if bounds else ""


def _select_tone(bounds: Interval | None) -> str:
    """Return "good" or "bad"; "" while the interval contains zero."""
    if bounds is None:
        return ""
    return "good" if bounds[0] > 0 else "bad" if bounds[1] < 0 else ""


def _format_signed(value: float) -> str:
    return format_signed(value, format_hours(abs(value)))


def _make_wrong_figure(report: NightReport) -> Figure | None:
    wrong = report.wrong
    spoke = wrong.retries + wrong.preruns_passed + wrong.refusals
    if not spoke:
        return None
    errors = wrong.retries_failed_again + wrong.preruns_missed + wrong.false_refusals
    return Figure(
        key="wrong",
        label="wrong decisions",
        value=f"{errors:,}",
        detail=f"of {spoke:,}",
        number=errors,
    )


def _make_limits_figure(report: NightReport) -> Figure | None:
    used = report.limits
    if report.own or used.used_share is None:
        return None
    return Figure(
        key="limits",
        label="of time limits used",
        value=text_format.percent(used.used_share),
        detail=(
            f"median of {text_format.count(used.runs, 'completed run')}; "
            f"{format_hours(used.gpu_hours_unused)} GPU-hours asked for beyond the need"
        ),
        number=used.used_share,
    )


def _make_convergence_figure(report: NightReport) -> Figure | None:
    found = report.convergence
    if found.after_share is None:
        return None
    return Figure(
        key="convergence",
        label="of training after its lowest loss",
        value=text_format.percent(found.after_share),
        detail=(
            f"{format_hours(found.gpu_hours_after)} GPU-hours of {text_format.count(found.runs, 'run')} after the loss "
            "came within 0.1 % of its lowest"
        ),
        number=found.after_share,
    )


def _make_ettr_figure(report: NightReport) -> Figure | None:
    if report.counted.ettr is None:
        return None
    detail = f"of {text_format.count(report.counted.jobs, 'job')} that counted steps"
    return Figure(
        key="ettr",
        label="ETTR",
        value=text_format.percent(report.counted.ettr),
        detail=detail,
        number=report.counted.ettr,
    )


def _format_relative(new: float, old: float | None) -> str:
    """Return "+12 % from 1,103"; "" if there is nothing to compare with."""
    if not old:
        return ""
    change = round(100 * (new - old) / old)
    if abs(change) > 999:
        return f"from {_format_counted(old)}"
    return f"{format_signed(change, str(abs(change)))} % from {_format_counted(old)}" if change else "as before"


def _format_counted(value: float) -> str:
    """Format a number of jobs (int) or of hours (float)."""
    return f"{value:,}" if isinstance(value, int) else format_hours(value)
