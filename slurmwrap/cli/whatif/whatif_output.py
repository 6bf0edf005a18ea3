"""Sentences and the terminal's text about a what-if study: what its numbers mean, and how far to trust them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.text_format import count, duration, hours, moment, percent, table, visible, wrapped
from slurmwrap.sim.failures.study_result import ArmResult, FailureStudy, Interval
from slurmwrap.sim.whatif.arm_measures import FEW
from slurmwrap.sim.whatif.whatif_study import ORDERED, OURS, PLAIN, REAL, DelayFit, Study, StudyWorld

# Titles of the arms, and explanations of Slurm's final states.
ARMS = {
    REAL: "Really happened",
    PLAIN: "Plain Slurm, model",
    OURS: "slurmwrap, model",
    ORDERED: "With order, model",
}
STATES = {
    "FAILED": "the job's own error, mostly",
    "TIMEOUT": "its time limit; checkpoints may be left",
    "CANCELLED": "stopped by a user; checkpoints may be left",
    "OUT_OF_MEMORY": "more memory than it asked for",
    "NODE_FAIL": "the node died",
    "PREEMPTED": "gave way to another job",
    "REQUEUED": "was put back into the queue",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "could not end before its deadline",
    "REVOKED": "ran on another cluster",
}
_VERDICT = {
    "close": "The model follows what really happened closely.",
    "fair": "The model follows what really happened roughly: trust the direction of a difference more than its size.",
    "far": "The model does not reproduce this cluster's queue. Do not take the differences of delay and JCT below for "
    "a forecast.",
}
_NO_DELAY_STATEMENT = "the effect on the queueing delay is not known, because the model does not reproduce this queue"
# A smaller mean number of jobs over the draws counts as none.
_LEAST_JOBS = 0.5
# A smaller change of the delay counts as none: in seconds (the period of Slurm's scheduler), and as a share.
_NEGLIGIBLE_S, _NEGLIGIBLE_SHARE = 30.0, 0.01
# Jobs of one size wait longer with the order if their mean delay is larger by this share.
_LONGER_SHARE = 0.1
_WHY_FAR = (
    "Common reasons: fair-share priorities, reservations, limits of QOS and association, preemption, nodes that were "
    "down, or a guessed cluster (give --nodes)."
)


def format_headline(study: Study) -> str:
    """Return the main results in a few sentences with their uncertainty.

    If the model does not fit the real queue, nothing is claimed about the delay.
    """
    delays: tuple[str, ...] = (_NO_DELAY_STATEMENT,)
    if study.trust.word != "far":
        delays = (_describe_delay(study), _describe_order(study), *describe_longer_waits(study))
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in (*delays, *describe_savings(study.failures)))


def _describe_order(study: Study) -> str:
    """Return a sentence about the JCT with the queue ordered by predicted run times."""
    plain, ordered = (study.arm(name).all.jct.mean for name in (PLAIN, ORDERED))
    change = study.ordered_jct_change_s
    caveat = "too few days for an interval"
    if change is not None:
        low, high = get_interval_ends(change)
        caveat = f"95 % interval of the change {format_signed(low)} to {format_signed(high)}"
    return (
        f"with the queue ordered by predicted run times, jobs would have ended {duration(ordered)} after submission "
        f"instead of {duration(plain)}, on average ({caveat})"
    )


def describe_longer_waits(study: Study) -> tuple[str, ...]:
    """Return a sentence about the jobs that wait clearly longer with the order, by their GPUs; () if none do."""
    longer = [
        f"{before.jobs:,} jobs with {before.label} {duration(after.queueing.mean)} instead of "
        f"{duration(before.queueing.mean)}"
        for before, after in zip(study.arm(PLAIN).classes, study.arm(ORDERED).classes, strict=True)
        if before.jobs >= FEW
        and after.queueing.mean - before.queueing.mean > max(_NEGLIGIBLE_S, _LONGER_SHARE * before.queueing.mean)
    ]
    return (f"with the order these would have waited longer, on average: {', and '.join(longer)}",) if longer else ()


def _describe_delay(study: Study) -> str:
    plain, ours = (study.arm(name).all.queueing.mean for name in (PLAIN, OURS))
    change = study.queueing_change_s
    if change is None:
        caveat = "too few days for an interval"
        if abs(ours - plain) < _NEGLIGIBLE_S:
            return (
                f"placement by slurmwrap would not have changed the mean queueing delay of {duration(plain)} ({caveat})"
            )
        return f"the mean queueing delay would have been {duration(ours)} instead of {duration(plain)} ({caveat})"
    low, high = get_interval_ends(change)
    if max(abs(low), abs(high)) < _NEGLIGIBLE_S:
        return f"placement by slurmwrap would not have changed the mean queueing delay of {duration(plain)}"
    if low <= 0 <= high or abs(change.mean) < max(_NEGLIGIBLE_S, _NEGLIGIBLE_SHARE * plain):
        return (
            f"placement by slurmwrap would have left the mean queueing delay at {duration(plain)} "
            f"(95 % interval of the change {format_signed(low)} to {format_signed(high)})"
        )
    return (
        f"the mean queueing delay would have been {duration(ours)} instead of {duration(plain)} "
        f"({format_signed(change.mean)}; 95 % interval {format_signed(low)} to {format_signed(high)})"
    )


def get_interval_ends(interval: Interval) -> tuple[float, float]:
    """Return the ends of the interval; the mean twice if there is none."""
    mean = interval.mean
    return mean if interval.low is None else interval.low, mean if interval.high is None else interval.high


def describe_savings(failures: FailureStudy) -> tuple[str, ...]:
    """Return sentences about what all parts of slurmwrap change for failed jobs: jobs that end well, then GPU-hours."""
    failed = failures.arm("plain").failed_runs.mean
    if not failed:
        return ("no run of the dump failed, so there was nothing to catch",)
    ours = failures.arm("all")
    low, high = get_interval_ends(ours.cured)
    cured = (
        f"of {count(round(failed), 'run')} that failed, about {ours.cured.mean:,.0f} would have ended well by an "
        f"automatic retry (95 % interval {low:,.0f} to {high:,.0f})"
    )
    return (*((cured,) if ours.cured.mean >= _LEAST_JOBS else ()), _describe_gpu_hours(ours))


def _describe_gpu_hours(ours: ArmResult) -> str:
    """Return a sentence about GPU-hours of runs without a result: those saved less those that slurmwrap adds."""
    saved, share = ours.saved_gpu_hours, ours.saved_share
    low, high = get_interval_ends(saved)
    if low <= 0 <= high:
        return (
            "it is not certain whether fewer or more GPU-hours would have gone into failing runs, retries and pre-runs "
            f"included (95 % interval {round_hours(high)} fewer to {round_hours(-low)} more)"
        )
    if saved.mean < 0:
        return (
            f"{round_hours(-saved.mean)} GPU-hours more would have gone into runs without a result, failing retries "
            f"and pre-runs included ({_format_range('95 % interval', -high, -low)}; {percent(-share.mean)} more)"
        )
    return (
        f"about {round_hours(saved.mean)} GPU-hours of runs without a result would have been saved, retries and "
        f"pre-runs included ({_format_range('95 % interval', low, high)}; {percent(share.mean)} of what they cost)"
    )


def _format_range(name: str, low: float, high: float) -> str:
    return f"{name} {round_hours(low)} to {round_hours(high)}"


def describe_prerun_effect(failures: FailureStudy) -> str:
    """Return a sentence about the jobs that a pre-run would have stopped; "" if there are none."""
    arm = failures.arm("pre-run")
    jobs, hours_waited = arm.stopped_by_trial.mean, arm.waited_in_vain_hours.mean
    if jobs < _LEAST_JOBS:
        return ""
    return (
        f"About {count(round(jobs), 'job')} would have been stopped by the pre-run within minutes of submission; "
        f"in reality they waited {hours_waited / jobs:,.1f} h each, on average, and then failed."
    )


def describe_trust(study: Study) -> tuple[str, ...]:
    """Return how far to trust the results: the verdict, then the figures on which it is based."""
    trust = study.trust
    figures = (
        f"Mean queueing delay {duration(trust.mean_model_s)} in the model of plain Slurm, "
        f"{duration(trust.mean_real_s)} really; GPUs held {percent(trust.utilisation_model)} and "
        f"{percent(trust.utilisation_real)} of the time; the two distributions of the delay differ by at most "
        f"{100 * trust.gap:.0f} percentage points."
    )
    few = (f"This is based on {count(study.jobs, 'job')}: too few to judge how well the model fits.",)
    return (
        _VERDICT[trust.word],
        *(few if study.jobs < FEW else ()),
        figures,
        *_describe_worst_fit(trust.worst),
        *((_WHY_FAR,) if trust.word == "far" else ()),
    )


def _describe_worst_fit(fit: DelayFit | None) -> tuple[str, ...]:
    if fit is None or fit.word == "close":
        return ()
    model, real = duration(fit.mean_model_s), duration(fit.mean_real_s)
    return (f"It fits worst for jobs with {fit.label}: mean queueing delay {model} in the model, {real} really.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One row of the table of causes. `before` and `after` are GPU-hours."""

    name: str
    runs: float
    before: float
    # With all parts of slurmwrap, including retries that failed again.
    after: float
    # Number of jobs that end well with all parts of slurmwrap.
    cured: float


def list_causes(failures: FailureStudy) -> tuple[CauseRow, ...]:
    """Return the causes of failures, in the order of the study: the most expensive first."""
    return tuple(
        CauseRow(
            name=row.category.replace("_", " "),
            runs=row.jobs,
            before=row.cost_gpu_hours["plain"],
            after=row.cost_gpu_hours["all"],
            cured=row.cured["all"],
        )
        for row in failures.categories
    )


def describe_lost_runs(study: Study) -> str:
    """Return a sentence about the GPU-hours of runs that did not complete."""
    waste = study.waste
    runs = sum(one.runs for one in waste.lost)
    if not runs:
        return "Every run completed."
    share = percent(waste.lost_gpu_hours / waste.gpu_hours) if waste.gpu_hours else "none"
    return (
        f"{count(runs, 'run').capitalize()} did not complete and held {round_hours(waste.lost_gpu_hours)} of "
        f"{round_hours(waste.gpu_hours)} GPU-hours ({share})."
    )


def format_dates(since: float, until: float, zone: tzinfo | None) -> str:
    """Return the dates of a period, such as "1 to 30 October 2026"."""
    first, last = (datetime.fromtimestamp(at, zone) for at in (since, until))
    begins = f"{first.day}"
    if (first.month, first.year) != (last.month, last.year):
        begins += f"\N{NO-BREAK SPACE}{first:%B}" + (f" {first.year}" if first.year != last.year else "")
    return f"{begins} to {last.day}\N{NO-BREAK SPACE}{last:%B}\N{NO-BREAK SPACE}{last.year}"


def format_signed(seconds: float) -> str:
    """Return a duration with its sign, such as "+12 min" or "−45 s"."""
    return f"{'−' if seconds < 0 else '+'}{duration(abs(seconds))}"


def format_brief_time(seconds: float) -> str:
    """Return a short duration for a column: "45 s", "12 min", "7.1 h", "2.3 d"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 47.95 * 3600 else f"{seconds / 86400:.1f} d"


def replace_hyphens(text: str) -> str:
    """Return the text with minus signs instead of hyphens."""
    return text.replace("-", "−")


def round_hours(value: float) -> str:
    """Return GPU-hours as text, without decimals from 100 on."""
    return replace_hyphens(f"{value:,.0f}" if abs(value) >= 100 else hours(value))


def describe_cluster(study: Study) -> str:
    """Return the cluster's nodes by kind, such as "12 × (8 GPUs, 64 CPUs, 500 GiB)"."""
    kinds = [
        f"{kind.nodes} × ({count(kind.gpus, 'GPU')}, {count(kind.cpus, 'CPU')}, {kind.mem_mib / 1024:,.0f} GiB)"
        for kind in study.shape.kinds
    ]
    more = f" and {len(kinds) - 4} more kinds of node" if len(kinds) > 4 else ""
    return ", ".join(kinds[:4]) + more


# The text on the terminal: the headline, how far to trust it, one table.
# Terminal columns that the whole table needs; the table's columns that a narrower terminal shows.
_WIDE_COLUMNS, _NARROW_CELLS = 78, (0, 1, 3, 4, 5)
_COLOURS = {"close": "green", "fair": "yellow", "far": "red"}


def format_study(study: Study, page: Path, *, width: int = 80, paint: Paint = plain) -> str:
    """Return the study as text for one screen. `width`: the most columns of a line."""
    return "\n\n".join(part for part in _list_parts(study, page, width, paint)) + "\n"


def _list_parts(study: Study, page: Path, width: int, paint: Paint) -> Iterator[str]:
    since, until = moment(study.window.since, UTC), moment(study.window.until, UTC)
    head = (
        f"{count(study.jobs, 'job')} of {count(study.users, 'user')}, {since} to {until}, on {describe_cluster(study)}"
    )
    yield wrapped(head, columns=width)
    yield paint(wrapped(format_headline(study), columns=width), "bold")
    verdict = describe_trust(study)[0] if study.jobs >= FEW else " ".join(describe_trust(study)[:2])
    yield paint(wrapped(verdict, columns=width), _COLOURS[study.trust.word])
    yield _format_table(study, width)
    yield _format_sizes(study, width)
    yield wrapped(describe_lost_runs(study), columns=width)
    yield wrapped(f"The page: {visible(str(page))}", columns=max(width, len(str(page)) + 10))


def _format_table(study: Study, width: int) -> str:
    head = ("", ">delay: mean", ">median", ">p95", ">JCT: mean", ">p95", ">GPUs")
    shown = range(len(head)) if width >= _WIDE_COLUMNS else _NARROW_CELLS
    rows = ([_list_cells(arm)[place] for place in shown] for arm in study.arms)
    return table([head[place] for place in shown], rows, columns=width)


def _format_sizes(study: Study, width: int) -> str:
    """Return the mean delays by GPUs without and with the order, both in the model."""
    head = ("mean delay by GPUs", ">jobs", ">plain Slurm", ">with order")
    rows = (
        (before.label, f"{before.jobs:,}", *(format_brief_time(one.queueing.mean) for one in (before, after)))
        for before, after in zip(study.arm(PLAIN).classes, study.arm(ORDERED).classes, strict=True)
    )
    return table(head, rows, columns=width)


def _list_cells(arm: StudyWorld) -> tuple[str, ...]:
    wait, jct = arm.all.queueing, arm.all.jct
    seconds = (wait.mean, wait.median, wait.p95, jct.mean, jct.p95)
    return (ARMS[arm.name], *(format_brief_time(value) for value in seconds), percent(arm.gpu_utilisation))
