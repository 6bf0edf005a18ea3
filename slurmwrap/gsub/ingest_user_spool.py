"""Read the user's own spool into their database: profiles and blocked inputs from pre-runs since the last call.

It imports the database library, so gsub calls it only if a pre-run has left a mark (UserStateStore.remember_prerun).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.errors import StoreError
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.reconcile import SlurmJobs, ingest
from slurmwrap.reconcile.wire_adapters import make_user_services
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import DATABASE


def ingest_user_spool(config: Config, slurm: SlurmCommands, console: Console, state: Path) -> bool:
    """Move the observations from the user's own spool into their database, without diagnosing or acting.

    Return False if the lock is taken: another process is doing this work, which is not an error.
    """
    database = state / DATABASE
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_exclusive_lock(database.with_suffix(".lock"), "another reconciler"))
        except StoreError:
            return False
        store = stack.enter_context(Database.open(database))
        services = make_user_services(config, slurm, store, console.say, state)
        ingest(services, slurm.cluster_name(), SlurmJobs(ask=lambda: slurm.jobs(services.scope.user)))
    return True
