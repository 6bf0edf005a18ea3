"""What a what-if study says: sentences and the terminal's text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.report.job_report.job_report_text import Paint, plain
from slurmwrap.report.text_format import count, duration, hours, moment, percent, table, visible, wrapped
from slurmwrap.sim.failures.study_result import ArmResult, FailureStudy, Interval
from slurmwrap.sim.whatif.arm_measures import FEW
from slurmwrap.sim.whatif.whatif_study import OURS, PLAIN, REAL, DelayFit, Study, StudyWorld

# The sentences of `slurmwrap whatif`, for the page and the terminal: what a Study's numbers mean.
ARMS = {REAL: "Really happened", PLAIN: "Plain Slurm, model", OURS: "slurmwrap, model"}
STATES = {
    "FAILED": "the job's own error, mostly",
    "TIMEOUT": "its time limit; checkpoints may be left",
    "CANCELLED": "stopped by somebody; checkpoints may be left",
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
_NO_WORD = "what slurmwrap does to the queueing delay cannot be said, for the model does not reproduce this queue"
# Of means over draws: less is no job.
_A_JOB = 0.5
# Slurm's own pace, and of the delay: a smaller change is none.
_NOTHING_S, _NOTHING = 30.0, 0.01
_WHY_FAR = (
    "Common reasons: fair-share priorities, reservations, limits of QOS and association, preemption, nodes that were "
    "down, or a guessed cluster (give --nodes)."
)


def headline(study: Study) -> str:
    """A few sentences that hold with their uncertainty: a model that is far off is no reason to speak of delay."""
    delay = _NO_WORD if study.trust.word == "far" else _delay(study)
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in (delay, *saved_words(study.failures)))


def _delay(study: Study) -> str:
    plain, ours = (study.arm(name).all.queueing.mean for name in (PLAIN, OURS))
    change = study.queueing_change_s
    if change is None:
        told = "too few days for an interval"
        if abs(ours - plain) < _NOTHING_S:
            return (
                f"placement by slurmwrap would not have changed the mean queueing delay of {duration(plain)} ({told})"
            )
        return f"the mean queueing delay would have been {duration(ours)} instead of {duration(plain)} ({told})"
    low, high = ends(change)
    if max(abs(low), abs(high)) < _NOTHING_S:
        return f"placement by slurmwrap would not have changed the mean queueing delay of {duration(plain)}"
    if low <= 0 <= high or abs(change.mean) < max(_NOTHING_S, _NOTHING * plain):
        return (
            f"placement by slurmwrap would have left the mean queueing delay at {duration(plain)} "
            f"(95 % interval of the change {signed(low)} to {signed(high)})"
        )
    return (
        f"the mean queueing delay would have been {duration(ours)} instead of {duration(plain)} "
        f"({signed(change.mean)}; 95 % interval {signed(low)} to {signed(high)})"
    )


def ends(interval: Interval) -> tuple[float, float]:
    """Of an estimate without an interval, itself."""
    mean = interval.mean
    return mean if interval.low is None else interval.low, mean if interval.high is None else interval.high


def saved_words(failures: FailureStudy) -> tuple[str, ...]:
    """What all parts together make of the jobs that failed: first those that end well, then GPU-hours, both sides."""
    failed = failures.arm("plain").failed_runs.mean
    if not failed:
        return ("no run of the dump failed, so there was nothing to catch",)
    ours = failures.arm("all")
    low, high = ends(ours.cured)
    cured = (
        f"of {count(round(failed), 'run')} that failed, about {ours.cured.mean:,.0f} would have ended well by a retry "
        f"that their users need not think of (95 % interval {low:,.0f} to {high:,.0f})"
    )
    return (*((cured,) if ours.cured.mean >= _A_JOB else ()), _gpu_hours(ours))


def _gpu_hours(ours: ArmResult) -> str:
    """Of runs without a result: what is not run any more, less what slurmwrap adds."""
    saved, share = ours.saved_gpu_hours, ours.saved_share
    low, high = ends(saved)
    if low <= 0 <= high:
        return (
            "whether fewer or more GPU-hours would have gone into failing runs, retries and pre-runs counted, cannot "
            f"be told (95 % interval {round_hours(high)} fewer to {round_hours(-low)} more)"
        )
    if saved.mean < 0:
        return (
            f"{round_hours(-saved.mean)} GPU-hours more would have gone into runs without a result, retries that fail "
            f"again and pre-runs counted ({_range('95 % interval', -high, -low)}; {percent(-share.mean)} more)"
        )
    return (
        f"about {round_hours(saved.mean)} GPU-hours of runs without a result would have been saved, retries and "
        f"pre-runs counted ({_range('95 % interval', low, high)}; {percent(share.mean)} of what they cost)"
    )


def _range(words: str, low: float, high: float) -> str:
    return f"{words} {round_hours(low)} to {round_hours(high)}"


def pre_run_words(failures: FailureStudy) -> str:
    """What a pre-run is for. "": it stops no job."""
    arm = failures.arm("pre-run")
    jobs, hours_waited = arm.stopped_by_trial.mean, arm.waited_in_vain_hours.mean
    if jobs < _A_JOB:
        return ""
    return (
        f"About {count(round(jobs), 'job')} would have been stopped by the pre-run within minutes of submission; "
        f"really they waited {hours_waited / jobs:,.1f} h each, on average, only to fail then."
    )


def believe(study: Study) -> tuple[str, ...]:
    """How far to believe the rest: the verdict, then the figures it rests on."""
    trust = study.trust
    figures = (
        f"Mean queueing delay {duration(trust.mean_model_s)} in the model of plain Slurm, "
        f"{duration(trust.mean_real_s)} really; GPUs held {percent(trust.utilisation_model)} and "
        f"{percent(trust.utilisation_real)} of the time; the two distributions of the delay differ by at most "
        f"{100 * trust.gap:.0f} percentage points."
    )
    few = (f"That rests on {count(study.jobs, 'job')}: too few to say how well the model fits.",)
    return (
        _VERDICT[trust.word],
        *(few if study.jobs < FEW else ()),
        figures,
        *_worst(trust.worst),
        *((_WHY_FAR,) if trust.word == "far" else ()),
    )


def _worst(fit: DelayFit | None) -> tuple[str, ...]:
    if fit is None or fit.word == "close":
        return ()
    model, real = duration(fit.mean_model_s), duration(fit.mean_real_s)
    return (f"It fits worst for jobs with {fit.label}: mean queueing delay {model} in the model, {real} really.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One row of the table of causes. GPU-hours."""

    name: str
    runs: float
    before: float
    # With all parts, runs again that failed too among them.
    after: float
    # Jobs that end well with all parts.
    cured: float


def causes(failures: FailureStudy) -> tuple[CauseRow, ...]:
    """The dearest first."""
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


def lost_words(study: Study) -> str:
    """What runs without a result held."""
    waste = study.waste
    runs = sum(one.runs for one in waste.lost)
    if not runs:
        return "Every run completed."
    share = percent(waste.lost_gpu_hours / waste.gpu_hours) if waste.gpu_hours else "none"
    return (
        f"{count(runs, 'run').capitalize()} did not complete and held {round_hours(waste.lost_gpu_hours)} of "
        f"{round_hours(waste.gpu_hours)} GPU-hours ({share})."
    )


def span(since: float, until: float, zone: tzinfo | None) -> str:
    """ "1 to 30 October 2026"."""
    first, last = (datetime.fromtimestamp(at, zone) for at in (since, until))
    begins = f"{first.day}"
    if (first.month, first.year) != (last.month, last.year):
        begins += f"\N{NO-BREAK SPACE}{first:%B}" + (f" {first.year}" if first.year != last.year else "")
    return f"{begins} to {last.day}\N{NO-BREAK SPACE}{last:%B}\N{NO-BREAK SPACE}{last.year}"


def signed(seconds: float) -> str:
    """ "+12 min", "−45 s"."""
    return f"{'−' if seconds < 0 else '+'}{duration(abs(seconds))}"


def brief(seconds: float) -> str:
    """For columns: "45 s", "12 min", "7.1 h", "2.3 d"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 47.95 * 3600 else f"{seconds / 86400:.1f} d"


def minus(text: str) -> str:
    """With a minus sign instead of a hyphen."""
    return text.replace("-", "−")


def round_hours(value: float) -> str:
    """GPU-hours: no decimals from 100 on, where no one reads them."""
    return minus(f"{value:,.0f}" if abs(value) >= 100 else hours(value))


def cluster_words(study: Study) -> str:
    """ "12 × (8 GPUs, 64 CPUs, 500 GiB)"."""
    kinds = [
        f"{kind.nodes} × ({count(kind.gpus, 'GPU')}, {count(kind.cpus, 'CPU')}, {kind.mem_mib / 1024:,.0f} GiB)"
        for kind in study.shape.kinds
    ]
    more = f" and {len(kinds) - 4} more kinds of node" if len(kinds) > 4 else ""
    return ", ".join(kinds[:4]) + more


# What `slurmwrap whatif` says on the terminal: the headline, how far to believe it, one table.
# Columns of a terminal; what one that is narrower gets of the table.
_WIDE, _FIRST = 78, (0, 1, 3, 4, 5)
_COLOURS = {"close": "green", "fair": "yellow", "far": "red"}


def told(study: Study, page: Path, *, width: int = 80, paint: Paint = plain) -> str:
    """A screenful. `width`: columns that a line may have."""
    return "\n\n".join(part for part in _parts(study, page, width, paint)) + "\n"


def _parts(study: Study, page: Path, width: int, paint: Paint) -> Iterator[str]:
    since, until = moment(study.window.since, UTC), moment(study.window.until, UTC)
    head = f"{count(study.jobs, 'job')} of {count(study.users, 'user')}, {since} to {until}, on {cluster_words(study)}"
    yield wrapped(head, columns=width)
    yield paint(wrapped(headline(study), columns=width), "bold")
    verdict = believe(study)[0] if study.jobs >= FEW else " ".join(believe(study)[:2])
    yield paint(wrapped(verdict, columns=width), _COLOURS[study.trust.word])
    yield _table(study, width)
    yield wrapped(lost_words(study), columns=width)
    yield wrapped(f"The page: {visible(str(page))}", columns=max(width, len(str(page)) + 10))


def _table(study: Study, width: int) -> str:
    head = ("", ">delay: mean", ">median", ">p95", ">JCT: mean", ">p95", ">GPUs")
    shown = range(len(head)) if width >= _WIDE else _FIRST
    rows = ([_row(arm)[place] for place in shown] for arm in study.arms)
    return table([head[place] for place in shown], rows, columns=width)


def _row(arm: StudyWorld) -> tuple[str, ...]:
    wait, jct = arm.all.queueing, arm.all.jct
    seconds = (wait.mean, wait.median, wait.p95, jct.mean, jct.p95)
    return (ARMS[arm.name], *(brief(value) for value in seconds), percent(arm.gpu_utilisation))
