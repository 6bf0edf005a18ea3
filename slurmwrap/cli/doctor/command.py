"""`slurmwrap doctor`: does everything hold that must hold, and how is it mended. Flags in, checks run, told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.doctor import own, slurm
from slurmwrap.cli.doctor.check import FAIL, OK, SKIP, WARN, Check, Ground, worst
from slurmwrap.cli.voice import harmless
from slurmwrap.config import load
from slurmwrap.report.tell import Paint
from slurmwrap.slurm.commands import SlurmCommands

CHECKS: Sequence[Callable[[Ground], Check]] = (
    own.configuration,
    slurm.commands,
    slurm.sbatch,
    slurm.conf,
    slurm.controller,
    slurm.adapter,
    slurm.pyslurm,
    slurm.seals,
    slurm.accounting,
    slurm.cgroups,
    own.state_dir,
    own.database,
    own.answers,
    own.completion,
    own.site,
)
EXIT = {OK: 0, WARN: 1, FAIL: 2}  # Nagios', which most monitors take
_STYLE = {OK: "green", WARN: "yellow", FAIL: "red", SKIP: "dim"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Look whether everything holds that slurmwrap needs, and say how to mend what does not.

    Exit codes, as monitors want them: 0 all is well, 1 a warning, 2 a failure.
    Nothing is changed and nothing submitted.

    \b
    Examples:
      slurmwrap doctor
      slurmwrap doctor --json | jq '.checks[] | select(.state == "fail")'
    """
    checks = examine(ground())
    typer.echo(_json(checks) if as_json else tell(checks, terminal.painter()))
    sys.exit(EXIT[worst(checks)])


def ground() -> Ground:
    """This process's own. ConfigError where the configuration cannot be read: then nothing else can be trusted."""
    config, environ = load(os.environ), dict(os.environ)
    commands = SlurmCommands(environ, timeout_s=config.slurm_timeout_s)
    return Ground(config=config, environ=environ, uid=os.geteuid(), commands=commands)


def examine(where: Ground, looks: Sequence[Callable[[Ground], Check]] = CHECKS) -> tuple[Check, ...]:
    """All checks. One that goes wrong by itself is a failure, and the others go on."""
    return tuple(_looked(look, where) for look in looks)


def _looked(look: Callable[[Ground], Check], where: Ground) -> Check:
    try:
        return look(where)
    except Exception as error:
        return Check(name=look.__name__, state=FAIL, text=f"the check itself failed: {type(error).__name__}: {error}")


def tell(checks: Sequence[Check], paint: Paint) -> str:
    """One line per check, and what to do below it."""
    wide = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = paint(f"{check.state:4}", _STYLE[check.state])
        lines.append(f"{state}  {check.name:{wide}}  {harmless(check.text)}")
        if check.hint:
            lines.append(f"{'':{wide + 8}}{harmless(check.hint)}")
    return "\n".join(lines)


def _json(checks: Sequence[Check]) -> str:
    return json.dumps({"state": worst(checks), "checks": [asdict(check) for check in checks]}, indent=2)
