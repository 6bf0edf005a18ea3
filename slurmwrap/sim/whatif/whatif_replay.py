"""Replay a site's dump into a what-if Study: what happened, and what the model makes of the same submissions. Pure.

There are four arms with the same jobs: what really happened; plain Slurm in the model, which shows how far the model
can be trusted; slurmwrap in the model, with production's placement and, if profiles are known, its allocation; the same
with the rule `order` and, if the dump has time limits, the rule `limit` (sim/engines/queue_rules.py). Run times are the
dump's own. A job that failed fails again after the same time in both models. What slurmwrap saves there
is shown separately (sim/failures); that this makes the queue shorter is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slurmwrap.config.load_config import Order
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.engines.queue_rules import PREDICTED_LIMITS, QueueRules, make_queue_rules
from slurmwrap.sim.failures import FailureStudy, study_of_dump
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.mechanism.mechanism_registry import make_mechanism
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.sim_outcome import SimOutcome
from slurmwrap.sim.trace.trace_load import Actual, Load
from slurmwrap.sim.whatif.arm_measures import (
    GRID_S,
    Span,
    estimate_jct_change,
    estimate_queueing_change,
    judge_trust,
    list_spans,
    measure_arm,
)
from slurmwrap.sim.whatif.cluster_shape import ClusterShape
from slurmwrap.sim.whatif.whatif_study import (
    ORDERED,
    OURS,
    PLAIN,
    REAL,
    Lost,
    Study,
    StudyWorld,
    UserLoss,
    Waste,
    Window,
)

# GPU-hours held by runs that ended without a result, by Slurm's state and by user.
#
# A run that was stopped by its limit or its owner may have left checkpoints: its GPU-hours are counted as lost only in
# the sense that the run did not complete. Slurm's record is the only source; a script that hides its error ends
# COMPLETED.

# What was guessed or left out in a study, as whole sentences.
_HOUR = 3600.0


_ORDER_REMARK = (
    "The order treats every job as submitted with gsub and every job name as one key, and learns run times from this "
    "dump alone: the first days have no history. Fair share, QOS and limits of associations, which decide before the "
    "order, are not in the model."
)


def list_study_remarks(
    load: Load, site: ClusterShape, plain: SimOutcome, measured: Sequence[SimJob], window: tuple[float, float]
) -> tuple[str, ...]:
    """Return what the reader must know of this dump, the most important first."""
    return (
        *_list_shape_remarks(site),
        *_list_job_remarks(load, plain, measured),
        *_list_cpu_job_remarks(load, site, window),
        _ORDER_REMARK,
        *load.remarks,
    )


def _list_shape_remarks(site: ClusterShape) -> Iterator[str]:
    if site.source == "dump":
        yield (
            "The cluster is a guess: the nodes that jobs with GPUs ran on, each with the most that was ever held on it "
            "at once. `scontrol show node -d -o > nodes.txt` and --nodes nodes.txt give the real one."
        )
    if site.source == "options":
        yield "The cluster is as given on the command line: equal nodes, every job may run on each."


def _list_job_remarks(load: Load, plain: SimOutcome, measured: Sequence[SimJob]) -> Iterator[str]:
    """Yield which jobs of the dump are left out or not measured."""
    never = sum(ended is None for ended in plain.ended_s)
    if never:
        jobs, verb = _format_jobs(never), _format_verb(never)
        yield f"{jobs} could never start on this cluster, even when it was empty, and {verb} left out."
    running = sum(one.end_s is None for one in load.actual)
    if running:
        jobs = _format_jobs(running)
        yield f"{jobs} had not ended when the dump was made: replayed as far as known, and not measured."
    before = len(load.jobs) - never - running - len(measured)
    if before > 0:
        yield (
            f"{_format_jobs(before)} {'was' if before == 1 else 'were'} submitted before the window: "
            "replayed, because they "
            "hold nodes, and not measured."
        )


def _list_cpu_job_remarks(load: Load, site: ClusterShape, window: tuple[float, float]) -> Iterator[str]:
    """Yield how much CPU time jobs without GPUs held on the nodes with GPUs."""
    if not load.cpu_jobs:
        return
    names = {server.name for server in site.servers}
    pairs = zip(load.cpu_jobs, load.cpu_actual, strict=True)
    held = sum(
        (job.cpus or 1) * _compute_overlap(one.start_s, one.end_s, window)
        for job, one in pairs
        if _is_touching(one.node_list, names)
    )
    available = sum(server.cpus for server in site.servers) * max(1e-9, window[1] - window[0])
    yield (
        f"{_format_jobs(len(load.cpu_jobs))} without GPUs are not replayed. On the nodes with GPUs they really held "
        f"{100 * held / available:.1f} % of the CPU time."
    )


def _is_touching(node_list: str, names: set[str]) -> bool:
    return any(name in names for name in names_in(node_list))


def _compute_overlap(start: float, end: float | None, window: tuple[float, float]) -> float:
    return max(0.0, min(window[1], window[1] if end is None else end) - max(window[0], start))


def _format_jobs(count: int) -> str:
    return f"{count:,} job" + ("s" if count != 1 else "")


def _format_verb(count: int) -> str:
    return "is" if count == 1 else "are"


# Which jobs of a dump count, and how jobs that were in the system before its beginning enter the replay.
#
# A dump of a month contains every job that was in the system at some time in the month. Of the jobs submitted earlier
# it shows only those that were still there: a selection of long and late jobs, whose delays must not count. They do
# hold nodes, so they are replayed: a job that ran when the window began starts when it really did, one that waited
# enters at the beginning.
#
# A window that leaves out more than this fraction of the jobs is not used.
_TOO_FEW = 0.5


def guess_window_begin(load: Load) -> float:
    """Return when the dump seems to begin, on its own clock: no job in it ended earlier, so this is about the first
    end.

    If that leaves out half of the jobs, the dump is not cut at its beginning, and all of them count.
    """
    ends = [one.end_s for one in (*load.actual, *load.cpu_actual) if one.end_s is not None]
    first = min((job.submit_s for job in load.jobs), default=0.0)
    guess = min(ends, default=first)
    before = sum(job.submit_s < guess for job in load.jobs)
    return guess if before < _TOO_FEW * len(load.jobs) else first


def find_window_end(load: Load) -> float:
    """Return the last moment that the dump covers."""
    known = [moment for one in load.actual for moment in (one.submit_s, one.start_s, one.end_s) if moment is not None]
    return max(known, default=0.0)


def select_entering_jobs(load: Load, since: float) -> tuple[tuple[SimJob, ...], tuple[Actual, ...]]:
    """Return the jobs as they enter a replay from `since` on, renumbered in that order, and what really happened to
    them.
    """
    timed = [
        (job if job.submit_s >= since else replace(job, submit_s=_compute_entry(job, actual, since)), actual)
        for job, actual in zip(load.jobs, load.actual, strict=True)
    ]
    timed.sort(key=lambda pair: (pair[0].submit_s, pair[0].number))
    jobs = tuple(replace(job, number=number) for number, (job, _) in enumerate(timed))
    return jobs, tuple(actual for _, actual in timed)


def _compute_entry(job: SimJob, actual: Actual, since: float) -> float:
    return actual.start_s if actual.start_s < since else max(job.submit_s, since)


def select_counted_jobs(jobs: Sequence[SimJob], actual: Sequence[Actual], window: tuple[float, float]) -> list[SimJob]:
    """Return the jobs that could first run in the window, and whose end is known."""
    since, until = window
    return [
        job
        for job, what in zip(jobs, actual, strict=True)
        if since <= job.submit_s <= until and what.end_s is not None and _is_eligible_within(job, what, since)
    ]


def _is_eligible_within(job: SimJob, what: Actual, since: float) -> bool:
    """Return whether the job's entry was not moved to the begin of the window."""
    return job.submit_s > since or what.submit_s >= since


GOOD = frozenset({"COMPLETED", "RUNNING", "SUSPENDED", "COMPLETING", "PENDING", ""})


def compute_waste(runs: Iterable[tuple[SimJob, Actual]]) -> Waste:
    """Return the waste of runs with GPUs that ended, without estimates of what could have prevented it."""
    by_state: dict[str, list[float]] = defaultdict(list)
    by_user: dict[str, list[float]] = defaultdict(list)
    held_by: dict[str, float] = defaultdict(float)
    for job, actual in runs:
        hours = gpu_hours(job, actual)
        held_by[job.user] += hours
        if job.status not in GOOD:
            by_state[job.status].append(hours)
            by_user[job.user].append(hours)
    lost = [Lost(state=state, runs=len(all_of), gpu_hours=sum(all_of)) for state, all_of in by_state.items()]
    users = [
        UserLoss(user=user, runs=len(all_of), gpu_hours=sum(all_of), share=sum(all_of) / max(1e-9, held_by[user]))
        for user, all_of in by_user.items()
    ]
    return Waste(
        gpu_hours=sum(held_by.values()),
        lost=tuple(sorted(lost, key=lambda one: (-one.gpu_hours, one.state))),
        users=tuple(sorted(users, key=lambda one: (-one.gpu_hours, one.user))),
    )


def gpu_hours(job: SimJob, actual: Actual) -> float:
    """Return what the run really held; 0 if it has not ended."""
    return 0.0 if actual.end_s is None else job.gpus * max(0.0, actual.end_s - actual.start_s) / _HOUR


def anonymize_users(jobs: Sequence[SimJob]) -> tuple[SimJob, ...]:
    """Return the jobs with users u1, u2, … in the order of first appearance.

    Jobs without a user name stay without: they may belong to several users.
    """
    names = {"": ""}
    return tuple(replace(job, user=names.setdefault(job.user, f"u{len(names)}")) for job in jobs)


# (activity, jobs done, number of jobs)
Progress = Callable[[str, int, int], None]
# Number of seeds for the failures: a larger dump needs fewer seeds for the same precision.
FEW_JOBS, SEEDS, FEWER_SEEDS = 20_000, 10, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of a study. `since_s`: begin of the window, on the dump's clock; None: guess it."""

    since_s: float | None = None
    anonymous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """What all arms have in common. `jobs`: as they enter the replay; `actual`: what really happened to them."""

    load: Load
    site: ClusterShape
    profiles: Mapping[str, ResourceProfile]
    jobs: tuple[SimJob, ...]
    actual: tuple[Actual, ...]
    window: tuple[float, float]  # on the dump's clock
    guessed: bool  # whether the begin of the window was guessed

    @property
    def ended(self) -> list[tuple[SimJob, Actual]]:
        """The runs that ended in the window."""
        pairs = zip(self.load.jobs, self.load.actual, strict=True)
        return [(job, what) for job, what in pairs if what.end_s is not None and what.end_s >= self.window[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The model's results. Its parts are independent of each other."""

    plain: SimOutcome
    ours: SimOutcome
    ordered: SimOutcome
    failures: FailureStudy


def make_whatif_study(
    load: Load,
    site: ClusterShape,
    profiles: Mapping[str, ResourceProfile],
    options: StudyOptions,
    *,
    progress: Progress | None = None,
) -> Study:
    """Return the whole study, one part after the other. ValueError as in `submissions_of`."""
    submissions = submissions_of(load, site, profiles, options)
    replay = Replay(
        plain=play_plain(submissions, progress),
        ours=play_ours(submissions, progress),
        ordered=play_ordered(submissions, progress),
        failures=play_failures(submissions, progress),
    )
    return study_from_replay(submissions, replay)


def submissions_of(
    load: Load, site: ClusterShape, profiles: Mapping[str, ResourceProfile], options: StudyOptions
) -> Submissions:
    """Return the jobs to replay. ValueError if no job with GPUs was submitted and ended in the window."""
    shown_load = _drop_names(load) if options.anonymous else load
    window = (
        guess_window_begin(shown_load) if options.since_s is None else options.since_s,
        find_window_end(shown_load),
    )
    jobs, actual = select_entering_jobs(shown_load, window[0])
    if not select_counted_jobs(jobs, actual, window):
        raise ValueError("no job with GPUs was submitted and ended in the window")
    return Submissions(
        load=shown_load,
        site=site,
        profiles=profiles,
        jobs=jobs,
        actual=actual,
        window=window,
        guessed=options.since_s is None,
    )


def _drop_names(load: Load) -> Load:
    """Return the load without user names, and without unreadable lines in its remarks, which may contain names, too."""
    remarks = tuple(remark.partition("; line ")[0] for remark in load.remarks)
    return replace(load, jobs=anonymize_users(load.jobs), remarks=remarks)


def play_plain(submissions: Submissions, progress: Progress | None = None) -> SimOutcome:
    """Simulate Slurm without slurmwrap."""
    return _play_arm(submissions, None, "any", _make_progress(progress, "plain Slurm, jobs"))


def play_ours(submissions: Submissions, progress: Progress | None = None) -> SimOutcome:
    """Simulate slurmwrap: production's placement, and its allocation if profiles are known."""
    return _play_arm(submissions, _make_graded(submissions), "skew", _make_progress(progress, "slurmwrap, jobs"))


def play_ordered(submissions: Submissions, progress: Progress | None = None) -> SimOutcome:
    """Simulate slurmwrap with the rules `order` and `limit`, by the run times of jobs that ended before."""
    limits = PREDICTED_LIMITS if has_limits(submissions) else ""
    return _play_arm(
        submissions,
        _make_graded(submissions),
        "skew",
        _make_progress(progress, "slurmwrap with order, jobs"),
        make_queue_rules(Order().index, limits, keyed=True),
    )


def has_limits(submissions: Submissions) -> bool:
    """Return whether the dump has the time limit of every job."""
    return all(job.limit_s is not None for job in submissions.jobs)


def _make_graded(submissions: Submissions) -> Mechanism | None:
    return make_mechanism("graded") if submissions.profiles else None


def play_failures(submissions: Submissions, progress: Progress | None = None) -> FailureStudy:
    """Simulate what slurmwrap would have done about the runs that failed. All jobs are played, not a sample."""
    ended = submissions.ended
    jobs = [job for job, _ in ended]
    return study_of_dump(
        jobs,
        servers=submissions.site.servers,
        seeds=range(SEEDS if len(jobs) <= FEW_JOBS else FEWER_SEEDS),
        most_jobs=len(jobs),
        waited_s={job.number: max(0.0, what.start_s - job.submit_s) for job, what in ended},
        progress=_make_progress(progress, "failures, arms"),
    )


def _play_arm(
    submissions: Submissions,
    mechanism: Mechanism | None,
    placement: str,
    progress: Callable[[int, int], None] | None,
    rules: QueueRules | None = None,
) -> SimOutcome:
    return play_backfill(
        submissions.jobs,
        submissions.site.servers,
        world=SchedulerParams(partitions=submissions.site.partitions),
        rules=rules,
        mechanism=mechanism,
        profiles=submissions.profiles,
        placement=placement,
        progress=progress,
    )


def _make_progress(progress: Progress | None, words: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, of: progress(words, done, of)


def study_from_replay(submissions: Submissions, replay: Replay) -> Study:
    """Return everything that the report shows. ValueError if no measured job could start in the model."""
    outcomes = {
        REAL: make_real_outcome(submissions.actual),
        PLAIN: replay.plain,
        OURS: replay.ours,
        ORDERED: replay.ordered,
    }
    measured = select_measured_jobs(submissions, outcomes.values())
    if not measured:
        raise ValueError("no job with GPUs could start on this cluster")
    arms = arms_of(submissions, outcomes, measured)
    epoch = submissions.load.epoch or 0.0
    return Study(
        window=Window(
            since=epoch + submissions.window[0], until=epoch + submissions.window[1], guessed=submissions.guessed
        ),
        shape=submissions.site.shape,
        rows=len(submissions.load.jobs) + len(submissions.load.cpu_jobs),
        jobs=len(measured),
        cpu_jobs=len(submissions.load.cpu_jobs),
        users=len({job.user for job in measured}),
        profiled=sum(job.model in submissions.profiles for job in measured),
        grid_s=GRID_S,
        arms=arms,
        queueing_change_s=estimate_queueing_change(measured, replay.plain, replay.ours),
        jct_change_s=estimate_jct_change(measured, replay.plain, replay.ours),
        ordered_jct_change_s=estimate_jct_change(measured, replay.plain, replay.ordered),
        trust=judge_trust(arms[0], arms[1]),
        waste=compute_waste(submissions.ended),
        failures=replay.failures,
        remarks=list_study_remarks(submissions.load, submissions.site, replay.plain, measured, submissions.window),
    )


def make_real_outcome(actual: Sequence[Actual]) -> SimOutcome:
    """Return what Slurm's accounting recorded, as a SimOutcome."""
    return SimOutcome(
        mode="slurm",
        began_s=tuple(one.start_s for one in actual),
        ended_s=tuple(one.end_s for one in actual),
        held_s=tuple(0.0 if one.end_s is None else max(0.0, one.end_s - one.start_s) for one in actual),
        servers=tuple(one.nodes or max(1, len(names_in(one.node_list))) for one in actual),
    )


def select_measured_jobs(submissions: Submissions, outcomes: Iterable[SimOutcome]) -> list[SimJob]:
    """Return the jobs that count and ended in every arm."""
    every = list(outcomes)
    return [
        job
        for job in select_counted_jobs(submissions.jobs, submissions.actual, submissions.window)
        if all(outcome.ended_s[job.number] is not None for outcome in every)
    ]


def arms_of(
    submissions: Submissions, outcomes: Mapping[str, SimOutcome], measured: Sequence[SimJob]
) -> tuple[StudyWorld, ...]:
    """Return the arms in the order in which they are shown."""
    return tuple(
        measure_arm(
            name,
            measured,
            outcome,
            _list_real_spans(submissions) if name == REAL else list_spans(submissions.jobs, outcome),
            servers=submissions.site.servers,
            window=submissions.window,
        )
        for name, outcome in outcomes.items()
    )


def _list_real_spans(submissions: Submissions) -> list[Span]:
    """Return the GPUs held; a run that had not ended when the dump was made held its GPUs until then."""
    until = submissions.window[1]
    return [
        Span(began_s=one.start_s, ended_s=until if one.end_s is None else one.end_s, gpus=job.gpus)
        for job, one in zip(submissions.jobs, submissions.actual, strict=True)
    ]
