"""FailureStudy, the records of a failure study's result: one ArmResult per arm, one row per category, published
figures.

Records only; `dataclasses.asdict` turns them into JSON. GPU-hours throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.sim.failures.assumptions import FailureSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean over the seeds and a 95 % interval; without ends if there is only one seed.

    For failures drawn at published rates it is the interval of the mean (Student's t). For a dump it covers what is
    unknown of the causes, each seed being one possible account of them, and for savings also how much the days of the
    dump differ.
    """

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """The result of one arm. `wasted`, `trials` and `false_stops` are disjoint, and `cost` is their sum.

    `saved` is the plain arm's cost less this one's, paired by seed: the same jobs fail of the same causes in both.
    """

    # plain | by-hand | pre-run | retry | exclusion | all.
    name: str
    title: str
    # Of runs that failed, less what a later run resumed from.
    wasted_gpu_hours: Interval
    # The part of these and of false stops that belongs to runs other than a job's first.
    again_gpu_hours: Interval
    trial_gpu_hours: Interval  # of pre-runs, also those of sound jobs
    # Of jobs that slurmwrap stopped although another run would have ended well.
    false_stop_gpu_hours: Interval
    cost_gpu_hours: Interval
    saved_gpu_hours: Interval
    saved_share: Interval  # of the plain arm's cost
    completed_jobs: Interval
    runs: Interval
    failed_runs: Interval
    stopped_by_trial: Interval  # jobs
    refused: Interval  # jobs whose input was blocked
    # Jobs of a dump that users resubmitted and that failed again; they need not be submitted.
    spared: Interval
    # Jobs of a dump that users resubmitted and that ended well; a retry ends well in their place.
    replaced: Interval
    cured: Interval  # jobs that failed, and ended well without action by their users
    # Hours that jobs stopped by their pre-run really waited in the queue, in total; dumps only.
    waited_in_vain_hours: Interval
    false_stops: Interval  # jobs
    # Those of them whose cause was read correctly: their retries or GPU-hours were used up.
    budget_stops: Interval
    # Jobs that another run would have cured and that were given up without being stopped by slurmwrap.
    given_up: Interval
    # From submission until a job has failed for good, median.
    until_told_hours: Interval
    # From the first failure of a job that ended well to the start of its last run, mean.
    until_cured_hours: Interval
    node_failures: Interval
    excluded_node_days: Interval
    # Share of these node-days that fell on lemon nodes; 0 if none was excluded.
    excluded_rightly: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryMeans:
    """Means over the seeds. For a job that met several causes, each run counts for its own cause."""

    category: str  # of diagnosis/taxonomy.py
    # Jobs that were drawn, or recorded, to fail of it.
    jobs: float
    cost_gpu_hours: dict[str, float]  # arm → wasted and false stops
    # Arm → jobs that failed of it first and ended well without action by their users.
    cured: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheck:
    """A figure of the study next to the published one. `built_in`: the draw was made to match it."""

    name: str
    published: float
    here: Interval
    built_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStudy:
    """The whole result. `source`: "drawn" (published rates) or "dump" (the dump's own failures)."""

    source: str
    jobs: int  # simulated jobs
    of: int  # jobs in the trace
    servers: int
    gpus_per_server: int
    seeds: tuple[int, ...]
    # GPU-hours of the runs that ended well, in the plain arm.
    productive_gpu_hours: Interval
    # GPU-hours of the runs that their users ended, in the plain arm.
    killed_gpu_hours: Interval
    arms: tuple[ArmResult, ...]
    # The most expensive in the plain arm first.
    categories: tuple[CategoryMeans, ...]
    checks: tuple[PublishedCheck, ...]
    assumed: tuple[str, ...]  # assumptions as text
    settings: FailureSettings = field(default_factory=FailureSettings)

    def arm(self, name: str) -> ArmResult:
        """Return the arm of that name. KeyError if there is none."""
        found = {arm.name: arm for arm in self.arms}
        return found[name]
