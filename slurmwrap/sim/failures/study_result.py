"""What the failure study gives: one ArmResult per arm, a row per category, and what came out next to what is published.

Records only; `dataclasses.asdict` turns them into JSON. GPU-hours throughout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.sim.failures.assumptions import FailureSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean over the seeds and a 95 % interval; without ends where there is one seed only.

    Of failures drawn at published rates it is the mean's own (Student's t). Of a dump it holds what no one knows of the
    causes, one seed being one account of them, and for what is saved also how much its days differ.
    """

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One world. `wasted`, `trials` and `false_stops` are disjoint, and `cost` is their sum.

    `saved` is plain's cost less this one's, paired by seed: the same jobs fail of the same causes in both.
    """

    # Plain | by-hand | pre-run | retry | exclusion | all.
    name: str
    title: str
    wasted_gpu_hours: Interval  # of runs that failed, less what a later run went on from
    again_gpu_hours: Interval  # of these and of false stops: of runs that were no job's first
    trial_gpu_hours: Interval  # of pre-runs, those of sound jobs too
    false_stop_gpu_hours: Interval  # of jobs that we stopped although another run would have ended well
    cost_gpu_hours: Interval
    saved_gpu_hours: Interval
    saved_share: Interval  # of plain's cost
    completed_jobs: Interval
    runs: Interval
    failed_runs: Interval
    stopped_by_trial: Interval  # jobs
    refused: Interval  # jobs whose input was blocked
    spared: Interval  # jobs of a dump that failed again by hand and need not be submitted
    replaced: Interval  # jobs of a dump that ended well by hand, in whose place a retry ends well
    cured: Interval  # jobs that failed, and ended well without their users' doing
    waited_in_vain_hours: Interval  # that jobs stopped by their pre-run really waited in the queue, in all; dumps only
    false_stops: Interval  # jobs
    budget_stops: Interval  # of these, those whose cause was known: their retries or GPU-hours were spent
    given_up: Interval  # jobs that another run would have cured, that no one stopped
    until_told_hours: Interval  # from submission until a job has failed for good, median
    until_cured_hours: Interval  # from the first failure of a job that ended well to the start of its last run, mean
    node_failures: Interval
    excluded_node_days: Interval
    # Share of these that fell on lemon nodes; 0 where none was excluded.
    excluded_rightly: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryMeans:
    """Means over the seeds. Of a job that met several causes each run counts for its own."""

    category: str  # of diagnosis/taxonomy.py
    jobs: float  # that were drawn, or seen, to fail of it
    cost_gpu_hours: dict[str, float]  # arm → wasted and false stops
    cured: dict[str, float]  # arm → jobs that failed of it first and ended well without their users' doing


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheck:
    """A figure that came out next to the published one. `built_in`: the draw was made to meet it."""

    name: str
    published: float
    here: Interval
    built_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStudy:
    """All of it. `source`: "drawn" (published rates) or "dump" (the dump's own failures)."""

    source: str
    jobs: int  # that were played
    of: int  # that the trace has
    servers: int
    gpus_per_server: int
    seeds: tuple[int, ...]
    # Of the runs that ended well, plain world.
    productive_gpu_hours: Interval
    # Of the runs that their users ended, plain world.
    killed_gpu_hours: Interval
    arms: tuple[ArmResult, ...]
    # The dearest in plain first.
    categories: tuple[CategoryMeans, ...]
    checks: tuple[PublishedCheck, ...]
    assumed: tuple[str, ...]  # in words
    settings: FailureSettings = field(default_factory=FailureSettings)

    def arm(self, name: str) -> ArmResult:
        """KeyError where there is none of that name."""
        found = {arm.name: arm for arm in self.arms}
        return found[name]
