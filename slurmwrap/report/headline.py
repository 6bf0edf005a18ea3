"""The top of the page: the verdict in a sentence, the headline figures with the period before, what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from math import fsum

from slurmwrap.diagnosis.taxonomy import title_of
from slurmwrap.report import text_format
from slurmwrap.report.confidence_interval import Interval, put_together
from slurmwrap.report.glossary import glossary
from slurmwrap.report.night_report import Headline, NightReport, Saving
from slurmwrap.report.report_page import Figure, NightVerdict, Page, SuggestedCommand, hours, signed
from slurmwrap.report.sections import sections

SURE = 0.005  # a smaller change of a share is none


def page_of(report: NightReport, zone: tzinfo | None = UTC) -> Page:
    """The document; moments are shown in `zone`."""
    parts = sections(report)
    return Page(
        title=f"Report for {report.user}" if report.user else "Night report",
        whose=_whose(report),
        since=report.since,
        until=report.until,
        period=_period(report, zone),
        day=datetime.fromtimestamp(report.until, zone).strftime("%Y-%m-%d"),
        zone=zone,
        verdict=verdict(report),
        figures=_figures(report) if _anything(report) else (),
        to_do=tuple(SuggestedCommand(because=one.why, command=one.command) for one in report.to_do),
        sections=parts,
        notes=report.notes,
        glossary=glossary(report, parts),
    )


def _whose(report: NightReport) -> str:
    if not report.clusters:
        return "this cluster"
    return f"cluster{'s' if len(report.clusters) > 1 else ''} {', '.join(report.clusters)}"


def _period(report: NightReport, zone: tzinfo | None) -> str:
    start, end = (text_format.moment(at, zone) for at in (report.since, report.until))
    name = datetime.fromtimestamp(report.until, zone).astimezone(zone).tzname() or "local time"
    return f"{start} to {end} {name} ({text_format.duration(report.until - report.since)})"


def _anything(report: NightReport) -> bool:
    trials = report.preruns
    return bool(report.headline.attempts or trials.passed + trials.failed + trials.inconclusive)


def verdict(report: NightReport) -> NightVerdict:
    """One sentence, without anything that a user chose: it becomes the subject of a mail."""
    word = _word(report)
    return NightVerdict(word=word, sentence=f"{_what_happened(report)} {_what_is_left(report)}".strip())


def _word(report: NightReport) -> str:
    if any(not one.advice for one in report.to_do):
        return "act"
    doubtful = report.to_do or report.suspects or report.lemons or any(one.over_at is None for one in report.incidents)
    return "watch" if doubtful or _worse(report) else "quiet"


def _worse(report: NightReport) -> bool:
    return report.before is not None and _lost(report.headline) - _lost(report.before) > SURE


def _lost(head: Headline) -> float:
    return head.failed_gpu_hours / head.gpu_hours if head.gpu_hours else 0.0


def _what_happened(report: NightReport) -> str:
    head = report.headline
    if not _anything(report):
        return "Nothing ended in this time."
    if not head.failed_attempts:
        return f"{text_format.count(head.attempts, 'run').capitalize()} ended, none failed."
    share = f"{text_format.percent(_lost(head))} of {hours(head.gpu_hours)} GPU-hours went into failed runs"
    return f"{share}{_against(report)}{_mostly(report)}."


def _against(report: NightReport) -> str:
    if report.before is None or not report.before.gpu_hours:
        return ""
    old, new = _lost(report.before), _lost(report.headline)
    if abs(new - old) <= SURE:
        return ", as in the period before"
    return f", {'up' if new > old else 'down'} from {text_format.percent(old)}"


def _mostly(report: NightReport) -> str:
    top = max(report.categories, key=lambda row: row.gpu_hours, default=None)
    if top is None or top.gpu_hours <= 0:
        return ""
    return f", the largest part by {title_of(top.category)}"


def _what_is_left(report: NightReport) -> str:
    incidents = sum(one.over_at is None for one in report.incidents)
    parts = [
        f"{text_format.count(len(report.to_do), 'thing')} to do" if report.to_do else "",
        f"{text_format.count(incidents, 'incident')} still open" if incidents else "",
    ]
    said = ", ".join(part for part in parts if part)
    if said:
        return f"{said[0].upper()}{said[1:]}."
    return "Nothing to do." if _anything(report) and _word(report) == "quiet" else ""


def _figures(report: NightReport) -> tuple[Figure, ...]:
    found = (
        _jobs(report),
        _held(report),
        _failed(report),
        _failed_runs(report),
        _saved(report),
        _retried(report),
        _wrong(report),
    )
    return tuple(figure for figure in (*found, _ettr(report)) if figure is not None)


def _jobs(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    of_users = "" if report.user else f" of {text_format.count(head.users, 'user')}"
    detail = f"{text_format.count(head.attempts, 'run')}{of_users}"
    by_gsub = f"; {text_format.count(head.gsub_jobs, 'call')} of gsub" if head.gsub_jobs else ""
    return Figure(
        key="jobs",
        label="jobs ended",
        value=f"{head.jobs:,}",
        detail=detail + by_gsub,
        change=_relative(head.jobs, before.jobs if before else None),
        number=head.jobs,
        before=before.jobs if before else None,
    )


def _held(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    return Figure(
        key="gpu-hours",
        label="GPU-hours held",
        value=hours(head.gpu_hours),
        change=_relative(head.gpu_hours, before.gpu_hours if before else None),
        number=head.gpu_hours,
        before=before.gpu_hours if before else None,
    )


def _failed(report: NightReport) -> Figure:
    head, before = report.headline, report.before
    old = _lost(before) if before and before.gpu_hours else None
    change = _lost(head) - old if old is not None else 0.0
    return Figure(
        key="failed-gpu-hours",
        label="GPU-hours in failed runs",
        value=hours(head.failed_gpu_hours),
        detail=f"{text_format.percent(_lost(head))} of all",
        change=f"from {text_format.percent(old)}" if old is not None else "",
        tone="bad" if change > SURE else "good" if change < -SURE else "",
        number=head.failed_gpu_hours,
        before=before.failed_gpu_hours if before else None,
    )


def _failed_runs(report: NightReport) -> Figure:
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
        change=_relative(head.failed_attempts, before.failed_attempts if before else None),
        number=head.failed_attempts,
        before=before.failed_attempts if before else None,
    )


def _saved(report: NightReport) -> Figure | None:
    """The sum of what could be estimated; what was not is counted, never guessed. Retries have a figure of their own:
    their GPU time was spent."""
    means = [one for one in report.savings if one.spared]
    if not means:
        return None
    known = [one for one in means if one.gpu_hours is not None]
    if report.own and not known:
        return None
    total, bounds = _hours_of(known), _bounds(known)
    parts = ["they cost more, by the formulas" if bounds and bounds[1] < 0 else "", _between(bounds)]
    return Figure(
        key="saved",
        label="GPU-hours saved",
        value=_signed(total) if known else "not estimated",
        detail="; ".join(part for part in (*parts, f"{len(known)} of {len(means)} means estimated") if part),
        tone=_tone(bounds),
        number=total if known else None,
    )


def _retried(report: NightReport) -> Figure | None:
    """Shown where it could be estimated."""
    done = [one for one in report.savings if not one.spared and one.gpu_hours is not None]
    if not done:
        return None
    total, bounds = _hours_of(done), _bounds(done)
    what = "completed less failed; spent, without their users"
    return Figure(
        key="retried",
        label="GPU-hours done by retries",
        value=_signed(total),
        detail="; ".join(part for part in (_between(bounds), what) if part),
        tone=_tone(bounds),
        number=total,
    )


def _hours_of(known: Sequence[Saving]) -> float:
    return fsum(one.gpu_hours or 0.0 for one in known)


def _bounds(known: Sequence[Saving]) -> Interval | None:
    """Of their sum; None without an interval of each."""
    parts = [
        (one.gpu_hours, (one.low, one.high))
        for one in known
        if one.gpu_hours is not None and one.low is not None and one.high is not None
    ]
    return put_together(_hours_of(known), parts) if parts and len(parts) == len(known) else None


def _between(bounds: Interval | None) -> str:
    """A figure alone would promise more than is known."""
    return f"95 %: {_signed(bounds[0])} to {_signed(bounds[1])}" if bounds else ""


def _tone(bounds: Interval | None) -> str:
    """Neither good nor bad while the interval holds zero."""
    if bounds is None:
        return ""
    return "good" if bounds[0] > 0 else "bad" if bounds[1] < 0 else ""


def _signed(value: float) -> str:
    return signed(value, hours(abs(value)))


def _wrong(report: NightReport) -> Figure | None:
    wrong = report.wrong
    spoke = wrong.retries + wrong.preruns_passed + wrong.refusals
    if not spoke:
        return None
    errors = wrong.retries_failed_again + wrong.preruns_missed + wrong.false_refusals
    return Figure(
        key="wrong",
        label="times we were wrong",
        value=f"{errors:,}",
        detail=f"of {spoke:,} that we acted",
        number=errors,
    )


def _ettr(report: NightReport) -> Figure | None:
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


def _relative(new: float, old: float | None) -> str:
    """ "+12 % from 1,103"; nothing where there is nothing to compare with."""
    if not old:
        return ""
    change = round(100 * (new - old) / old)
    if abs(change) > 999:
        return f"from {_counted(old)}"
    return f"{signed(change, str(abs(change)))} % from {_counted(old)}" if change else "as before"


def _counted(value: float) -> str:
    """Of jobs or of hours."""
    return f"{value:,}" if isinstance(value, int) else hours(value)
