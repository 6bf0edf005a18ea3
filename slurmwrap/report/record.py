"""NightReport: one page about what ended between two moments. Records only; times in Unix seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmwrap.retry.blocked import BlockedInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """Runs that ended in the window, pre-runs not counted among them."""

    jobs: int = 0
    attempts: int = 0
    users: int = 0
    gpu_hours: float = 0.0  # held by those runs, from start to end
    failed_attempts: int = 0
    failed_gpu_hours: float = 0.0
    cancelled_attempts: int = 0
    unjudged_attempts: int = 0  # ended, not yet diagnosed
    gsub_jobs: int = 0  # of `jobs`, those that gsub submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What `formula` gives from `n` cases; None where they are too few to say."""

    gpu_hours: float | None
    n: int
    needed: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preruns:
    """What the single-GPU trials that ended in the window found."""

    passed: int = 0
    failed: int = 0
    inconclusive: int = 0
    stopped_jobs: int = 0  # real jobs that a `fail` cancelled
    gpus_never_started: int = 0  # GPUs that those jobs asked for
    gpu_hours: float = 0.0  # what the trials themselves used
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
    share: float  # of all GPU-hours in the window, 0..1


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
class IncidentRow:
    """One incident: its runs are in no other row of what failed."""

    incident_id: str
    category: str
    scope: str
    began: float
    over_at: float | None  # None: still open
    jobs: int
    users: int
    gpu_hours: float  # of its runs within the window


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
    """How often one rule was right by what came next. `open`: nothing has happened yet that tells."""

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
    """Jobs that count their steps. `ettr`: productive over available time (report/ettr.py); None without one."""

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
    unknown_s: float = 0.0  # in which nobody looked, all runs together
    gpu_hours: float = 0.0  # GPUs asked for times the wait
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
    user: str  # "" where the uid is not known or everyone is meant
    new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDo:
    """A command to paste, and why."""

    why: str
    command: str


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
