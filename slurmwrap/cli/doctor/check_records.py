"""Records of `slurmwrap doctor`: CheckSpec (a check), CheckResult (its outcome), CheckContext (its input) (adapter)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path

from slurmwrap.config.load_config import Config, find_user_state_dir
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.cluster import Node, Snapshot
from slurmwrap.model.hostlist import fold
from slurmwrap.slurm.choose_adapter import AdapterChoice, choose
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm.compatibility import read_commands_release
from slurmwrap.store.user_state_files import DATABASE

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
# The check applies, but could not be performed.
UNKNOWN = "unknown"
_RANK = (OK, UNKNOWN, WARN, FAIL)
# The two sections of the output: what this user needs, and what the site's installation needs.
YOU, SITE = "you", "site"
DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one check. `hint`: how to fix a fault, or what works without it; "" if there is nothing to do."""

    name: str
    state: str  # OK | WARN | FAIL | UNKNOWN, or SKIP: the check does not apply here
    text: str
    hint: str = ""
    # Lines below the text, for example folded node names or files.
    details: tuple[str, ...] = ()
    # Numbers for monitoring: "wal_mib" → 3.5.
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """One check. `about`: what it looks at; `fix`: how to fix faults. docs/doctor.md and --explain show both."""

    name: str
    section: str  # YOU | SITE
    see: Callable[[CheckContext], CheckResult]
    about: str
    fix: str
    deadline_s: float = DEADLINE_S


def find_worst_state(checks: Iterable[CheckResult]) -> str:
    """Return the worst of OK, UNKNOWN, WARN and FAIL; skipped checks do not count."""
    return max((check.state for check in checks if check.state != SKIP), key=_RANK.index, default=OK)


def fold_nodes(rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return one line for all nodes with the same text. `rows`: pairs of node and text, nodes in Slurm's order."""
    nodes_of: dict[str, list[str]] = {}
    for node, text in rows:
        nodes_of.setdefault(text, []).append(node)
    return tuple(f"{fold(nodes)}: {text}" for text, nodes in nodes_of.items())


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """The input of all checks. Slurm's answers are cached, so that each is read once."""

    config: Config
    environ: Mapping[str, str]
    uid: int
    commands: SlurmCommands = field(repr=False)
    now: float = field(default_factory=time.time)

    def prime(self) -> None:
        """Read Slurm's configuration and snapshot now, so that the checks need not."""
        if isinstance(self.slurm, Mapping):
            _ = self.snapshot

    @cached_property
    def slurm(self) -> Mapping[str, str] | SlurmError:
        """The settings of `scontrol show config`, or the error if Slurm gives none."""
        try:
            return self.commands.config()
        except SlurmError as error:
            return error

    @cached_property
    def snapshot(self) -> Snapshot | SlurmError:
        """Nodes, partitions and topology, or the error if Slurm gives none."""
        if isinstance(self.slurm, SlurmError):
            return self.slurm
        try:
            return self.commands.snapshot()
        except SlurmError as error:
            return error

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes; () if Slurm does not answer."""
        return self.snapshot.nodes if isinstance(self.snapshot, Snapshot) else ()

    @cached_property
    def release(self) -> str:
        """The release of Slurm's commands, such as "22.05.8"; "" if it is unknown, as without a slurm.conf."""
        return read_commands_release(self.environ)

    @cached_property
    def choice(self) -> AdapterChoice:
        """The adapter that the reconciler would use here."""
        return choose(self.config.slurm.adapter, self.commands, self.environ, timeout_s=self.config.slurm_timeout_s)

    @property
    def site_database(self) -> Path | None:
        """The path of the site's database; None if no site is configured."""
        return Path(self.config.site.state_dir) / "site.db" if self.config.site.state_dir else None

    @property
    def own_database(self) -> Path:
        """The path of this user's own database."""
        return find_user_state_dir(self.environ) / DATABASE

    def setting(self, key: str) -> str:
        """Return a setting of the controller's slurm.conf; "" if it is not set or Slurm does not answer."""
        return self.slurm.get(key, "") if isinstance(self.slurm, Mapping) else ""

    @property
    def slurm_user(self) -> str:
        """SlurmUser's name from site.slurm_user, else from Slurm; "" if it is unknown."""
        return self.config.site.slurm_user or self.setting("SlurmUser").partition("(")[0]
