"""File with the time limits that are lowered at present (adapter): `limits.json` in site.state_dir.

It is written before Slurm is asked to lower a limit. It is not in the database, so that the watchdog can restore the
limits while the database is locked, damaged or of another version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurmwrap.errors import StoreError
from slurmwrap.model.lowered_limit import LoweredLimit
from slurmwrap.store.atomic_write import replace_file
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

LIMITS_FILE = "limits.json"


class LoweredLimitFile:
    """The lowered limits in a file that only one process writes at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> tuple[LoweredLimit, ...]:
        """Return the lowered limits; () without a file. StoreError if it cannot be read."""
        try:
            return tuple(record_from_json(LoweredLimit, one) for one in json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{self._path} cannot be read: {error}",
                hint="It lists the time limits to restore; the Comment of such a job shows its own one (squeue -o %k).",
            ) from error

    def write(self, lowered: Sequence[LoweredLimit]) -> None:
        """Replace the file; after a power failure it is the old or the new one. StoreError if it cannot be written."""
        try:
            replace_file(self._path, json.dumps([to_json_dict(one) for one in lowered]), 0o600, durable=True)
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from error
