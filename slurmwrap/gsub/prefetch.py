"""Start the queries to Slurm early, so that Slurm answers while the rest of gsub is still being imported."""

from __future__ import annotations

from collections.abc import Mapping

from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.site_topology import SiteRacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config
    from slurmwrap.console import Console
    from slurmwrap.slurm.response_cache import ResponseCache


def make_slurm_commands(
    config: Config, environ: Mapping[str, str], console: Console, kept: ResponseCache | None = None
) -> SlurmCommands:
    """Return the adapter that calls Slurm's commands, as configured."""
    network = SiteRacks(config.placement.topology_file, config.placement.topology_features, console.say)
    return SlurmCommands(timeout_s=config.slurm_timeout_s, environ=environ, network=network, kept=kept)


def ask(config: Config, environ: Mapping[str, str], console: Console) -> SlurmCommands:
    """Return the Slurm adapter after starting the queries of its first snapshot.

    Queries whose answers an earlier call has cached are not repeated.
    """
    from slurmwrap.slurm.response_cache import ResponseCache

    slurm = make_slurm_commands(config, environ, console, ResponseCache(environ, config.submit.snapshot_kept_s))
    slurm.begin_snapshot()
    return slurm
