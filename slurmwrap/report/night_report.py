"""NightReport: the content of one report about what ended in a period. Records only; times in Unix seconds."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.decision import BlockedInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Figures of the runs that ended in the period, without pre-runs."""

    jobs: int = 0
    attempts: int = 0
    users: int = 0
    # GPU-hours that those runs held, from start to end.
    gpu_hours: float = 0.0
    failed_attempts: int = 0
    failed_gpu_hours: float = 0.0
    cancelled_attempts: int = 0
    # Runs that ended and have no diagnosis yet.
    unjudged_attempts: int = 0
    # Exit code 0, but the output ends with an error; not counted as failed.
    completed_with_error_attempts: int = 0
    completed_with_error_gpu_hours: float = 0.0
    # Calls of gsub in the period, whenever their jobs end; an array counts as one.
    gsub_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The estimate that `formula` gives for `n` cases; gpu_hours is None if fewer than `needed` cases exist."""

    gpu_hours: float | None
    n: int
    needed: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """GPU-hours that one of slurmwrap's means saved, by one formula of report/formulas.py.

    gpu_hours is None if it is not estimated; `note` then gives the reason. `low` and `high` are the 95 % interval.
    """

    # "prerun" | "retry" | "placement" | "tuning".
    what: str
    # The formula's id, such as "prerun-1".
    formula: str
    gpu_hours: float | None
    low: float | None = None
    high: float | None = None
    n: int
    needed: int
    note: str = ""
    # False: work that was done without the user; it must not be added to GPU time that was not wasted.
    spared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """How often slurmwrap was wrong, each with the number of cases."""

    retries: int = 0
    # Retries that failed again with the same category.
    retries_failed_again: int = 0
    # Pre-runs that passed and whose job has ended.
    preruns_passed: int = 0
    # Of those, pre-runs whose jobs then failed of something that one GPU could have shown.
    preruns_missed: int = 0
    # Jobs that a pre-run or a check stopped.
    refusals: int = 0
    # Of those, jobs whose identical submission then ran well with --force or without a pre-run.
    false_refusals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdout:
    """Jobs that were drawn at random to run without a pre-run (prerun.holdout), compared with those that had one.

    Waste: GPU-hours of failed runs per job, pre-runs included. `difference`: what a pre-run saves per job, by
    experiment; None: too few cases.
    """

    # prerun.holdout as configured now.
    share: float = 0.0
    held_out: int = 0
    control: int = 0
    held_out_waste: float | None = None
    control_waste: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    needed: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Preruns:
    """Figures of the pre-runs that ended in the period."""

    passed: int = 0
    failed: int = 0
    inconclusive: int = 0
    # Jobs that were cancelled after a `fail`.
    stopped_jobs: int = 0
    # GPUs that those jobs had asked for.
    gpus_never_started: int = 0
    # GPU-hours that the pre-runs themselves used.
    gpu_hours: float = 0.0
    # Jobs that started as soon as their pre-run released them.
    delayed_jobs: int = 0
    # Mean seconds that these jobs had waited since submission: an upper bound of the delay.
    delay_s: float = 0.0
    # The same times their GPUs: the most GPU time that was idle for them; part of no sum.
    delay_gpu_hours: float = 0.0
    saved: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtRow:
    """Failures of one category that pre-runs found on one GPU."""

    category: str
    preruns: int
    stopped_jobs: int
    users: int
    gpus_never_started: int
    # Reason of the newest pre-run.
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """Failures of one category (Philly, table 7)."""

    category: str
    domain: str
    attempts: int
    jobs: int
    users: int
    median_run_s: float  # run time until the failure
    gpu_hours: float
    # Share of all GPU-hours in the period, 0..1.
    share: float
    p90_run_s: float = 0.0
    p95_run_s: float = 0.0
    # Number of runs by GPUs asked for; classes as in DEMAND.
    demand: tuple[int, int, int, int] = (0, 0, 0, 0)
    # In the preceding period of the same length.
    attempts_before: int = 0
    gpu_hours_before: float = 0.0


DEMAND = ("1", "2-4", "5-8", "more than 8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Number of runs that lasted at least `low_s` and less than `high_s`, by how they ended."""

    low_s: float
    high_s: float
    failed: int = 0
    completed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """GPU-hours held between `at` and `at + seconds`, by how the run ended; one bar of the chart over time."""

    at: float
    seconds: float
    completed: float = 0.0
    failed: float = 0.0
    cancelled: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The same failure under the same user's job name, twice or more."""

    user: str
    name: str
    category: str
    attempts: int
    jobs: tuple[str, ...]  # their addresses
    gpu_hours: float
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedInput:
    """A file that failures of the period name as their cause, twice or more."""

    path: str
    attempts: int
    users: int
    categories: tuple[str, ...]
    gpu_hours: float
    # Whether it is blocked now.
    blocked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedUser:
    """A user whose runs failed with one category twice or more, under any job name."""

    user: str
    category: str
    attempts: int
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """GPUs that runs under one user's job name held without using them. `no_process`: no process ever opened them."""

    user: str
    name: str
    runs: int
    # Addresses, most idle GPU-hours first.
    jobs: tuple[str, ...]
    # GPUs of the largest run.
    gpus: int
    gpu_hours_idle: float
    # Mean use over the held time, 0..1; None: not measured.
    gpu_util: float | None
    no_process: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """What the measured runs under one user's job name asked for and used.

    CPUs and MiB are per node; `mem_mib_peak` is the highest value seen, `cpus_used` the mean.
    """

    user: str
    name: str
    runs: int
    cpus_asked: float
    cpus_used: float | None
    mem_mib_asked: float | None
    mem_mib_peak: float | None
    cpu_hours_unused: float
    gib_hours_unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What a user's completed runs under one job name asked for and used.

    CPUs and MiB are per node; `cpus_used` is the mean, `mem_mib_peak` the highest value. None: not measured.
    """

    name: str
    # "" if it was not submitted by gsub, or has no script file.
    script: str = ""
    runs: int
    gpu_hours: float
    # Time limit of the newest run; None: no limit.
    time_asked_s: int | None
    # Run time of the longest run.
    time_used_s: float
    cpus_asked: float
    cpus_used: float | None
    mem_mib_asked: float | None
    mem_mib_peak: float | None
    gpus: int
    gpu_util: float | None = None  # 0..1
    # GPUs on which no process ever ran.
    gpus_unused: int | None = None
    measured_by: str = ""  # "the runs" | "the pre-run" | ""
    # Options that ask only for what the job needs.
    change: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """The time limits of the completed runs under one user's job name. Seconds."""

    user: str
    account: str
    name: str
    runs: int
    limit_s: float  # median of what was asked for
    median_run_s: float
    longest_run_s: float
    # Median share of the limit that a run used, 0..1; None without runs.
    used_share: float | None
    # A limit that would have held all of them with a margin; None: too few runs, or it is hardly less.
    fits_s: float | None
    # GPUs times the part of the limits that the runs did not use.
    gpu_hours_unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimitRow:
    """The same of all completed runs of one account."""

    account: str
    runs: int
    used_share: float | None
    gpu_hours_unused: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """What completed runs used of their time limits."""

    runs: int = 0
    used_share: float | None = None
    gpu_hours_unused: float = 0.0
    jobs: tuple[LimitRow, ...] = ()
    accounts: tuple[AccountLimitRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceRow:
    """When the trainings under one user's job name stopped to improve. Shares: medians, 0 to 1."""

    user: str
    name: str
    runs: int
    time_share: float  # of a run's time, until its loss came within 0.1 % of the lowest one
    epoch_share: float | None  # of its epochs or steps, until the lowest loss; None: not known of any
    gpu_hours: float
    gpu_hours_after: float  # held after the loss had come so near


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceTotals:
    """The same of all trainings that passed or were cancelled. `after_share`: of their GPU time; None without any."""

    runs: int = 0
    gpu_hours: float = 0.0
    after_share: float | None = None
    gpu_hours_after: float = 0.0
    jobs: tuple[ConvergenceRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionRow:
    """Run times that were predicted at submission, against those of the completed runs."""

    # What the prediction rested on: RunTimeEstimate.source.
    source: str
    runs: int
    # Share of the runs that took between half and twice the predicted median, 0..1.
    within_factor_2: float
    # Share that ended within the bound that nine of ten should.
    within_p90: float
    # Median of run time over predicted median.
    median_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityRow:
    """Runs on more than one node by where they ran: "one switch", "several switches", "not known"."""

    where: str
    runs: int
    gpu_hours: float
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUseRow:
    """How busy the GPUs of measured runs of one size were: shares of GPU time, 0..1; None: too few runs."""

    least_gpus: int
    most_gpus: int | None  # None: without an end
    runs: int
    gpu_hours: float
    use: float
    median_use: float  # of the runs
    use_fewest_nodes: float | None = None  # runs on as few nodes as could hold them
    use_more_nodes: float | None = None
    use_alone: float | None = None  # runs next to which no other run was for half of the time
    use_beside: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeJob:
    """ETTR of one large job: productive over available time (usage_totals.py).

    `counted`: productive time is from counted steps; otherwise it is that of the completed runs.
    """

    address: str
    user: str
    name: str
    gpus: int
    runs: int
    gpu_hours: float
    ettr: float
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """The headline's figures for one user or account."""

    name: str
    jobs: int
    attempts: int
    gpu_hours: float
    failed_attempts: int
    failed_gpu_hours: float
    cancelled_attempts: int
    preruns: int = 0
    # Jobs that pre-runs stopped.
    stopped_jobs: int = 0
    # The category with the most GPU-hours.
    top_category: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDrain:
    """A drain by slurmwrap that is in force."""

    nodes: tuple[str, ...]
    since: float
    reason: str
    # The command that ends the drain.
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonRow:
    """Nodes that are suspect or lemons by their faults of 28 days (policy/node_score.py)."""

    nodes: tuple[str, ...]
    status: str
    # Rate of faults as a multiple of the fleet's rate.
    ratio: float
    jobs: int
    users: int
    why: str
    # A command to paste; "" if there is nothing to do.
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """One incident. Its runs are in no other row of the section on failures."""

    incident_id: str
    category: str
    scope: str
    began: float
    over_at: float | None  # None: still open
    jobs: int
    users: int
    # GPU-hours of its runs in the period.
    gpu_hours: float
    doubt: str = ""  # why it concerns only some users; "" if it is confirmed


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """How often the actions of one rule were observed, advised and done."""

    rule: str
    observed: int = 0
    advised: int = 0
    done: int = 0
    # Slurm refused the change.
    refused: int = 0
    # Still to be done.
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How often later events showed that one rule was right. `open`: nothing has shown it yet."""

    # A rule of config.RULES, or "stop".
    rule: str
    agree: int = 0
    disagree: int = 0
    open: int = 0
    # Of rule `limit`: requested hours beyond the limits that it advised, as far as these were long enough.
    freed_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTotals:
    """Moves of running jobs (rule `move`, and ends of leases), and what they were expected to gain and lose."""

    moved: int = 0
    leases: int = 0  # of these, ends of leases
    given_up: int = 0
    advised: int = 0
    gained_gpu_hours: float = 0.0  # GPUs that would have been idle or slow
    lost_gpu_hours: float = 0.0  # work that was done again, and restarts
    unexpected_gpu_hours: float = 0.0  # of these: of runs that began again from their start, which no move expected
    restarted: int = 0  # runs that began again from their start after a move


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyRow:
    """Findings of one kind about running jobs, compared with how the runs ended (rule `early`)."""

    kind: str
    findings: int
    right: int
    wrong: int
    open: int
    # Right ones of those that are right or wrong; None: none yet.
    precision: float | None
    # Runs that slurmwrap cancelled or requeued because of it.
    acted: int
    # GPU-hours of the runs after the findings that were right.
    gpu_hours_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCase:
    """One finding about a running job. `ended`: final state, "" while it runs; `result`: right, wrong or open."""

    address: str
    user: str
    name: str
    kind: str
    at: float
    evidence: str
    action: str
    ended: str
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Jobs that were run again, and how the next run ended."""

    jobs: int = 0
    completed: int = 0
    failed_again: int = 0
    unfinished: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Jobs that count their steps. `ettr`: productive over available time (usage_totals.py); None without such jobs."""

    jobs: int = 0
    ettr: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedLongest:
    """One of the runs that waited longest. `waits`: it is still waiting."""

    address: str
    user: str
    gpus: int
    total_s: float
    fair_share_s: float
    fragmentation_s: float
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """What jobs of gsub waited for after they became eligible: fair share or fragmentation (Philly, ATC 2019)."""

    runs: int = 0
    fair_share_mean_s: float = 0.0
    fair_share_p95_s: float = 0.0
    fragmentation_mean_s: float = 0.0
    fragmentation_p95_s: float = 0.0
    # Seconds for which the cause was not observed, of all runs together.
    unknown_s: float = 0.0
    # GPUs asked for multiplied by the wait.
    gpu_hours: float = 0.0
    longest: tuple[WaitedLongest, ...] = ()
    # Ended runs that had passed waiting jobs not submitted with gsub by the rule `order` alone, and how many in all.
    passing: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessRow:
    """Finish-time fairness (rho) of the ended jobs of one user (policy/finish_time_fairness.py)."""

    user: str
    jobs: int
    incomplete: int  # of these jobs: failed or cancelled
    rho: float  # of all of them together
    median_rho: float
    worst_rho: float
    worst_job: str  # its address
    # Share of the jobs with a rho above 1.05, 0..1.
    above_share: float
    # GPU time that all jobs of the user held, over that of the user's part of the cluster; None: not known.
    held_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessBin:
    """Number of users, and of jobs, whose rho is above `above` and at most `up_to`; None: without an end."""

    above: float
    up_to: float | None
    users: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Time of ended jobs over that on an equal part of the cluster for each user. Jobs without GPUs are left out."""

    gpus: int = 0
    # False: Slurm did not answer, and `gpus` is the most that was in use at once.
    gpus_known: bool = False
    users: int = 0
    jobs: int = 0
    incomplete: int = 0  # of these jobs: failed or cancelled
    unfinished: int = 0  # jobs that still waited or ran; they count as present, and have no rho
    median_rho: float | None = None  # of the jobs
    above_share: float | None = None  # of the jobs with a rho above 1.05
    # The users with the highest rho.
    worst: tuple[FairnessRow, ...] = ()
    bins: tuple[FairnessBin, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectNodes:
    """Nodes with the same strikes; `text` is the newest evidence."""

    nodes: tuple[str, ...]
    # Strikes of each node.
    strikes: int
    conclusive: bool
    causes: tuple[str, ...]
    jobs: int
    users: int
    last_at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A blocked input. `new`: it was blocked in the period."""

    input: BlockedInput
    # "" if the uid has no known name, or if the block applies to all users.
    user: str
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDo:
    """A command to paste, and the reason for it."""

    why: str
    command: str
    # True: it would be an improvement, but nothing is wrong without it.
    advice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """Everything that is on the page."""

    since: float
    until: float
    clusters: tuple[str, ...]
    headline: Headline
    preruns: Preruns
    caught: tuple[CaughtRow, ...] = ()
    categories: tuple[CategoryRow, ...] = ()
    incidents: tuple[IncidentRow, ...] = ()
    repeated: tuple[Repeated, ...] = ()
    rules: tuple[RuleRow, ...] = ()
    retries: Retries = field(default_factory=Retries)
    agreement: tuple[Agreement, ...] = ()
    early: tuple[EarlyRow, ...] = ()
    early_jobs: tuple[EarlyCase, ...] = ()
    moves: MoveTotals = field(default_factory=MoveTotals)
    suspects: tuple[SuspectNodes, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    to_do: tuple[ToDo, ...] = ()
    counted: Counted = field(default_factory=Counted)
    queueing: Queueing = field(default_factory=Queueing)
    # The user whose report it is; "": all users.
    user: str = ""
    # Whether an ordinary user made it of their own jobs; what only an administrator can do is then left out.
    own: bool = False
    # Only in a user's own report.
    usage: tuple[UsageRow, ...] = ()
    # Headline of the preceding period of the same length; None: nothing is known about it.
    before: Headline | None = None
    savings: tuple[Saving, ...] = ()
    wrong: Wrong = field(default_factory=Wrong)
    holdout: Holdout = field(default_factory=Holdout)
    runtimes: tuple[Bin, ...] = ()
    held: tuple[Moment, ...] = ()
    repeated_users: tuple[RepeatedUser, ...] = ()
    repeated_inputs: tuple[RepeatedInput, ...] = ()
    lemons: tuple[LemonRow, ...] = ()
    drains: tuple[OwnDrain, ...] = ()
    idle: tuple[IdleRow, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    limits: TimeLimits = field(default_factory=TimeLimits)
    convergence: ConvergenceTotals = field(default_factory=ConvergenceTotals)
    predictions: tuple[PredictionRow, ...] = ()
    locality: tuple[LocalityRow, ...] = ()
    gpu_use: tuple[GpuUseRow, ...] = ()
    large: tuple[LargeJob, ...] = ()
    # Only in the site's report of all users.
    fairness: Fairness = field(default_factory=Fairness)
    users: tuple[ShareRow, ...] = ()
    accounts: tuple[ShareRow, ...] = ()
    # What could not be read, or is not measured on this site.
    notes: tuple[str, ...] = ()
