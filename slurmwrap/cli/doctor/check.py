"""Check: what one look at the installation found. Records, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from slurmwrap.config import Config
from slurmwrap.errors import SlurmError
from slurmwrap.slurm.adapter import Choice, choose
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.pyslurm.gate import commands_release

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
_RANK = (OK, WARN, FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`hint`: the way to mend it, or what works without it; "" where there is nothing to do."""

    name: str
    state: str  # OK | WARN | FAIL, or SKIP: it does not apply here, or could not be looked at
    text: str
    hint: str = ""


def worst(checks: Iterable[Check]) -> str:
    """OK, WARN or FAIL; what was skipped does not count."""
    return max((check.state for check in checks if check.state != SKIP), key=_RANK.index, default=OK)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What is looked at. Slurm is asked once, however many checks want to know."""

    config: Config
    environ: Mapping[str, str]
    uid: int
    commands: SlurmCommands = field(repr=False)

    @cached_property
    def slurm(self) -> Mapping[str, str] | SlurmError:
        """`scontrol show config`, or why there is none."""
        try:
            return self.commands.config()
        except SlurmError as error:
            return error

    @cached_property
    def release(self) -> str:
        """Of Slurm's commands, "22.05.8"; "" unknown, as it is without a slurm.conf."""
        return commands_release(self.environ)

    @cached_property
    def choice(self) -> Choice:
        """The adapter that the reconciler would use here."""
        return choose(self.config.slurm.adapter, self.commands, self.environ, timeout_s=self.config.slurm_timeout_s)

    def setting(self, key: str) -> str:
        """Of slurm.conf as the controller has it; "" where it is not said or nobody answers."""
        return self.slurm.get(key, "") if isinstance(self.slurm, Mapping) else ""
