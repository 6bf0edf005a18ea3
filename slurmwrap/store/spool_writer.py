"""Write an observation to a spool (adapter). Separate from spool_reader.py, because every gsub writes one."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress

from slurmwrap.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slurmwrap.model.observation import Observation

VERSION = 1  # of the format of a spool file


def make_nonce() -> str:
    """Return a new key for an observation: 128 random bits."""
    return os.urandom(16).hex()


def serialize(observation: Observation) -> bytes:
    """Return the JSON of docs/records.md. It has no `uid`, which comes from the MUNGE credential."""
    plain = {"version": VERSION, "nonce": observation.nonce, "cluster": observation.cluster}
    plain |= {"job_id": observation.job_id, "context": observation.context.value, "at": observation.at}
    plain |= {"node": observation.node, "facts": dict(observation.facts)}
    return json.dumps(plain, separators=(",", ":")).encode()


def write_plain(directory: Path | str, observation: Observation) -> str:
    """Write `observation` to a private directory, which is created if it is missing, and return the file's path.

    Raises StoreError.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}") from error
    return _write(directory, observation, serialize(observation), 0o600)


def write_sealed(directory: Path | str, observation: Observation, *, socket: str) -> str:
    """Write `observation` to the shared spool as a MUNGE credential of this user. Raises StoreError."""
    return start_sealed_write(directory, socket=socket)(observation)


def start_sealed_write(directory: Path | str, *, socket: str) -> Callable[[Observation], str]:
    """Start `write_sealed` for an observation that is made later. The returned function takes it, once."""
    # Imported here because it is needed only if the site has a spool.
    from slurmwrap.host import munge

    seal = munge.start_encode(socket=socket)

    def write(observation: Observation) -> str:
        sealed = seal(serialize(observation))
        # The random name protects the file: users cannot list the directory.
        return _write(directory, observation, sealed + b"\n", 0o644)

    return write


def _write(directory: Path | str, observation: Observation, data: bytes, mode: int) -> str:
    """Write a temporary file and rename it."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", os.uname().nodename) or "host"
    name = f"{int(observation.at * 1e6)}-{host}-{observation.nonce}.obs"
    path, temporary = os.path.join(directory, name), os.path.join(directory, f".{name}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, mode)
            stream.write(data)
        os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise StoreError(f"spool {directory}: {error.strerror}", hint="Is it full, read-only or missing?") from error
    return path
