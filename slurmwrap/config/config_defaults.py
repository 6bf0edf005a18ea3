"""The sections of the configuration with their defaults, and the bounds of the values. Records only.

Every call of gsub loads this module. The meaning and the unit of each key, and the programs that read it, are in
config_keys.py, which gsub does not load.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field, replace

# Rules that act for a user's own jobs by default: the user's consent to retries is their switch.
OWN_RULES = ("retry", "retry_elsewhere", "resize")
RULES = (
    *("retry", "retry_elsewhere", "resize", "drain", "block_input", "gate", "relax", "tune", "order", "limit"),
    *("early", "move", "resume"),
)
MODES = ("observe", "advise", "act")
OVERLAYS = ("auto", "off")
INPUT_CHECKS = ("auto", "all", "off")
POLICIES = ("graded", "tune", "proportional")
ADAPTERS = ("auto", "commands", "pyslurm")
LOGS = ("auto", "stderr", "journal")
ORDER_INDEXES = ("shortest", "gittins", "las", "srtf")
ORDER_WITHIN = ("partition", "account", "user")
LIMIT_AT_START = ("restore", "keep")
NOTIFY_FORMATS = ("auto", "slack", "mattermost", "teams", "json")
PRERUN_SELECT = ("value", "all")
PRERUN_MODES = ("auto", "wait", "gate", "off", "only")
# Smallest and largest value that makes sense. Outside them gsub would send Slurm impossible requests, or tuning would
# do harm.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "submit.array_threshold": (0, 4_000_001),  # Slurm's own greatest MaxArraySize
    "submit.snapshot_kept_s": (0, 60),
    "prerun.grace_s": (1, 30 * 86400),
    "prerun.time_limit_s": (1, 30 * 86400),
    "prerun.steps": (1, 1_000_000),
    "prerun.min_gpus": (0, 1_000_000),
    "prerun.wait_weight": (0, 1_000_000),
    "prerun.profile_s": (0, 86400),
    "prerun.rehearse_s": (0, 86400),
    "prerun.sweep_s": (0, 86400),
    "prerun.no_training_s": (5, 86400),
    "prerun.no_activity_s": (10, 86400),
    "prerun.inputs_limit_s": (60, 30 * 86400),
    "prerun.inputs_mib_s": (0, 1_000_000),
    "pack.measure_s": (0, 3600),
    "pack.least_gain": (1, 16),
    "pack.separate_gain": (0, 16),
    "pack.separate_s": (10, 86400),
    "pack.memory_near": (0, 1),
    "placement.switch_wait_s": (0, 30 * 86400),
    "placement.exclude_cap": (0, 1),
    "placement.skew_limit": (0, 1),
    "placement.network_gbit_s": (0, 1e6),
    "placement.gpu_link_gbit_s": (0, 1e6),
    "placement.pin_s": (0, 86400),
    "placement.relax_jobs": (0, 10_000),
    "placement.relax_updates_per_s": (0.1, 1000),
    "tuning.memory_margin": (1, 100),
    "tuning.memory_floor_mib": (0, 1 << 30),
    "tuning.runs_before_shrink": (1, 1_000_000),
    "tuning.assumed_run_s": (0, 30 * 86400),
    "order.classes": (2, 20),
    "order.band": (0, 1_000_000_000),
    "order.most_wait_s": (60, 366 * 86400),
    "limit.runs": (2, 1000),
    "limit.factor": (1.1, 100),
    "limit.least_s": (60, 366 * 86400),
    "limit.extend_s": (0, 7 * 86400),
    "early.every_s": (1, 3600),
    "early.jobs": (0, 10_000),
    "early.cpu_share": (0.0001, 1),
    "early.diverged_rows": (2, 100_000),
    "early.diverged_s": (0, 86400),
    "early.dead_s": (1, 86400),
    "early.stuck_s": (1, 7 * 86400),
    "early.stuck_gaps": (2, 1000),
    "early.idle_s": (1, 7 * 86400),
    "early.unused_s": (1, 7 * 86400),
    "early.forecast_s": (0, 7 * 86400),
    "move.gain_factor": (1, 1000),
    "move.every_s": (0, 30 * 86400),
    "move.gpu_share": (0, 1),
    "move.last_share": (0, 1),
    "move.most_jobs": (1, 64),
    "move.slowdown": (1.05, 100),
    "move.look_s": (1, 3600),
    "move.wait_s": (1, 7 * 86400),
    "move.headstart_s": (3, 3600),
    "move.lost_s": (0, 30 * 86400),
    "retry.per_root_cause": (0, 1000),
    "retry.confirmations": (0, 1000),
    "retry.resize_memory_factor": (1, 100),
    "retry.resize_time_factor": (1, 100),
    "retry.backoff_s": (0, 86400),
    "retry.max_restarts": (0, 100_000),
    "retry.max_lost_gpu_hours": (0, 1e9),
    "retry.max_per_hour": (0, 1_000_000),
    "incidents.window_s": (1, 86400),
    "incidents.min_jobs": (2, 1_000_000),
    "incidents.min_users": (2, 1_000_000),
    "incidents.min_nodes": (2, 1_000_000),
    "incidents.quiet_s": (1, 86400),
    "incidents.spread_s": (0, 86400),
    "incidents.max_s": (60, 30 * 86400),
    "nodes.window_days": (1, 366),
    "nodes.suspect_ratio": (1, 1000),
    "nodes.lemon_ratio": (1, 1000),
    "nodes.suspect_jobs": (1, 1000),
    "nodes.lemon_jobs": (1, 1000),
    "nodes.lemon_users": (1, 1000),
    "nodes.prior": (0.1, 1000),
    "nodes.repair_discount": (0, 1),
    "nodes.relapse_factor": (1, 100),
    "nodes.check_s": (10, 3600),
    "prerun.holdout": (0, 0.5),
    "share.look_s": (1, 3600),
    "share.lease_s": (200, 86_400),
    "report.keep_d": (1, 36_500),
    "notify.per_hour": (1, 1000),
    "metrics.every_s": (5, 86400),
    "retention.keep_d": (1, 36_500),
    "retention.detail_d": (1, 36_500),
    "slurm_timeout_s": (0.1, 600),
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "prerun.mode": PRERUN_MODES,
    "prerun.select": PRERUN_SELECT,
    "prerun.overlay": OVERLAYS,
    "prerun.inputs": INPUT_CHECKS,
    "tuning.policy": POLICIES,
    "order.index": ORDER_INDEXES,
    "order.within": ORDER_WITHIN,
    "limit.at_start": LIMIT_AT_START,
    "slurm.adapter": ADAPTERS,
    "log.to": LOGS,
    "notify.format": NOTIFY_FORMATS,
    **{f"rules.{rule}": MODES for rule in RULES},
}


# Keys whose values are never shown: any process that has the address may write to its channel.
SECRETS = ("notify.url",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Which calls gsub handles itself (docs/dropin.md). Shell patterns are compared with the job's options."""

    enabled: bool = True
    array_threshold: int = 1000
    pass_partitions: tuple[str, ...] = ()
    pass_accounts: tuple[str, ...] = ()
    pass_qos: tuple[str, ...] = ()
    pass_users: tuple[str, ...] = ()
    snapshot_kept_s: float = 10.0
    templates: str = "/etc/slurmwrap/templates"


# One cache per line: the locations that its tool tries, in the tool's own order; the first one that is set counts.
# Left out are the caches of tools that write a file in place (keras, nltk, whisper) or leave a lock when they are
# killed (torch_extensions, matplotlib): a job would take an incomplete file for a complete one, or wait for ever.
CACHES = (
    "$HF_HUB_CACHE:$HUGGINGFACE_HUB_CACHE:$HF_HOME/hub:~/.cache/huggingface/hub",
    "$TRANSFORMERS_CACHE",
    "$HF_DATASETS_CACHE:$HF_HOME/datasets:~/.cache/huggingface/datasets",
    "$HF_XET_CACHE:$HF_HOME/xet:~/.cache/huggingface/xet",
    "$TORCH_HOME/hub:~/.cache/torch/hub",
    "$TRITON_CACHE_DIR:$TRITON_HOME/.triton/cache:~/.triton/cache",
    "$TORCHINDUCTOR_CACHE_DIR",
    "$PIP_CACHE_DIR:~/.cache/pip",
    "$UV_CACHE_DIR:~/.cache/uv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerun:
    """The pre-run of a job on one GPU (docs/prerun.md)."""

    mode: str = "auto"
    partition: str = ""
    grace_s: int = 600
    time_limit_s: int = 900
    steps: int = 3
    select: str = "value"
    min_gpus: int = 2
    wait_weight: float = 1.0
    profile_s: int = 0
    rehearse_s: int = 120
    sweep_s: int = 120
    holdout: float = 0.0
    overlay: str = "auto"
    inputs: str = "auto"
    inputs_partition: str = ""
    inputs_limit_s: int = 1800
    inputs_mib_s: int = 500
    no_training_s: int = 40
    no_activity_s: int = 90
    no_training_programs: tuple[str, ...] = ()
    caches: tuple[str, ...] = CACHES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Several tasks of an array on one GPU, gsub --pack (docs/packing.md)."""

    measure_s: float = 20.0
    least_gain: float = 1.2
    separate_gain: float = 1.1
    separate_s: float = 300.0
    memory_near: float = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where jobs run (docs/placement.md)."""

    enabled: bool = True
    switch_wait_s: int = 300
    exclude_cap: float = 0.1
    skew_limit: float = 0.3
    network_gbit_s: float = 0.0
    gpu_link_gbit_s: float = 0.0
    topology_file: str = ""
    topology_features: str = ""
    pin_s: int = 60
    relax_jobs: int = 50
    relax_updates_per_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """CPUs and memory from resource profiles."""

    enabled: bool = True
    memory_margin: float = 1.2
    memory_floor_mib: int = 1024
    runs_before_shrink: int = 3
    policy: str = "graded"
    assumed_run_s: float = 13_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSection:
    """Jobs of one user that share a GPU (docs/sharing.md)."""

    enabled: bool = True
    look_s: int = 30
    lease_s: int = 900
    shards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of pending jobs by predicted run times, rule `order` (docs/scheduling.md)."""

    index: str = "shortest"
    within: str = "partition"
    classes: int = 8
    band: int = 0
    most_wait_s: float = 43_200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Time limits of pending jobs by earlier runs, rule `limit` (docs/scheduling.md)."""

    runs: int = 5
    factor: float = 1.5
    least_s: float = 1800.0
    at_start: str = "restore"
    extend_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What is found about jobs while they run, and after which time, rule `early` (docs/running.md)."""

    every_s: float = 120.0
    jobs: int = 50
    cpu_share: float = 0.01
    diverged_rows: int = 5
    diverged_s: float = 120.0
    dead_s: float = 180.0
    stuck_s: float = 600.0
    stuck_gaps: float = 20.0
    idle_s: float = 900.0
    unused_s: float = 3600.0
    forecast_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Which running jobs are moved at a checkpoint, rule `move` (docs/moving.md)."""

    gain_factor: float = 5.0
    every_s: float = 7200.0
    gpu_share: float = 0.05
    last_share: float = 0.15
    most_jobs: int = 4
    slowdown: float = 1.3
    look_s: float = 60.0
    wait_s: float = 3600.0
    headstart_s: float = 120.0
    lost_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retries of failed jobs and their limits (docs/retries.md)."""

    default: bool = False
    per_root_cause: int = 3
    confirmations: int = 1
    resize_memory_factor: float = 1.5
    resize_time_factor: float = 1.5
    backoff_s: int = 60
    max_restarts: int = 20
    max_lost_gpu_hours: float = 1000.0
    max_per_hour: int = 120
    own_job: bool = True
    partition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSection:
    """What the administrator installed. If the paths are empty, slurmwrap works for each user's own jobs only."""

    spool: str = ""
    published: str = ""
    state_dir: str = ""
    munge_socket: str = ""
    dcgmi: str = ""
    slurm_user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosing:
    """How failures are classified (docs/diagnosis.md)."""

    signatures: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAccess:
    """How the reconciler communicates with Slurm (docs/pyslurm.md). gsub always uses the commands."""

    adapter: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Mail to the owner of a job that failed and is not retried. Without a server no mail is sent."""

    server: str = ""
    sender: str = "slurmwrap@localhost"
    to: str = "{user}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Messages to a chat or another web server about failed jobs and running ones (docs/notifications.md)."""

    url: str = ""
    format: str = "auto"
    proxy: str = ""
    per_hour: int = 10
    show_evidence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The night report of the site."""

    to: str = ""
    directory: str = ""
    keep_d: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics for monitoring, in the format of node_exporter's textfile collector (docs/metrics.md)."""

    textfile: str = ""
    every_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """Where the reconciler's log goes."""

    to: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How many days the site's database keeps its rows (docs/database.md).

    `slurmwrap db prune` and the nightly run of the report remove older rows.
    """

    detail_d: int = 35
    keep_d: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidents:
    """When failures of several jobs are one incident, and how its retries wait."""

    window_s: float = 300.0
    min_jobs: int = 3
    min_users: int = 2
    min_nodes: int = 3
    quiet_s: float = 600.0
    spread_s: float = 900.0
    max_s: float = 21600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """When a node is suspect, and when it is a lemon (docs/nodes.md)."""

    window_days: float = 28.0
    suspect_ratio: float = 2.0
    lemon_ratio: float = 3.0
    suspect_jobs: int = 2
    lemon_jobs: int = 3
    lemon_users: int = 2
    prior: float = 1.0
    repair_discount: float = 0.25
    relapse_factor: float = 1.5
    check_mounts: tuple[str, ...] = ()
    check_skip: tuple[str, ...] = ()
    check_s: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration. Every field has a default that works without any file."""

    submit: Submit = field(default_factory=Submit)
    prerun: Prerun = field(default_factory=Prerun)
    pack: Pack = field(default_factory=Pack)
    placement: Placement = field(default_factory=Placement)
    tuning: Tuning = field(default_factory=Tuning)
    share: ShareSection = field(default_factory=ShareSection)
    order: Order = field(default_factory=Order)
    limit: Limit = field(default_factory=Limit)
    early: Early = field(default_factory=Early)
    move: Move = field(default_factory=Move)
    retry: Retry = field(default_factory=Retry)
    site: SiteSection = field(default_factory=SiteSection)
    slurm: SlurmAccess = field(default_factory=SlurmAccess)
    mail: Mail = field(default_factory=Mail)
    notify: Notify = field(default_factory=Notify)
    diagnosis: Diagnosing = field(default_factory=Diagnosing)
    incidents: Incidents = field(default_factory=Incidents)
    nodes: Nodes = field(default_factory=Nodes)
    report: Report = field(default_factory=Report)
    metrics: Metrics = field(default_factory=Metrics)
    log: LogSection = field(default_factory=LogSection)
    retention: Retention = field(default_factory=Retention)
    rules: Mapping[str, str] = field(default_factory=dict)
    slurm_timeout_s: float = 10.0

    def mode_of(self, rule: str) -> str:
        """Return the mode of one of RULES: `observe`, `advise` (the default) or `act`."""
        return self.rules.get(rule, "advise")

    def without_effect(self) -> Config:
        """Return the configuration with every rule in mode `observe`: the reconciler records and changes nothing."""
        return replace(self, rules=dict.fromkeys(RULES, "observe"))

    def for_own_jobs(self) -> Config:
        """Return the configuration for a user's own reconciler: the rules of OWN_RULES act unless their mode is set.

        These rules change only jobs whose user agreed (--retry). With a site's reconciler the site's modes decide.
        """
        if self.site.published:
            return self
        return replace(self, rules={**dict.fromkeys(OWN_RULES, "act"), **self.rules})
