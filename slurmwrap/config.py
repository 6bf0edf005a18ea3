"""One configuration: defaults < site file < user file < SLURMWRAP_* variables. Pure but for reading the two files.

Site file: $SLURMWRAP_CONFIG, else /etc/slurmwrap/config.toml. User file: $XDG_CONFIG_HOME/slurmwrap/config.toml.
A key `section.name` is the variable SLURMWRAP_SECTION_NAME. An unknown key or a harmful value is an error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from slurmwrap import plain_toml
from slurmwrap.errors import ConfigError
from slurmwrap.records import dataclass, field, fields, is_dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

RULES = ("retry", "retry_elsewhere", "resize", "drain", "block_input", "gate", "relax", "tune")
MODES = ("observe", "advise", "act")
OVERLAYS = ("auto", "off")
POLICIES = ("graded", "tune", "proportional")
ADAPTERS = ("auto", "commands", "pyslurm")
PRERUN_MODES = ("auto", "wait", "gate", "off", "only")
# The least and the greatest that makes sense; beyond it gsub would ask Slurm for nonsense, or tuning would harm.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "submit.array_threshold": (0, 4_000_001),  # Slurm's own greatest MaxArraySize
    "submit.snapshot_kept_s": (0, 60),
    "prerun.grace_s": (1, 30 * 86400),
    "prerun.time_limit_s": (1, 30 * 86400),
    "prerun.steps": (1, 1_000_000),
    "prerun.min_gpus": (0, 1_000_000),
    "prerun.profile_s": (0, 86400),
    "placement.switch_wait_s": (0, 30 * 86400),
    "placement.exclude_cap": (0, 1),
    "placement.skew_limit": (0, 1),
    "placement.pin_s": (0, 86400),
    "placement.relax_jobs": (0, 10_000),
    "placement.relax_updates_per_s": (0.1, 1000),
    "tuning.memory_margin": (1, 100),
    "tuning.memory_floor_mib": (0, 1 << 30),
    "tuning.runs_before_shrink": (1, 1_000_000),
    "tuning.assumed_run_s": (0, 30 * 86400),
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
    "slurm_timeout_s": (0.1, 600),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Which calls of gsub are for us (docs/dropin.md). Patterns are the shell's, compared with what the job names."""

    enabled: bool = True  # False: every call goes to sbatch as it is
    array_threshold: int = 1000  # tasks; larger arrays go to sbatch as they are; 0: none does for its size
    pass_partitions: tuple[str, ...] = ()  # jobs for these go to sbatch as they are, interactive ones for example
    pass_accounts: tuple[str, ...] = ()
    pass_qos: tuple[str, ...] = ()
    pass_users: tuple[str, ...] = ()
    # How long a user's later calls live on what an earlier one read of the nodes; partitions, limits, topology and
    # configuration last six times as long. A loop of gsub then costs the controller little more than one of sbatch.
    # 0: every call reads.
    snapshot_kept_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerun:
    """The single-GPU trial."""

    mode: str = "auto"  # one of PRERUN_MODES
    partition: str = ""  # "" = the job's own partition
    grace_s: int = 600  # how long the real job waits for its pre-run at most (design 4, "without a dependency")
    time_limit_s: int = 900
    steps: int = 3  # optimizer steps that count as a pass
    min_gpus: int = 1  # smaller jobs are not pre-run
    profile_s: int = 0  # seconds that a pre-run may go on for the CPU curve of an unknown job; 0: only when asked
    overlay: str = "auto"  # auto | off: a private overlay over the user's directories, where user namespaces allow it


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where jobs go."""

    enabled: bool = True
    switch_wait_s: int = 300  # --switches=N@this; Slurm clamps to max_switch_wait
    exclude_cap: float = 0.1  # at most this share of a partition's nodes is excluded or drained by us
    skew_limit: float = 0.3  # Tiresias: only models above it insist on consolidation
    topology_file: str = ""  # the site's own description of racks, where Slurm knows no topology (docs/placement.md)
    topology_features: str = ""  # prefixes of node features that name domains: "rack,row" for rack1, row3; "": none
    # Only where a site's reconciler relaxes waiting jobs:
    pin_s: int = 60  # how long a job may insist on nodes that were free when it was planned; 0: never
    relax_jobs: int = 50  # at the head of the queue
    relax_updates_per_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """CPU and memory from profiles."""

    enabled: bool = True
    memory_margin: float = 1.2  # of peak anonymous + shared memory (facts/gpu.md C3)
    memory_floor_mib: int = 1024
    runs_before_shrink: int = 3  # complete runs of a key before memory goes below the user's explicit request
    policy: str = "graded"  # one of POLICIES: how waiting jobs share CPUs and memory (docs/placement.md)
    assumed_run_s: float = 13_000.0  # where nobody knows it: half of what more CPUs save of it is waited for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """What may be done about a failure."""

    default: bool = False  # retry gsub's jobs that did not say --retry or --no-retry
    per_root_cause: int = 3
    confirmations: int = 1
    resize_memory_factor: float = 1.5
    resize_time_factor: float = 1.5  # of the time limit, for jobs that were seen to resume
    backoff_s: int = 60
    # Progress resets the budgets above, and progress is the log's word; these two stand whatever it says. 0: no cap.
    max_restarts: int = 20  # failures of one job, preemptions not counted
    max_lost_gpu_hours: float = 1000.0  # of one job's failed runs, less what a resumed run kept
    max_per_hour: int = 120  # retries of all jobs together; those beyond it start later. 0: no brake


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the administrator installed. Empty paths: user mode only."""

    spool: str = ""  # shared by nodes and controller, mode 1733
    published: str = ""  # world-readable: node health, sealed diagnoses
    state_dir: str = ""  # SlurmUser's own: the site database, the controller's local records
    munge_socket: str = ""  # "" = MUNGE's default
    slurm_user: str = ""  # who, beside root, is believed; "" = the reconciler asks Slurm, gsub believes root alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosing:
    """How failures are told apart."""

    signatures: str = ""  # the site's own file of signatures, beside the shipped ones (docs/diagnosis.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmAccess:
    """How the reconciler talks to Slurm (docs/pyslurm.md); gsub always by the commands."""

    adapter: str = "auto"  # one of ADAPTERS; auto: PySlurm where it is installed, fits and was tried, else the commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Mail to the owner of a job that failed for good. Without a server none is sent."""

    server: str = ""  # host or host:port of an SMTP server that takes mail without a login
    sender: str = "slurmwrap@localhost"
    to: str = "{user}"  # "{user}@example.org"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidents:
    """When failures of several jobs are one incident, and how its retries wait."""

    window_s: float = 300.0  # failures further apart than this are not related
    min_jobs: int = 3
    min_users: int = 2  # one user's many failures are his job, ...
    min_nodes: int = 3  # ... unless kernel, NVML or Slurm speak of so many nodes
    quiet_s: float = 600.0  # it is over when no run failed of it for so long
    spread_s: float = 900.0  # then its retries start within so long
    max_s: float = 21600.0  # no incident lasts longer, whatever still fails: then retries go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """When a node is suspect, and when it is a lemon (docs/nodes.md)."""

    window_days: float = 28.0  # of Kokolis et al. 2024
    suspect_ratio: float = 2.0  # times the rate of faults that the fleet shows
    lemon_ratio: float = 3.0
    suspect_jobs: int = 2  # distinct ones that were struck, or one by a conclusive fault
    lemon_jobs: int = 3
    lemon_users: int = 2
    prior: float = 1.0  # how much evidence it takes to be believed; shrinks a node that ran little
    repair_discount: float = 0.25  # what a fault from before a repair still weighs
    relapse_factor: float = 1.5  # what one after it weighs


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that can be set; every field has a default that works without any file."""

    submit: Submit = field(default_factory=Submit)
    prerun: Prerun = field(default_factory=Prerun)
    placement: Placement = field(default_factory=Placement)
    tuning: Tuning = field(default_factory=Tuning)
    retry: Retry = field(default_factory=Retry)
    site: Site = field(default_factory=Site)
    slurm: SlurmAccess = field(default_factory=SlurmAccess)
    mail: Mail = field(default_factory=Mail)
    diagnosis: Diagnosing = field(default_factory=Diagnosing)
    incidents: Incidents = field(default_factory=Incidents)
    nodes: Nodes = field(default_factory=Nodes)
    rules: Mapping[str, str] = field(default_factory=dict)  # rule -> observe | advise | act
    slurm_timeout_s: float = 10.0

    def mode_of(self, rule: str) -> str:
        """`observe`, `advise` (the default) or `act` for one of RULES."""
        return self.rules.get(rule, "advise")


def site_file(environ: Mapping[str, str]) -> Path:
    """The site's configuration file, which need not exist."""
    return _path(_site_file(environ))


def user_file(environ: Mapping[str, str]) -> Path:
    """The user's configuration file, which need not exist."""
    return _path(_user_file(environ))


def user_state_dir(environ: Mapping[str, str]) -> Path:
    """The user's own state: database, pre-runs' files, step counts ($XDG_STATE_HOME/slurmwrap)."""
    return _path(state_dir(environ))


def state_dir(environ: Mapping[str, str]) -> str:
    """The same for gsub, which does without pathlib: its import costs 4 ms."""
    return os.path.join(_absolute(environ, "XDG_STATE_HOME") or f"{_home(environ)}/.local/state", "slurmwrap")


def _site_file(environ: Mapping[str, str]) -> str:
    return environ.get("SLURMWRAP_CONFIG") or "/etc/slurmwrap/config.toml"


def _user_file(environ: Mapping[str, str]) -> str:
    base = _absolute(environ, "XDG_CONFIG_HOME") or f"{_home(environ)}/.config"
    return os.path.join(base, "slurmwrap", "config.toml")


def _path(name: str) -> Path:
    from pathlib import Path

    return Path(name)


def _absolute(environ: Mapping[str, str], name: str) -> str:
    """ "" for what is not set, for a relative path, which would mean another place in each directory, and as root for
    another user's directory (`sudo -E`): his files are not to be believed, and he could not write to ours there."""
    value = environ.get(name, "")
    return value if value.startswith("/") and (os.geteuid() or not _owner(value)) else ""


def _owner(path: str) -> int:
    """0 too for what is not there yet."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0


def _home(environ: Mapping[str, str]) -> str:
    """$HOME, else what the password database says: cron, systemd and Slurm's hooks set none."""
    if home := _absolute(environ, "HOME"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration in force. ConfigError names file and key."""
    config = Config()
    for path in (_site_file(environ), _user_file(environ)):
        config = merge(config, _read(path), path)
    return merge(config, _from_environment(environ), "environment")


def merge(config: Config, tables: Mapping[str, Any], origin: str) -> Config:
    """`tables` laid over `config`; `origin` names the culprit in errors."""
    for section, value in tables.items():
        current = getattr(config, section, None) if section in _names(config) else None
        if current is None:
            raise ConfigError(f"{origin}: unknown key '{section}'{_nearest(section, _names(config))}")
        if section == "rules":
            config = replace(config, rules={**config.rules, **_rules(value, origin)})
        elif isinstance(current, float):
            config = replace(config, **{section: _checked(section, _convert(current, value, origin, section), origin)})
        else:
            config = replace(config, **{section: _section(current, value, origin, section)})
    return config


def _section(current: Any, table: Any, origin: str, section: str) -> Any:
    _refuse_no_table(table, origin, section)
    known = _names(current)
    for key in table:
        if key not in known:
            raise ConfigError(f"{origin}: {section}.{key}: unknown key{_nearest(key, known)}")
    names = {key: f"{section}.{key}" for key in table}
    values = {key: _convert(getattr(current, key), value, origin, names[key]) for key, value in table.items()}
    return replace(current, **{key: _checked(names[key], value, origin) for key, value in values.items()})


def _refuse_no_table(table: Any, origin: str, section: str) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{origin}: {section} must be a table", hint=f"write [{section}] and its keys below it")


def _checked(name: str, value: Any, origin: str) -> Any:
    """`value`, if it can be meant."""
    least, most = _BOUNDS.get(name, (-math.inf, math.inf))
    if isinstance(value, int | float) and not least <= value <= most:  # also for NaN
        raise ConfigError(f"{origin}: {name} must be from {least:g} to {most:g}, not {value:g}")
    if name == "prerun.mode" and value not in PRERUN_MODES:
        raise ConfigError(f"{origin}: {name} must be one of {', '.join(PRERUN_MODES)}, not '{value}'")
    if name == "prerun.overlay" and value not in OVERLAYS:
        raise ConfigError(f"{origin}: {name} must be one of {', '.join(OVERLAYS)}, not '{value}'")
    if name == "slurm.adapter" and value not in ADAPTERS:
        raise ConfigError(f"{origin}: {name} must be one of {', '.join(ADAPTERS)}, not '{value}'")
    if name == "tuning.policy" and value not in POLICIES:
        raise ConfigError(f"{origin}: {name} must be one of {', '.join(POLICIES)}, not '{value}'")
    return value


def _rules(table: Any, origin: str) -> dict[str, str]:
    _refuse_no_table(table, origin, "rules")
    for rule, mode in table.items():
        if rule not in RULES:
            raise ConfigError(f"{origin}: rules.{rule}: unknown rule{_nearest(rule, RULES)}")
        if mode not in MODES:
            raise ConfigError(f"{origin}: rules.{rule} must be one of {', '.join(MODES)}, not '{mode}'")
    return dict(table)


def _convert(current: Any, value: Any, origin: str, name: str) -> Any:
    kind = type(current)
    try:
        if kind is bool:
            return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
        if kind is tuple:
            return _texts(value)
        if isinstance(value, bool | list | Mapping) or (kind is int and isinstance(value, float)):
            raise ValueError
        return kind(value)
    except (KeyError, ValueError, TypeError):
        nouns = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}
        noun = nouns.get(kind, "text")
        raise ConfigError(f"{origin}: {name}: '{value}' is not {noun}") from None


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts, or in a variable one text with commas. ValueError for anything else."""
    found = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError
    return tuple(one for one in found if one)


_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _read(path: str) -> Mapping[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    plainly = plain_toml.read(text)
    if plainly is not None:
        return plainly
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    default = Config()
    keys = {name: _names(value) for name in _names(default) if is_dataclass(value := getattr(default, name))}
    tables: dict[str, Any] = {}
    for section, names in {**keys, "rules": RULES}.items():
        for key in names:
            value = environ.get(f"SLURMWRAP_{section}_{key}".upper())
            if value is not None:
                tables.setdefault(section, {})[key] = value
    if "SLURMWRAP_SLURM_TIMEOUT_S" in environ:
        tables["slurm_timeout_s"] = environ["SLURMWRAP_SLURM_TIMEOUT_S"]
    return tables


def _names(record: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))


def _nearest(word: str, known: tuple[str, ...]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
