"""Which adapter talks to Slurm, and why: the commands, or PySlurm where it fits. Read by the reconciler and doctor.

gsub is not asked: each of its calls is a process of its own that would have to start another one for PySlurm, to save
two commands of 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.slurm.commands import SlurmCommands

if TYPE_CHECKING:
    from slurmwrap.protocols import Slurm
    from slurmwrap.slurm.pyslurm.pyslurm_adapter import SlurmByPySlurm


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """`name` is "commands" or "pyslurm"; `reason` says why, in words for people."""

    slurm: Slurm
    name: str
    reason: str


def choose(
    wanted: str,
    commands: SlurmCommands,
    environ: Mapping[str, str],
    *,
    timeout_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> AdapterChoice:
    """`wanted`: one of config.ADAPTERS. What cannot be had gives way to the commands; said, where it was asked for."""
    if wanted == "commands":
        return AdapterChoice(slurm=commands, name="commands", reason='slurm.adapter = "commands"')
    from slurmwrap.slurm.pyslurm import compatibility

    found = compatibility.find_misfit(environ, proven_only=wanted == "auto") or _tried(
        commands, environ, timeout_s, say
    )
    if not isinstance(found, str):
        return AdapterChoice(
            slurm=found, name="pyslurm", reason=f"PySlurm {compatibility.find_installed_version()} fits this Slurm"
        )
    if wanted == "pyslurm":
        say(f"PySlurm is not used: {found}")
    return AdapterChoice(slurm=commands, name="commands", reason=found)


def _tried(
    commands: SlurmCommands, environ: Mapping[str, str], timeout_s: float, say: Callable[[str], None]
) -> SlurmByPySlurm | str:
    from slurmwrap.slurm.pyslurm.compatibility import probe
    from slurmwrap.slurm.pyslurm.pyslurm_adapter import SlurmByPySlurm
    from slurmwrap.slurm.pyslurm.worker_client import Link

    link = Link(environ, timeout_s)
    fault = probe(link)
    if fault:
        link.close()
        return f"it cannot be loaded: {fault}"
    return SlurmByPySlurm(commands, link, say)
