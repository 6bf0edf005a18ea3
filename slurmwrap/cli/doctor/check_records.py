"""Check: what one look at the installation found. Look: one entry of the list. Records, and what they come to."""

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
# It should have been looked at, and could not be.
UNKNOWN = "unknown"
_RANK = (OK, UNKNOWN, WARN, FAIL)
# Whose sections: what this user needs, what the site's installation needs.
YOU, SITE = "you", "site"
DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """`hint`: the way to fix it, or what works without it; "" where there is nothing to do."""

    name: str
    # OK | WARN | FAIL | UNKNOWN, or SKIP: it does not apply here.
    state: str
    text: str
    hint: str = ""
    # Lines below the text: nodes folded, files by name.
    details: tuple[str, ...] = ()
    # For graphs of monitoring: "wal_mib" → 3.5.
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """One check. `about`: what it looks at; `fix`: how it is fixed. Both are docs/doctor.md and --explain."""

    name: str
    section: str  # YOU | SITE
    see: Callable[[CheckContext], CheckResult]
    about: str
    fix: str
    deadline_s: float = DEADLINE_S


def find_worst_state(checks: Iterable[CheckResult]) -> str:
    """OK, UNKNOWN, WARN or FAIL; what was skipped does not count."""
    return max((check.state for check in checks if check.state != SKIP), key=_RANK.index, default=OK)


def fold_nodes(rows: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """(node, what is to be said) in Slurm's order → one line for all nodes of which the same is said."""
    said: dict[str, list[str]] = {}
    for node, text in rows:
        said.setdefault(text, []).append(node)
    return tuple(f"{fold(nodes)}: {text}" for text, nodes in said.items())


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """What is looked at. Slurm is asked once, however many checks want to know."""

    config: Config
    environ: Mapping[str, str]
    uid: int
    commands: SlurmCommands = field(repr=False)
    now: float = field(default_factory=time.time)

    def prime(self) -> None:
        """Asks Slurm now, so that no check by itself has to."""
        if isinstance(self.slurm, Mapping):
            _ = self.snapshot

    @cached_property
    def slurm(self) -> Mapping[str, str] | SlurmError:
        """`scontrol show config`, or why there is none."""
        try:
            return self.commands.config()
        except SlurmError as error:
            return error

    @cached_property
    def snapshot(self) -> Snapshot | SlurmError:
        """Nodes, partitions and topology, or why there are none."""
        if isinstance(self.slurm, SlurmError):
            return self.slurm
        try:
            return self.commands.snapshot()
        except SlurmError as error:
            return error

    @property
    def nodes(self) -> tuple[Node, ...]:
        """() where Slurm does not answer."""
        return self.snapshot.nodes if isinstance(self.snapshot, Snapshot) else ()

    @cached_property
    def release(self) -> str:
        """Of Slurm's commands, "22.05.8"; "" unknown, as it is without a slurm.conf."""
        return read_commands_release(self.environ)

    @cached_property
    def choice(self) -> AdapterChoice:
        """The adapter that the reconciler would use here."""
        return choose(self.config.slurm.adapter, self.commands, self.environ, timeout_s=self.config.slurm_timeout_s)

    @property
    def site_database(self) -> Path | None:
        """None where no site is configured."""
        return Path(self.config.site.state_dir) / "site.db" if self.config.site.state_dir else None

    @property
    def own_database(self) -> Path:
        """This user's."""
        return find_user_state_dir(self.environ) / DATABASE

    def setting(self, key: str) -> str:
        """Of slurm.conf as the controller has it; "" where it is not said or no one answers."""
        return self.slurm.get(key, "") if isinstance(self.slurm, Mapping) else ""

    @property
    def slurm_user(self) -> str:
        """SlurmUser's name: as the site says, else as Slurm does; "" unknown."""
        return self.config.site.slurm_user or self.setting("SlurmUser").partition("(")[0]
