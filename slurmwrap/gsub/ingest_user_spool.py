"""Takes into the user's database what their pre-runs left since the last call: profiles, blocked inputs.

Loads the database's library, so gsub calls it only when a pre-run left a mark (UserStateStore.remember_prerun).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.errors import StoreError
from slurmwrap.host.lock import hold_exclusive_lock
from slurmwrap.reconcile import SlurmJobs, ingest
from slurmwrap.reconcile.wire_adapters import user_edges
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.database import Database
from slurmwrap.store.user_state_files import DATABASE


def ingest_user_spool(config: Config, slurm: SlurmCommands, console: Console, state: Path) -> bool:
    """Empties the user's own spool into their database; judges nothing, acts on nothing.

    False when the lock cannot be had: someone else is doing this work now, which is no fault.
    """
    database = state / DATABASE
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_exclusive_lock(database.with_suffix(".lock"), "another reconciler"))
        except StoreError:
            return False
        store = stack.enter_context(Database.open(database))
        edges = user_edges(config, slurm, store, console.say, state)
        ingest(edges, slurm.cluster_name(), SlurmJobs(ask=lambda: slurm.jobs(edges.scope.user)))
    return True
