"""Turns a site's dump into a Study: what happened, and what the model makes of the same submissions. Pure.

Three worlds, the same jobs: what really happened; plain Slurm in the model, which shows how far the model is to be
believed; slurmwrap in the model, with production's placement and, where profiles are known, its allocation. Run times
are the dump's own. A job that failed fails again after the same time in both: what is saved there is told next to
(sim/failures), and that the queue gets shorter by it is counted nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurmwrap.model.hostlist import names_in
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.failures import FailureStudy, study_of_dump
from slurmwrap.sim.mechanism.mechanism import Mechanism
from slurmwrap.sim.mechanism.mechanism_registry import mechanism_of
from slurmwrap.sim.outcome import SimOutcome
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.trace_load import Actual, Load
from slurmwrap.sim.whatif.arm_measures import GRID_S, Span, arm_of, jct_change, queueing_change, spans_of, trust_of
from slurmwrap.sim.whatif.cluster_shape import ClusterShape
from slurmwrap.sim.whatif.study_remarks import remarks_of
from slurmwrap.sim.whatif.study_window import begin_of, end_of, select_counted_jobs, select_entering_jobs
from slurmwrap.sim.whatif.wasted_gpu_hours import anonymize_users, waste_of
from slurmwrap.sim.whatif.whatif_study import OURS, PLAIN, REAL, Study, StudyWorld, Window

# (what is being done, jobs done, of so many)
Progress = Callable[[str, int, int], None]
FEW_JOBS, SEEDS, FEWER_SEEDS = 20_000, 10, 5  # of the failures: a larger dump tells as much with fewer seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What the reader of the page wants. `since_s`: where the window begins, on the dump's clock; None: guess."""

    since_s: float | None = None
    anonymous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submissions:
    """What all worlds have in common. `jobs` as they enter, with what really became of them."""

    load: Load
    site: ClusterShape
    profiles: Mapping[str, ResourceProfile]
    jobs: tuple[SimJob, ...]
    actual: tuple[Actual, ...]
    window: tuple[float, float]  # on the dump's clock
    guessed: bool  # where the window begins

    @property
    def ended(self) -> list[tuple[SimJob, Actual]]:
        """The runs that ended in the window."""
        pairs = zip(self.load.jobs, self.load.actual, strict=True)
        return [(job, what) for job, what in pairs if what.end_s is not None and what.end_s >= self.window[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the model makes of them. Its three parts do not need each other."""

    plain: SimOutcome
    ours: SimOutcome
    failures: FailureStudy


def study_of(
    load: Load,
    site: ClusterShape,
    profiles: Mapping[str, ResourceProfile],
    asked: StudyOptions,
    *,
    progress: Progress | None = None,
) -> Study:
    """The whole study, one part after the other. ValueError as of `submissions_of`."""
    said = submissions_of(load, site, profiles, asked)
    replay = Replay(
        plain=play_plain(said, progress), ours=play_ours(said, progress), failures=play_failures(said, progress)
    )
    return study_from(said, replay)


def submissions_of(
    load: Load, site: ClusterShape, profiles: Mapping[str, ResourceProfile], asked: StudyOptions
) -> Submissions:
    """ValueError where no job with GPUs was submitted and ended in the window."""
    told = _drop_names(load) if asked.anonymous else load
    window = (begin_of(told) if asked.since_s is None else asked.since_s, end_of(told))
    jobs, actual = select_entering_jobs(told, window[0])
    if not select_counted_jobs(jobs, actual, window):
        raise ValueError("no job with GPUs was submitted and ended in the window")
    return Submissions(
        load=told, site=site, profiles=profiles, jobs=jobs, actual=actual, window=window, guessed=asked.since_s is None
    )


def _drop_names(load: Load) -> Load:
    """What a line that cannot be read holds may be a name, too."""
    remarks = tuple(remark.partition("; line ")[0] for remark in load.remarks)
    return replace(load, jobs=anonymize_users(load.jobs), remarks=remarks)


def play_plain(said: Submissions, progress: Progress | None = None) -> SimOutcome:
    """Slurm as it is."""
    return _play_world(said, None, "any", _make_progress(progress, "plain Slurm, jobs"))


def play_ours(said: Submissions, progress: Progress | None = None) -> SimOutcome:
    """slurmwrap: production's placement, and its allocation where profiles are known."""
    mechanism = mechanism_of("graded") if said.profiles else None
    return _play_world(said, mechanism, "skew", _make_progress(progress, "slurmwrap, jobs"))


def play_failures(said: Submissions, progress: Progress | None = None) -> FailureStudy:
    """What slurmwrap would have made of the runs that failed. All jobs are played: no part stands for the whole."""
    ended = said.ended
    jobs = [job for job, _ in ended]
    return study_of_dump(
        jobs,
        servers=said.site.servers,
        seeds=range(SEEDS if len(jobs) <= FEW_JOBS else FEWER_SEEDS),
        most_jobs=len(jobs),
        waited_s={job.number: max(0.0, what.start_s - job.submit_s) for job, what in ended},
        progress=_make_progress(progress, "failures, worlds"),
    )


def _play_world(
    said: Submissions, mechanism: Mechanism | None, placement: str, progress: Callable[[int, int], None] | None
) -> SimOutcome:
    return play_backfill(
        said.jobs,
        said.site.servers,
        world=SchedulerParams(partitions=said.site.partitions),
        mechanism=mechanism,
        profiles=said.profiles,
        placement=placement,
        progress=progress,
    )


def _make_progress(progress: Progress | None, words: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, of: progress(words, done, of)


def study_from(said: Submissions, replay: Replay) -> Study:
    """Everything that the page tells. ValueError where no measured job could start in the model."""
    outcomes = {REAL: make_real_outcome(said.actual), PLAIN: replay.plain, OURS: replay.ours}
    measured = measured_of(said, outcomes.values())
    if not measured:
        raise ValueError("no job with GPUs could start on this cluster")
    arms = arms_of(said, outcomes, measured)
    epoch = said.load.epoch or 0.0
    return Study(
        window=Window(since=epoch + said.window[0], until=epoch + said.window[1], guessed=said.guessed),
        shape=said.site.shape,
        rows=len(said.load.jobs) + len(said.load.cpu_jobs),
        jobs=len(measured),
        cpu_jobs=len(said.load.cpu_jobs),
        users=len({job.user for job in measured}),
        profiled=sum(job.model in said.profiles for job in measured),
        grid_s=GRID_S,
        arms=arms,
        queueing_change_s=queueing_change(measured, replay.plain, replay.ours),
        jct_change_s=jct_change(measured, replay.plain, replay.ours),
        trust=trust_of(arms[0], arms[1]),
        waste=waste_of(said.ended),
        failures=replay.failures,
        remarks=remarks_of(said.load, said.site, replay.plain, measured, said.window),
    )


def make_real_outcome(actual: Sequence[Actual]) -> SimOutcome:
    """What Slurm's accounting says, in the form of an outcome."""
    return SimOutcome(
        mode="slurm",
        began_s=tuple(one.start_s for one in actual),
        ended_s=tuple(one.end_s for one in actual),
        held_s=tuple(0.0 if one.end_s is None else max(0.0, one.end_s - one.start_s) for one in actual),
        servers=tuple(one.nodes or max(1, len(names_in(one.node_list))) for one in actual),
    )


def measured_of(said: Submissions, outcomes: Iterable[SimOutcome]) -> list[SimJob]:
    """Those that count and ended in every world."""
    every = list(outcomes)
    return [
        job
        for job in select_counted_jobs(said.jobs, said.actual, said.window)
        if all(outcome.ended_s[job.number] is not None for outcome in every)
    ]


def arms_of(
    said: Submissions, outcomes: Mapping[str, SimOutcome], measured: Sequence[SimJob]
) -> tuple[StudyWorld, ...]:
    """In the order in which they are told."""
    return tuple(
        arm_of(
            name,
            measured,
            outcome,
            _real_spans(said) if name == REAL else spans_of(said.jobs, outcome),
            servers=said.site.servers,
            window=said.window,
        )
        for name, outcome in outcomes.items()
    )


def _real_spans(said: Submissions) -> list[Span]:
    """A run that had not ended when the dump was made held its GPUs until then."""
    until = said.window[1]
    return [
        Span(began_s=one.start_s, ended_s=until if one.end_s is None else one.end_s, gpus=job.gpus)
        for job, one in zip(said.jobs, said.actual, strict=True)
    ]
