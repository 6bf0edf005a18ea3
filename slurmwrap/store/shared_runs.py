"""Read what the program of a `--share` job wrote about a run next to another job (adapter; inject/slurmwrap_share.py).

The files belong to the user and can be read by that user alone: the directory's name comes from a user's record.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from slurmwrap.model.shared_run import SharedRun
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.pack_results import read_private_file


def read_shared_run(directory: str) -> SharedRun | None:
    """Return how a job ran next to another one; None if it did not, or is another user's. Call it as its user only.

    A job that runs or ran by itself had its last such run before that.
    """
    for name in ("claim.json", "last.json"):
        with suppress(OSError, ValueError):
            plain = json.loads(read_private_file(Path(directory) / name))
            if plain.get("state") != "own":
                return record_from_json(SharedRun, plain)
    return None
