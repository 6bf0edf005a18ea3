"""What a failure study knows while it plays the trace: arms, world, jobs and GPU time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurmwrap.config.load_config import Config
from slurmwrap.model.cluster import Node
from slurmwrap.model.job_run import JobRun
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import Doomed, FailingJob
from slurmwrap.sim.failures.named_random import Purpose, draw_uniform
from slurmwrap.sim.failures.sim_nodes import Hardware
from slurmwrap.sim.sim_job import SimJob


# World: what all arms of one seed share.
@dataclass(frozen=True, slots=True, kw_only=True)
class FailureWorld:
    """The same jobs, in store for them the same, on the same nodes."""

    jobs: Sequence[SimJob]
    doomed: Doomed
    hardware: Hardware
    nodes: tuple[Node, ...]
    settings: FailureSettings
    config: Config  # with its rules acting
    seed: int
    # By SimJob.number, in the queue; only dumps know.
    waited_s: Mapping[int, float] = field(default_factory=dict)

    def chance(self, job: SimJob, what: Purpose, run: int = 0) -> float:
        """0 <= x < 1; the same in every arm."""
        return draw_uniform(self.seed, job.number, run, what)


# Life: one job on its way through its runs in one world.
@dataclass(slots=True, kw_only=True)
class SimJobState:
    """Changes from run to run. Seconds; `kept_s` of `need_s` are safe in a checkpoint."""

    job: SimJob
    failing_job: FailingJob
    need_s: float
    mem_mib: int  # on each node
    nodes: int
    run: int = 0
    kept_s: float = 0.0
    # Runs that failed of the job's own cause.
    met: int = 0
    failures: int = 0
    # Times the memory that it asked for.
    grown: float = 1.0
    avoid: frozenset[int] = frozenset()
    before: list[JobRun] = field(default_factory=list)
    # Category, GPU-seconds of the run that are gone.
    lost: list[tuple[str, float]] = field(default_factory=list)
    first_failed_s: float | None = None

    @property
    def ailing(self) -> bool:
        """Its own cause still stands."""
        failing_job = self.failing_job
        if not failing_job.category or failing_job.by_node:
            return False
        if failing_job.category == "cpu_oom":
            return self.grown < failing_job.need
        return not (failing_job.curable and self.met >= failing_job.trials)

    @property
    def sound(self) -> bool:
        """Another run would end well, sooner or later."""
        return not self.ailing or self.failing_job.curable

    @property
    def gpu_s_lost(self) -> float:
        """So far, and what its checkpoint holds."""
        return sum(lost for _, lost in self.lost) + self.kept_s * self.job.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class SimRunEnding:
    """How one run ended. `category`: of the failure; "" none, "killed": by its user."""

    ran_s: float
    category: str = ""
    node: int = -1  # that failed under it
    # The kernel names a GPU for it.
    gpu_fault: bool = False


KILLED = "killed"


# The worlds that are compared: which of slurmwrap's parts is at work in each.
PLAIN = "plain"
BLIND, BY_HAND, NONE, OURS = "blind", "by hand", "none", "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryArm:
    """`retries`: who runs a failed job again. BLIND: Philly, whatever the reason; BY_HAND: its user; NONE: no one,
    what a dump shows is all that happened; OURS: retry.policy.decide."""

    name: str
    title: str
    trial: bool = False
    retries: str = BLIND
    exclusion: bool = False
    # What the plain world does.
    base: str = BLIND


def arms_of(*, dump: bool) -> tuple[RetryArm, ...]:
    """`plain` first: the others are measured against it. A dump needs no second plain world: it is one."""
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


# Account: where one world's GPU time went, and how many jobs met what. Seconds of GPU time; counts.
@dataclass(slots=True, kw_only=True)
class GpuTimeAccount:
    """Filled while a world is played."""

    # Of runs that ended well, and of earlier ones that they went on from.
    productive: float = 0.0
    # Of runs that their users ended.
    killed: float = 0.0
    wasted: float = 0.0
    # Of `wasted` and `false_stopped`: of runs that were no job's first.
    again: float = 0.0
    trials: float = 0.0
    false_stopped: float = 0.0
    completed: int = 0
    runs: int = 0
    failed_runs: int = 0
    stopped_by_trial: int = 0
    refused: int = 0
    spared: int = 0
    # Runs of a dump that ended well, in whose place a retry had ended well before.
    replaced: int = 0
    # That jobs stopped by their pre-run really waited in the queue, all together.
    waited_in_vain_s: float = 0.0
    false_stops: int = 0
    # Of these, those whose log was read aright: a budget was spent.
    budget_stops: int = 0
    given_up: int = 0
    # Jobs that failed for good, or were stopped, or refused.
    unsuccessful: int = 0
    unsuccessful_gpu_s: float = 0.0
    node_failures: int = 0
    cured: int = 0
    cured_after_s: float = 0.0  # all of them together
    excluded_days: float = 0.0
    excluded_lemon_days: float = 0.0
    told_after_s: list[float] = field(default_factory=list)  # from submission to the last word, of the unsuccessful
    cured_by: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by the cause of the first failure
    cost_by_day: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # of submission
    by_category: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    # Jobs, by the cause of their first failure.
    struck: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def cost(self) -> float:
        """All GPU time that no job's result came out of, but for what users ended themselves."""
        return self.wasted + self.trials + self.false_stopped
