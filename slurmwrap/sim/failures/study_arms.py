"""Arms of the failure study, and the state of one while it is simulated: failure world, jobs, GPU time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Node
from slurmwrap.model.job_run import JobRun
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import DrawnFailures, FailingJob
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.failures.sim_nodes import Hardware
from slurmwrap.sim.sim_job import SimJob


# What all arms of one seed share.
@dataclass(frozen=True, slots=True, kw_only=True)
class FailureWorld:
    """The same jobs, with the same drawn failures, on the same nodes."""

    jobs: Sequence[SimJob]
    doomed: DrawnFailures
    hardware: Hardware
    nodes: tuple[Node, ...]
    settings: FailureSettings
    config: Config  # with all rules in mode `act`
    seed: int
    # Seconds in the queue by SimJob.number; only dumps contain this.
    waited_s: Mapping[int, float] = field(default_factory=dict)

    def chance(self, job: SimJob, what: Purpose, run: int = 0) -> float:
        """Return the random number for this purpose, 0 <= x < 1; it is the same in every arm."""
        return draw_uniform(self.seed, job.number, run, what)


# The state of one simulated job during its runs.
@dataclass(slots=True, kw_only=True)
class SimJobState:
    """One job's state; changes from run to run. Seconds; `kept_s` of `need_s` are saved in a checkpoint."""

    job: SimJob
    failing_job: FailingJob
    need_s: float
    mem_mib: int  # on each node
    nodes: int
    run: int = 0
    kept_s: float = 0.0
    # Number of runs that failed of the job's own cause.
    met: int = 0
    failures: int = 0
    # The job's memory as a multiple of what it asked for.
    grown: float = 1.0
    avoid: frozenset[int] = frozenset()
    before: list[JobRun] = field(default_factory=list)
    # Category and lost GPU-seconds of each failed run.
    lost: list[tuple[str, float]] = field(default_factory=list)
    first_failed_s: float | None = None

    @property
    def ailing(self) -> bool:
        """Whether the job's own cause is still present."""
        failing_job = self.failing_job
        if not failing_job.category or failing_job.by_node:
            return False
        if failing_job.category == "cpu_oom":
            return self.grown < failing_job.need
        return not (failing_job.curable and self.met >= failing_job.trials)

    @property
    def sound(self) -> bool:
        """Whether another run would end well, sooner or later."""
        return not self.ailing or self.failing_job.curable

    @property
    def gpu_s_lost(self) -> float:
        """GPU-seconds lost so far, including what its checkpoint contains."""
        return sum(lost for _, lost in self.lost) + self.kept_s * self.job.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRunEnding:
    """How one run ended. `category`: of the failure; "" for none, "killed" if its user ended it."""

    ran_s: float
    category: str = ""
    node: int = -1  # index of the node that failed during the run; -1: none
    # Whether the kernel log blames a GPU.
    gpu_fault: bool = False


KILLED = "killed"


# The arms that are compared: which of slurmwrap's features is in use in each.
PLAIN = "plain"
BLIND, BY_HAND, NONE, OURS = "blind", "by hand", "none", "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryArm:
    """One arm.

    `retries`: what runs a failed job again. BLIND: Philly's scheduler, whatever the reason; BY_HAND: the user; NONE:
    nothing, what a dump shows is all that happened; OURS: policy.retry_decision.decide.
    """

    name: str
    title: str
    trial: bool = False
    retries: str = BLIND
    exclusion: bool = False
    # `retries` of the plain arm.
    base: str = BLIND


def arms_of(*, dump: bool) -> tuple[RetryArm, ...]:
    """Return the arms, `plain` first: the others are compared with it. A dump needs no second plain arm: it is one
    itself.
    """
    base = NONE if dump else BLIND
    plain = RetryArm(name=PLAIN, title="as it was" if dump else "plain, blind retries (Philly)", retries=base)
    hand = RetryArm(name="by-hand", title="plain, resubmitted by hand", retries=BY_HAND)
    return (
        plain,
        *(() if dump else (hand,)),
        RetryArm(name="pre-run", title="+ pre-run", trial=True, retries=base),
        RetryArm(name="retry", title="+ adaptive retry", retries=OURS, base=base),
        RetryArm(name="exclusion", title="+ node exclusion", retries=base, exclusion=True),
        RetryArm(name="all", title="all three", trial=True, retries=OURS, exclusion=True, base=base),
    )


# Where the GPU time of one arm went, and how many jobs met what. Seconds of GPU time; counts.
@dataclass(slots=True, kw_only=True)
class GpuTimeAccount:
    """Sums and counts that are updated while an arm is simulated."""

    # Of runs that ended well, and of earlier runs from which they resumed.
    productive: float = 0.0
    # Of runs that their users ended.
    killed: float = 0.0
    wasted: float = 0.0
    # The part of `wasted` and `false_stopped` that belongs to runs other than a job's first.
    again: float = 0.0
    trials: float = 0.0
    false_stopped: float = 0.0
    completed: int = 0
    runs: int = 0
    failed_runs: int = 0
    stopped_by_trial: int = 0
    refused: int = 0
    spared: int = 0
    # Runs of a dump that ended well and were replaced by a retry that had ended well before.
    replaced: int = 0
    # Seconds that jobs stopped by their pre-run really waited in the queue, in total.
    waited_in_vain_s: float = 0.0
    false_stops: int = 0
    # Those of them whose log was read correctly: a budget was used up.
    budget_stops: int = 0
    given_up: int = 0
    # Jobs that failed for good, or were stopped, or refused.
    unsuccessful: int = 0
    unsuccessful_gpu_s: float = 0.0
    node_failures: int = 0
    cured: int = 0
    cured_after_s: float = 0.0  # total
    excluded_days: float = 0.0
    excluded_lemon_days: float = 0.0
    # Seconds from submission until the job has failed for good, for each unsuccessful job.
    told_after_s: list[float] = field(default_factory=list)
    cured_by: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by cause of the first failure
    cost_by_day: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # by day of submission
    by_category: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # Number of jobs by cause of their first failure.
    struck: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def cost(self) -> float:
        """All GPU time without a result, except for what users ended themselves."""
        return self.wasted + self.trials + self.false_stopped
