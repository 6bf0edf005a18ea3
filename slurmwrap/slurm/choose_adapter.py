"""Choose the Slurm adapter, commands or PySlurm, and give the reason. Used by the reconciler and doctor.

gsub always uses the commands: each call is its own process, which would have to start another process for PySlurm to
save two commands of 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.scontrol_parser import parse_release

if TYPE_CHECKING:
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.protocols import Slurm
    from slurmwrap.slurm.pyslurm.pyslurm_adapter import SlurmByPySlurm
    from slurmwrap.slurm.pyslurm.worker_client import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterChoice:
    """An adapter. `name` is "commands" or "pyslurm"; `reason` says in plain words why it was chosen."""

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
    """Return the adapter for `wanted`, one of config.ADAPTERS.

    When PySlurm cannot be used the commands replace it; `say` reports that only if PySlurm was requested.
    """
    if wanted == "commands":
        return AdapterChoice(slurm=commands, name="commands", reason='slurm.adapter = "commands"')
    from slurmwrap.slurm.pyslurm import compatibility

    found = compatibility.find_misfit(environ, proven_only=wanted == "auto") or _try_pyslurm(
        commands, environ, timeout_s, say
    )
    if not isinstance(found, str):
        return AdapterChoice(
            slurm=found, name="pyslurm", reason=f"PySlurm {compatibility.find_installed_version()} fits this Slurm"
        )
    if wanted == "pyslurm":
        say(f"PySlurm is not used: {found}")
    return AdapterChoice(slurm=commands, name="commands", reason=found)


def _try_pyslurm(
    commands: SlurmCommands, environ: Mapping[str, str], timeout_s: float, say: Callable[[str], None]
) -> SlurmByPySlurm | str:
    from slurmwrap.slurm.pyslurm import compatibility
    from slurmwrap.slurm.pyslurm.pyslurm_adapter import SlurmByPySlurm
    from slurmwrap.slurm.pyslurm.worker_client import Link

    link = Link(environ, timeout_s)
    fault = compatibility.probe(link)
    if not fault and parse_release(compatibility.find_installed_version()) not in compatibility.PROVEN:
        fault = compare_partitions(link, commands.snapshot())
    if fault:
        link.close()
        return f"it cannot be loaded: {fault}"
    return SlurmByPySlurm(commands, link, say)


def compare_partitions(link: Link, snapshot: Snapshot) -> str:
    """Compare the partitions that PySlurm reads with those of `snapshot`, read by the commands; "" if they are equal.

    For releases on which the contract tests have not run: a PySlurm that does not fit libslurm's structures reads wrong
    names and numbers without an error.
    """
    from slurmwrap.slurm.pyslurm.pyslurm_adapter import partition_from_worker
    from slurmwrap.slurm.pyslurm.worker_client import SlurmRefused, UnsupportedPyslurm, WorkerTimeout

    try:
        read = [partition_from_worker(answer) for answer in link.ask("partitions")]
    except (KeyError, TypeError, UnsupportedPyslurm, SlurmRefused, WorkerTimeout) as error:
        return f"its partitions cannot be read: {error}"
    by_pyslurm = {partition.name: (partition.max_time_s, partition.total_nodes) for partition in read}
    by_scontrol = {partition.name: (partition.max_time_s, partition.total_nodes) for partition in snapshot.partitions}
    if by_pyslurm != by_scontrol:
        return f"it reads the partitions as {by_pyslurm}, scontrol as {by_scontrol} (MaxTime in seconds, nodes)"
    return ""
