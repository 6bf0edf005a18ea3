"""The update that ends a job's waiting."""

from __future__ import annotations

from slurmwrap.model.action import SlurmAction, Verb


def start_action(address: str, release_at: str, because: str) -> SlurmAction:
    """The update that makes a waiting job eligible."""
    return SlurmAction(verb=Verb.UPDATE_JOB, target=address, key="StartTime", value=release_at, because=because)
