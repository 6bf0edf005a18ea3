"""Findings about a running job: diverged, partly dead, stuck, idle GPUs, will not finish (rule `early`). Pure.

A job is looked at again and again (RunningLook). What is known of it is kept as a RunningSeries, from which its signs
follow. Output and step counts are claims of the job's user. The use of GPUs and CPUs comes from the nodes' own sampler,
else the CPU time of the job's steps from Slurm. A sign is `confirmed` if something else than text shows it: only then
the rule may act. docs/running.md describes the findings and their waiting times.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.config.config_defaults import Early
from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.diagnosis.node_facts import describe_held_clocks
from slurmwrap.diagnosis.running_output import OutputSigns
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.run_time import FROM_PROGRESS, FROM_RUNS, RunTimeEstimate
from slurmwrap.model.running_job import DIVERGED, HOST, IDLE, PARTLY_DEAD, STUCK, WILL_NOT_FINISH, GpuUse
from slurmwrap.profiling.gpu_use import get_recent_use
from slurmwrap.profiling.progress_estimate import RunProgress, forecast_end

# A GPU is unused below this use in percent; another one of the job is used from _USED_PCT on.
_UNUSED_PCT, _USED_PCT = 1.0, 5.0
# Kernels of NCCL spin while they wait: then each GPU is all the time above this, or unused.
_SPINNING_PCT = 99.0
# Samples must cover this share of a window, and the newest one must not be older than this (or three intervals).
_COVERED, _FRESH_S = 0.8, 180.0
# Factor of the waiting time where something suggests that the job works without a step, and of that for a first step.
_PATIENT, _START = 3.0, 6.0
# Factors for NaN without an earlier finite loss: of the rows and of the time.
_NEVER_FINITE_ROWS, _NEVER_FINITE_S = 4, 5.0
# Multiple of the longest gap that a step ended: programs repeat their pauses.
_LONGEST_TIMES = 2.0
# Gaps that end with a write of something else count up to this multiple of the usual gap.
_TRAILING_TIMES = 1.2
# A rank that ended stops the others only if their next step is overdue by so many usual gaps.
_DEAD_GAPS = 3.0
# With fewer steps the usual gap is not known; from the second number on, the guess of the first look is not needed.
_LEAST_STEPS, _ENOUGH_STEPS = 3, 10
_GAPS = 256
# The job's processes compute if they use more than this share of its CPUs, and of one CPU.
_BUSY_SHARE, _BUSY_CORES = 0.005, 0.5
# The predicted end is beyond the limit even if the rest takes only this share of what its progress says.
_OPTIMISTIC = 0.8
# Before this share of the limit the first checkpoint may still come. The speed is that of at least so many seconds.
_FORECAST_FROM_S, _FORECAST_FROM, _RATE_S = 900.0, 0.25, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """What Slurm and the submission say of a running job."""

    began: float  # Unix seconds
    limit_s: float | None = None
    gpus: int = 0
    cpus: int = 1
    several: bool = False  # it has several GPUs, tasks or nodes, so that ranks may wait for each other
    warned: bool = False  # the job gets a signal before its limit (--signal), at which it may write a checkpoint
    resumes: bool = False  # a run after a requeue: it may need less than a whole run
    history: RunTimeEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedNow:
    """The step counter of all processes of a run at one moment (node_hooks/step_counts.py)."""

    count: int  # of the process with the most steps
    total: int  # of all processes together
    processes: int
    at: float  # when the newest step was made, Unix seconds
    per_s: float | None = None
    not_finite: int = 0  # newest steps in a row with a loss that is NaN or infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLook:
    """What one look at a job showed. Times in Unix seconds."""

    at: float
    signs: OutputSigns = field(default_factory=OutputSigns)
    output_at: float | None = None  # newest write to a file of its output; None: not known
    cut: bool = False  # some of the output since the last look was not read
    counter: CountedNow | None = None
    cpu_s: float | None = None  # CPU time of its steps until now; None: not asked, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSeries:
    """What is known of one running job after several looks. `..._at` and `..._since`: Unix seconds, None for never."""

    run: WatchedRun
    looked_at: float | None = None
    # Steps: of the counter, or without one the rows of the output that show progress.
    counter: CountedNow | None = None
    step_at: float | None = None
    gaps: tuple[tuple[float, int], ...] = ()  # (seconds, how many steps were so far apart), oldest first
    guessed: tuple[float, int] | None = None  # the same of the first look, with the time before the first step
    longest_s: float = 0.0  # the longest gap after which a step was seen
    output_at: float | None = None
    waits: str = ""
    waited_at: float | None = None  # last look at which it said so
    nan: int = 0
    nan_since: float | None = None
    nan_row: str = ""
    finite: bool = False
    loss_since: float | None = None  # since when the counter's loss is not finite
    ended: tuple[str, ...] = ()  # ranks that ended with an error
    ended_at: float | None = None
    ended_row: str = ""
    went_on: int = 0  # rows of progress after that
    worked_at: float | None = None  # newest output after that which is no error
    cpu: tuple[float, float] | None = None  # (time, CPU time) of the last look at it
    cpu_cores: float | None = None  # mean CPUs in use between the last two of these
    shown: tuple[float, ShownProgress] | None = None
    first_shown: tuple[float, ShownProgress] | None = None
    late_since: float | None = None  # since when the predicted end is beyond the limit
    saved: bool = False  # a checkpoint may have been written: the output mentions one, or was not read completely


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlySign:
    """One thing that is wrong with a running job now. `words`: figures alone, which every user may see."""

    kind: str  # a value of model.running_job.FINDING_KINDS
    n: int
    words: str
    evidence: str = ""  # the deciding line of the output
    confirmed: bool = False


# --- what a look adds -------------------------------------------------------------------------------------------------


def add_look(series: RunningSeries, look: RunningLook, settings: Early) -> RunningSeries:
    """Return the series with one more look."""
    signs = look.signs
    written = look.output_at if signs.rows else None
    series = _add_steps(series, look)
    series = _add_losses(series, look)
    series = _add_ended_ranks(series, look)
    if look.cpu_s is not None:
        series = _add_cpu_time(series, look.at, look.cpu_s)
    if signs.shown is not None:
        at = written or look.at
        first = series.first_shown
        same = first is not None and (first[1].unit, first[1].total) == (signs.shown.unit, signs.shown.total)
        series = replace(series, shown=(at, signs.shown), first_shown=first if same else (at, signs.shown))
    waits = signs.waits if signs.rows else series.waits
    series = replace(
        series,
        looked_at=look.at,
        output_at=written if written is not None else series.output_at,
        waits=waits,
        waited_at=look.at if waits else series.waited_at,
        saved=series.saved or signs.saved or signs.resumed or look.cut,
    )
    return replace(series, late_since=(series.late_since or look.at) if _will_be_late(series, look.at) else None)


def _add_steps(series: RunningSeries, look: RunningLook) -> RunningSeries:
    counter, before = look.counter, series.counter
    if counter is not None:
        if before is None:
            gaps = ((1 / counter.per_s, counter.count),) if counter.per_s else ()
            return replace(
                series, counter=counter, step_at=counter.at, gaps=gaps, longest_s=gaps[0][0] if gaps else 0.0
            )
        made = max(0, counter.total - before.total) / max(1, counter.processes)
        if counter.at <= (series.step_at or 0.0) or not made:
            return replace(series, counter=counter)
        return replace(_add_gaps(series, counter.at, max(1, round(made))), counter=counter)
    if before is not None or not look.signs.progress:
        return series
    at = max(look.output_at if look.output_at is not None else look.at, series.step_at or series.run.began)
    added = _add_gaps(series, at, look.signs.progress, cut=look.cut)
    usual_s = get_usual_gap_s(series)
    if look.signs.trailing and usual_s is not None and added.gaps[-1:] > ((_TRAILING_TIMES * usual_s, 0),):
        # Other rows were written after the last step, perhaps much later, so its own time is not known.
        return replace(added, gaps=series.gaps)
    return added


def _add_gaps(series: RunningSeries, at: float, steps: int, *, cut: bool = False) -> RunningSeries:
    """Add `steps` steps, the newest of them at `at`.

    If the job was without a step at the last look already, that pause is one gap, and the other steps share the rest.
    """
    if series.step_at is None:
        # The time before the first step is that of the preparations. At the first look at a run it is not known how
        # long they took, so the gaps may seem longer than they are.
        mean = 0.0 if cut else max(0.0, at - series.run.began) / steps
        return replace(series, step_at=at, guessed=(mean, steps) if series.looked_at is None else None)
    span, pause = max(0.0, at - series.step_at), 0.0
    if series.looked_at is not None:
        pause = min(span, max(0.0, series.looked_at - series.step_at))
    mean = span / steps
    if steps > 1 and pause > 3 * mean:
        new: tuple[tuple[float, int], ...] = ((pause, 1), ((span - pause) / (steps - 1), steps - 1))
    else:
        new = ((mean, steps),)
    longest = max(series.longest_s, pause, mean)
    return replace(series, step_at=at, gaps=(*series.gaps, *new)[-_GAPS:], longest_s=longest)


def _add_losses(series: RunningSeries, look: RunningLook) -> RunningSeries:
    signs = look.signs
    nan = signs.nan if signs.finite else series.nan + signs.nan
    since = None if not nan else look.at if signs.finite or series.nan_since is None else series.nan_since
    bad_since = series.loss_since
    if look.counter is not None:
        bad_since = (bad_since or look.at) if look.counter.not_finite else None
    return replace(
        series,
        nan=nan,
        nan_since=since,
        nan_row=(signs.nan_row or series.nan_row) if nan else "",
        finite=series.finite or signs.finite,
        loss_since=bad_since,
    )


def _add_ended_ranks(series: RunningSeries, look: RunningLook) -> RunningSeries:
    signs = look.signs
    at = look.output_at if look.output_at is not None else look.at
    if signs.ended:
        ranks = tuple(dict.fromkeys((*series.ended, *signs.ended)))
        first = series.ended_at if series.ended_at is not None else at
        worked = at if signs.after else series.worked_at
        row = signs.ended_row
        series = replace(series, ended=ranks, ended_at=first, ended_row=row, went_on=signs.went_on, worked_at=worked)
        return _forget_ended_ranks(series) if signs.restarted else series
    if series.ended_at is None:
        return series
    series = replace(series, went_on=series.went_on + signs.progress)
    # One row of progress may be the last one of another rank.
    if series.went_on > 1 or signs.restarted:
        return _forget_ended_ranks(series)
    return replace(series, worked_at=at) if signs.others else series


def _forget_ended_ranks(series: RunningSeries) -> RunningSeries:
    return replace(series, ended=(), ended_at=None, ended_row="", went_on=0, worked_at=None)


def _add_cpu_time(series: RunningSeries, at: float, cpu_s: float) -> RunningSeries:
    cores = series.cpu_cores
    if series.cpu is not None and at > series.cpu[0]:
        # Steps that ended take their CPU time with them.
        cores = max(0.0, cpu_s - series.cpu[1]) / (at - series.cpu[0])
    return replace(series, cpu=(at, cpu_s), cpu_cores=cores)


# --- what the series shows --------------------------------------------------------------------------------------------


def find_signs(series: RunningSeries, samples: Sequence[GpuUse], now: float, settings: Early) -> tuple[EarlySign, ...]:
    """Return what is wrong with the job now. `samples`: of its GPUs and CPUs; () if they are not known."""
    gpus = [one for one in samples if one.gpu != HOST]
    hosts = [one for one in samples if one.gpu == HOST]
    found = (
        _find_divergence(series, now, settings),
        _find_dead_ranks(series, gpus, now, settings),
        _find_stall(series, gpus, hosts, now, settings),
        _find_idle_gpus(series, gpus, now, settings),
        _find_late_end(series, gpus, now, settings),
    )
    signs = [sign for sign in found if sign is not None]
    if any(sign.kind == PARTLY_DEAD for sign in signs):
        # The same standstill, with its cause.
        signs = [sign for sign in signs if sign.kind not in (STUCK, IDLE)]
    if series.step_at is None and any(sign.kind == IDLE for sign in signs):
        signs = [sign for sign in signs if sign.kind != STUCK]
    return tuple(signs)


def needs_cpu_time(series: RunningSeries, now: float, settings: Early) -> bool:
    """Return True if the CPU time of the job's steps will soon matter, so that it should be read from now on."""
    wait_s = _find_stuck_wait(series, settings)
    return wait_s is not None and _get_stall_s(series, now) > wait_s - 2 * settings.every_s


def _find_divergence(series: RunningSeries, now: float, settings: Early) -> EarlySign | None:
    by_counter = series.loss_since is not None and now - series.loss_since >= settings.diverged_s
    rows, wait_s = settings.diverged_rows, settings.diverged_s
    if not series.finite and not by_counter:
        rows, wait_s = rows * _NEVER_FINITE_ROWS, wait_s * _NEVER_FINITE_S
    by_text = series.nan >= rows and series.nan_since is not None and now - series.nan_since >= wait_s
    if not (by_text or by_counter):
        return None
    counted = series.counter.not_finite if series.counter is not None and by_counter else 0
    n = max(series.nan, counted)
    return EarlySign(
        kind=DIVERGED,
        n=n,
        words=f"the last {n:,} losses are NaN or infinite",
        evidence=series.nan_row,
        confirmed=by_counter,
    )


def _find_dead_ranks(series: RunningSeries, gpus: Sequence[GpuUse], now: float, settings: Early) -> EarlySign | None:
    if series.ended_at is None or not series.run.several:
        return None
    usual_s = get_usual_gap_s(series)
    since = max(series.ended_at, series.step_at or 0.0) if series.step_at is not None else series.ended_at
    wait_s = max(settings.dead_s, _DEAD_GAPS * (usual_s or 0.0))
    if series.worked_at is not None:
        since, wait_s = max(since, series.worked_at), wait_s * _PATIENT
    if now - since < wait_s:
        return None
    unused = _is_unused(gpus, series.run.gpus, now, min(wait_s, now - series.run.began))
    left = _count_left_gpus(gpus, now, settings.dead_s)
    stalled = series.counter is not None
    # Without a visible step only a GPU that lost its process shows that the others wait: it may be a preparation.
    if usual_s is None and not left:
        return None
    ranks = [rank for rank in series.ended if rank]
    n = max(1, len(ranks))
    which = f"rank {', '.join(ranks[:4])}{' and more' if len(ranks) > 4 else ''}" if ranks else "a rank"
    return EarlySign(
        kind=PARTLY_DEAD,
        n=n,
        words=f"{which} ended with an error, and there is no step for {_format_span(now - since)}",
        evidence=series.ended_row,
        confirmed=bool(unused or left or stalled),
    )


def _find_stall(
    series: RunningSeries, gpus: Sequence[GpuUse], hosts: Sequence[GpuUse], now: float, settings: Early
) -> EarlySign | None:
    wait_s, stall_s = _find_stuck_wait(series, settings), _get_stall_s(series, now)
    first = wait_s is None
    if wait_s is None:
        wait_s = _START * settings.stuck_s
    unused = _is_unused(gpus, series.run.gpus, now, min(settings.stuck_s, stall_s)) if series.run.gpus else None
    idle_cpus = _has_idle_cpus(series, hosts, now, min(settings.stuck_s, stall_s))
    if unused is False and not first:
        return _find_spinning(series, gpus, now, max(_START * settings.stuck_s, _PATIENT * wait_s))
    if unused is False or (first and unused is not True):
        return None
    if unused is None and not idle_cpus:
        wait_s *= _PATIENT
        if series.run.gpus == 0:
            # Nothing but its silence is known of a job without GPUs.
            return None
    if series.waits or idle_cpus is False or _has_other_output(series, now, settings):
        wait_s *= _PATIENT
    if stall_s < wait_s:
        return None
    what = "no first step" if series.step_at is None else "no step"
    facts = [
        {True: "no GPU is in use", None: "the use of its GPUs is not known" if series.run.gpus else ""}[unused],
        {True: "its CPUs are idle", False: "its CPUs are busy", None: ""}[idle_cpus],
    ]
    return EarlySign(
        kind=STUCK,
        n=int(stall_s),
        words=", ".join(filter(None, (f"{what} for {_format_span(stall_s)}", *facts))),
        evidence=series.waits,
        confirmed=unused is True or idle_cpus is True,
    )


def _find_spinning(series: RunningSeries, gpus: Sequence[GpuUse], now: float, wait_s: float) -> EarlySign | None:
    """Return the sign of a job whose GPUs only wait for each other. A silent validation looks the same, but ends."""
    stall_s = _get_stall_s(series, now)
    silent_s = now - max(series.output_at or 0.0, series.run.began)
    if stall_s < wait_s or silent_s < wait_s or len(gpus) < max(2, series.run.gpus):
        return None
    windows = [_select_use(one, now, wait_s) for one in gpus]
    if not all(window and (min(window) >= _SPINNING_PCT or 0 <= max(window) < _UNUSED_PCT) for window in windows):
        return None
    words = (
        f"no step and no output for {_format_span(min(stall_s, silent_s))}, and each GPU is at 100 % or 0 % throughout"
    )
    return EarlySign(kind=STUCK, n=int(stall_s), words=words)


def _find_stuck_wait(series: RunningSeries, settings: Early) -> float | None:
    """Return after how many seconds without a step the job is stuck; None if its usual gap is not known."""
    usual_s = get_usual_gap_s(series)
    if usual_s is None:
        return None
    return max(settings.stuck_s, settings.stuck_gaps * usual_s, _LONGEST_TIMES * series.longest_s)


def _get_stall_s(series: RunningSeries, now: float) -> float:
    return max(0.0, now - (series.step_at if series.step_at is not None else series.run.began))


def _has_other_output(series: RunningSeries, now: float, settings: Early) -> bool:
    """Return True if the job wrote something after its last step, and not long ago."""
    if series.output_at is None or now - series.output_at > settings.stuck_s:
        return False
    return series.step_at is None or series.output_at > series.step_at + settings.every_s


def get_usual_gap_s(series: RunningSeries) -> float | None:
    """Return the 99th percentile of the gaps between the job's steps in seconds; None if too few steps are known."""
    gaps = series.gaps
    steps = sum(n for _, n in gaps)
    if steps < _ENOUGH_STEPS and series.guessed is not None:
        gaps, steps = (series.guessed, *gaps), steps + series.guessed[1]
    if steps < _LEAST_STEPS:
        return None
    left = steps - int(0.99 * steps)
    for seconds, n in sorted(gaps, reverse=True):
        left -= n
        if left <= 0:
            return seconds
    return 0.0


def _has_idle_cpus(series: RunningSeries, hosts: Sequence[GpuUse], now: float, window_s: float) -> bool | None:
    """Return whether the job's processes use next to no CPU; None if neither its nodes nor Slurm say."""
    cores = series.cpu_cores
    if windows := [_select_use(one, now, window_s) for one in hosts]:
        known = all(window and min(window) >= 0 for window in windows)
        cores = sum(sum(window) / len(window) for window in windows) / 100 if known else None
    return None if cores is None else cores < max(_BUSY_CORES, _BUSY_SHARE * series.run.cpus)


def _find_idle_gpus(series: RunningSeries, gpus: Sequence[GpuUse], now: float, settings: Early) -> EarlySign | None:
    # The samples of the time in which the job said that it waits do not count, unless it waits for very long.
    patient = _PATIENT if series.waits else 1.0
    since = series.run.began if series.waits or series.waited_at is None else series.waited_at
    wait_s = settings.idle_s * patient
    if now - since >= wait_s:
        windows = [_select_processes(one, now, wait_s) for one in gpus]
        free = [one for one, window in zip(gpus, windows, strict=True) if window and max(window) == 0 <= min(window)]
        if free:
            words = f"no process on {_name_gpus(free, len(gpus))} for {_format_span(wait_s)}"
            return EarlySign(kind=IDLE, n=len(free), words=words, confirmed=True)
    wait_s = settings.unused_s * patient
    if now - since < wait_s or len(gpus) < 2:
        return None
    uses = [_select_use(one, now, wait_s) for one in gpus]
    used = [one for one, use in zip(gpus, uses, strict=True) if use and sum(use) / len(use) >= _USED_PCT]
    unused = [one for one, use in zip(gpus, uses, strict=True) if use and min(use) >= 0 and max(use) < _UNUSED_PCT]
    if not used or not unused:
        return None
    words = f"no use of {_name_gpus(unused, len(gpus))} for {_format_span(wait_s)} while others are used"
    return EarlySign(kind=IDLE, n=len(unused), words=words, confirmed=True)


def _find_late_end(series: RunningSeries, gpus: Sequence[GpuUse], now: float, settings: Early) -> EarlySign | None:
    if series.late_since is None or now - series.late_since < settings.forecast_s or series.saved:
        return None
    end = _forecast(series, now)
    if end is None or series.run.limit_s is None:
        return None
    at, share = end
    over_s = at - series.run.began - series.run.limit_s
    words = f"its time limit ends it {_format_span(over_s)} too early, at {share:.0%}; no checkpoint was seen"
    slowed = [(one, text) for one in gpus if (text := describe_held_clocks(one.clocks))]
    if slowed:
        worst, text = max(slowed, key=lambda found: found[0].clocks.get("slowed", 0.0))
        words += f"; GPU {worst.gpu} of {worst.node} {text}"
    return EarlySign(kind=WILL_NOT_FINISH, n=int(over_s), words=words)


def _will_be_late(series: RunningSeries, now: float) -> bool:
    run = series.run
    if run.limit_s is None or run.warned or run.resumes or series.saved or series.shown is None:
        return False
    if now - run.began < max(_FORECAST_FROM_S, _FORECAST_FROM * run.limit_s):
        return False
    if run.history is not None and run.history.source == FROM_RUNS and run.history.p50_s < run.limit_s:
        # Complete runs of the same job needed less: they may stop early.
        return False
    end = _forecast(series, now)
    return end is not None and now + _OPTIMISTIC * (end[0] - now) > run.began + run.limit_s


def _forecast(series: RunningSeries, now: float) -> tuple[float, float] | None:
    """Return (predicted end in Unix seconds, completed share at the limit) by the job's progress; None if not known."""
    if series.shown is None:
        return None
    at, shown = series.shown
    first = series.first_shown
    if first is not None and at - first[0] >= _RATE_S and shown.total and shown.done > first[1].done:
        # Without the preparations, which a mean over the whole run contains.
        rate = (shown.done - first[1].done) / (at - first[0])
        shown = replace(shown, left_s=(shown.total - shown.done) / rate)
    counter = series.counter
    progress = RunProgress(
        at=at,
        shown=shown,
        count=None if counter is None else counter.count,
        count_at=0.0 if counter is None else counter.at,
        count_per_s=None if counter is None else counter.per_s,
    )
    end = forecast_end(now=now, start=series.run.began, limit_s=series.run.limit_s, progress=progress)
    if end is None or end.source != FROM_PROGRESS or end.share_at_limit is None:
        return None
    return end.at, end.share_at_limit


# --- samples of GPUs --------------------------------------------------------------------------------------------------


def _select_use(use: GpuUse, now: float, window_s: float) -> Sequence[float]:
    """Return the use in percent in the last `window_s` seconds; () if the samples do not cover it, or are too old."""
    recent = get_recent_use(use)
    return _select_samples(recent.use_pct, recent, now, window_s) or _select_samples(use.use_pct, use, now, window_s)


def _select_processes(use: GpuUse, now: float, window_s: float) -> Sequence[float]:
    recent = get_recent_use(use)
    found = _select_samples(recent.processes, recent, now, window_s)
    return found or _select_samples(use.processes, use, now, window_s)


def _select_samples(values: Sequence[float], use: GpuUse, now: float, window_s: float) -> Sequence[float]:
    step, end = max(1.0, use.interval_s), use.ends_at
    if now - end > max(_FRESH_S, 3 * step):
        return ()
    count = max(1, int((end - (now - window_s)) / step))
    if count > len(values) / _COVERED or count * step < _COVERED * window_s - 2 * step:
        return ()
    return values[-count:]


def _is_unused(gpus: Sequence[GpuUse], wanted: int, now: float, window_s: float) -> bool | None:
    """Return whether no GPU of the job was used in the window; None if that is not known of all of them."""
    windows = [_select_use(one, now, window_s) for one in gpus]
    known = [window for window in windows if window and min(window) >= 0]
    if any(max(window) >= _UNUSED_PCT for window in known):
        return False
    return True if known and len(known) == len(gpus) and len(known) >= wanted else None


def _count_left_gpus(gpus: Sequence[GpuUse], now: float, window_s: float) -> int:
    """Return the number of GPUs that had a process before and have none now, while others still have one."""
    windows = [_select_processes(one, now, window_s) for one in gpus]
    if not any(window and window[-1] > 0 for window in windows):
        return 0
    pairs = zip(gpus, windows, strict=True)
    return sum(bool(window) and max(window) == 0 <= min(window) and max(one.processes) > 0 for one, window in pairs)


def _name_gpus(some: Sequence[GpuUse], known: int) -> str:
    if len(some) == 1:
        return f"GPU {some[0].gpu} of {some[0].node}"
    return f"{len(some)} of {known} GPUs"


def _format_span(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{int(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
