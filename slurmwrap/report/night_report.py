"""NightReport: one page about what ended between two moments. Records only; times in Unix seconds."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.decision import BlockedInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Runs that ended in the window, pre-runs not counted among them."""

    jobs: int = 0
    attempts: int = 0
    users: int = 0
    # Held by those runs, from start to end.
    gpu_hours: float = 0.0
    failed_attempts: int = 0
    failed_gpu_hours: float = 0.0
    cancelled_attempts: int = 0
    unjudged_attempts: int = 0  # ended, not yet diagnosed
    # Exit code 0, yet the output ends with an error; not among the failed.
    completed_with_error_attempts: int = 0
    completed_with_error_gpu_hours: float = 0.0
    # Submitted by gsub within it, whenever they end; an array is one.
    gsub_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What `formula` gives from `n` cases; None where they are too few to say."""

    gpu_hours: float | None
    n: int
    needed: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """GPU-hours that one of our means saved, by one formula of report/formulas.py.

    None: not estimated, and `note` says why. `low` and `high` bound it with 95 %.
    """

    # "prerun" | "retry" | "placement" | "tuning"
    what: str
    formula: str  # its id: "prerun-1"
    gpu_hours: float | None
    low: float | None = None
    high: float | None = None
    n: int
    needed: int
    note: str = ""
    # False: work done without its user, never summed with GPU time that was not wasted.
    spared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What we got wrong, each with how often we spoke."""

    retries: int = 0
    retries_failed_again: int = 0  # of the same category
    preruns_passed: int = 0  # whose job has ended
    preruns_missed: int = 0  # of those, the jobs that then failed of what one GPU could have shown
    refusals: int = 0  # jobs that a pre-run or a check stopped
    false_refusals: int = 0  # of those, the very same that then ran well by --force or without a pre-run


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdout:
    """Jobs that skipped their pre-run at random (prerun.holdout) next to those that had one.

    Waste: GPU-hours of failed runs per job, pre-runs included. `difference`: what a pre-run saves per job, by
    experiment; None: too few.
    """

    share: float = 0.0  # as configured now
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
    """What the single-GPU trials that ended in the window found."""

    passed: int = 0
    failed: int = 0
    inconclusive: int = 0
    stopped_jobs: int = 0  # real jobs that a `fail` cancelled
    gpus_never_started: int = 0  # GPUs that those jobs asked for
    gpu_hours: float = 0.0  # what the trials themselves used
    delayed_jobs: int = 0  # that started as soon as their pre-run release them
    delay_s: float = 0.0  # seconds that they had waited since their submission, on average: an upper bound of the delay
    delay_gpu_hours: float = 0.0  # the same times their GPUs: what stood idle for them at most, in no sum
    saved: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtRow:
    """Failures of one category that a pre-run found on one GPU."""

    category: str
    preruns: int
    stopped_jobs: int
    users: int
    gpus_never_started: int
    reason: str  # of the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryRow:
    """Failures of one category (Philly, table 7)."""

    category: str
    domain: str
    attempts: int
    jobs: int
    users: int
    median_run_s: float  # runtime to failure
    gpu_hours: float
    # Of all GPU-hours in the window, 0..1.
    share: float
    p90_run_s: float = 0.0
    p95_run_s: float = 0.0
    # Runs by GPUs asked for: DEMAND.
    demand: tuple[int, int, int, int] = (0, 0, 0, 0)
    # In the period before, equally long.
    attempts_before: int = 0
    gpu_hours_before: float = 0.0


DEMAND = ("1", "2-4", "5-8", "more than 8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Runs that lasted from `low_s` up to `high_s`, by how they ended."""

    low_s: float
    high_s: float
    failed: int = 0
    completed: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """GPU-hours held between `at` and `at + seconds`, by how the run ended; the page's curve over time."""

    at: float
    seconds: float
    completed: float = 0.0
    failed: float = 0.0
    cancelled: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The same failure of the same user's job name, twice or more."""

    user: str
    name: str
    category: str
    attempts: int
    jobs: tuple[str, ...]  # addresses
    gpu_hours: float
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedInput:
    """A file that failures of the window blame, twice or more."""

    path: str
    attempts: int
    users: int
    categories: tuple[str, ...]
    gpu_hours: float
    blocked: bool  # now


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedUser:
    """A user whose runs failed of one category twice or more, whatever the job's name."""

    user: str
    category: str
    attempts: int
    jobs: int
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """GPUs that runs of one user and job name held without using them. `no_process`: no process ever opened them."""

    user: str
    name: str
    runs: int
    # Addresses, most idle GPU-hours first.
    jobs: tuple[str, ...]
    gpus: int  # of the largest
    gpu_hours_idle: float
    # 0..1, mean over the held time; None: not measured
    gpu_util: float | None
    no_process: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """What one user's job name asked for and used, of runs that were measured. CPUs and MiB per node; peaks are the
    highest seen, `cpus_used` the mean."""

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
    """What a user's job name asked for and used, of runs that completed. CPUs and MiB per node; `cpus_used` is the
    mean, `mem_mib_peak` the highest. None: not measured."""

    name: str
    # "": not gsub's, or without a file
    script: str = ""
    runs: int
    gpu_hours: float
    # Of the newest run; None: without a limit.
    time_asked_s: int | None
    time_used_s: float  # of the longest run
    cpus_asked: float
    cpus_used: float | None
    mem_mib_asked: float | None
    mem_mib_peak: float | None
    gpus: int
    gpu_util: float | None = None  # 0..1
    gpus_unused: int | None = None  # on which nothing ever ran
    measured_by: str = ""  # "the runs" | "the pre-run" | ""
    change: tuple[str, ...] = ()  # options that ask for what it needs


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalityRow:
    """Runs of more than one node by where they ran: "one switch", "several switches", "not known"."""

    where: str
    runs: int
    gpu_hours: float
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeJob:
    """ETTR of one large job: productive over available time (usage_totals). `counted`: by counted steps, else by runs
    that completed."""

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
    """One user or account: the headline's figures."""

    name: str
    jobs: int
    attempts: int
    gpu_hours: float
    failed_attempts: int
    failed_gpu_hours: float
    cancelled_attempts: int
    preruns: int = 0
    stopped_jobs: int = 0  # by pre-runs
    top_category: str = ""  # by GPU-hours


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDrain:
    """A drain of slurmwrap's that stands."""

    nodes: tuple[str, ...]
    since: float
    reason: str
    command: str  # what lifts it


@dataclass(frozen=True, slots=True, kw_only=True)
class LemonRow:
    """Nodes that the sum of 28 days calls suspect or lemon (policy/node_score.py)."""

    nodes: tuple[str, ...]
    status: str
    ratio: float  # times the fleet's rate
    jobs: int
    users: int
    why: str
    # To paste, where there is something to do.
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRow:
    """One incident: its runs are in no other row of what failed."""

    incident_id: str
    category: str
    scope: str
    began: float
    over_at: float | None  # None: still open
    jobs: int
    users: int
    # Of its runs within the window.
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """How often one rule only spoke, and how often it acted."""

    rule: str
    observed: int = 0
    advised: int = 0
    done: int = 0
    refused: int = 0  # Slurm said no
    waiting: int = 0  # to be done still


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How often one rule was right by what came next. `open`: nothing has happened yet that shows it."""

    rule: str  # of config.RULES, or "stop"
    agree: int = 0
    disagree: int = 0
    open: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Jobs that were run again, and what became of the next run."""

    jobs: int = 0
    completed: int = 0
    failed_again: int = 0
    unfinished: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Jobs that count their steps. `ettr`: productive over available time (usage_totals.py); None without one."""

    jobs: int = 0
    ettr: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitedLongest:
    """One run that waited long. `waits`: it still does."""

    address: str
    user: str
    gpus: int
    total_s: float
    fair_share_s: float
    fragmentation_s: float
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """What gsub's jobs waited for after they became eligible: fair share or fragmentation (Philly, ATC 2019)."""

    runs: int = 0
    fair_share_mean_s: float = 0.0
    fair_share_p95_s: float = 0.0
    fragmentation_mean_s: float = 0.0
    fragmentation_p95_s: float = 0.0
    # In which no one looked, all runs together.
    unknown_s: float = 0.0
    # GPUs asked for times the wait.
    gpu_hours: float = 0.0
    longest: tuple[WaitedLongest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectNodes:
    """Nodes with the same strikes; `text` is the newest evidence."""

    nodes: tuple[str, ...]
    strikes: int  # each
    conclusive: bool
    causes: tuple[str, ...]
    jobs: int
    users: int
    last_at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """An input in force. `new`: blocked within the window."""

    input: BlockedInput
    # "" where the uid is not known or everyone is meant
    user: str
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDo:
    """A command to paste, and why."""

    why: str
    command: str
    # It would be better, and nothing is wrong without it.
    advice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """Everything on the page."""

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
    suspects: tuple[SuspectNodes, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    to_do: tuple[ToDo, ...] = ()
    counted: Counted = field(default_factory=Counted)
    queueing: Queueing = field(default_factory=Queueing)
    user: str = ""  # whose week it is; "": everybody's
    own: bool = False  # made by an ordinary user of their own jobs: what only an administrator can do is left out
    usage: tuple[UsageRow, ...] = ()  # of a user's own report
    before: Headline | None = None  # of the period before, equally long; None: nothing is known of it
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
    locality: tuple[LocalityRow, ...] = ()
    large: tuple[LargeJob, ...] = ()
    users: tuple[ShareRow, ...] = ()
    accounts: tuple[ShareRow, ...] = ()
    # What could not be read or is not measured here.
    notes: tuple[str, ...] = ()
