"""Edge: leaves an observation in a spool. Apart from spool_reader.py, which reads them: every gsub leaves one."""

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

VERSION = 1  # of a spool file


def make_nonce() -> str:
    """The key of an observation: 128 random bits."""
    return os.urandom(16).hex()


def serialize(observation: Observation) -> bytes:
    """The JSON of docs/records.md; `uid` comes from the seal and is not in it."""
    plain = {"version": VERSION, "nonce": observation.nonce, "cluster": observation.cluster}
    plain |= {"job_id": observation.job_id, "context": observation.context.value, "at": observation.at}
    plain |= {"node": observation.node, "facts": dict(observation.facts)}
    return json.dumps(plain, separators=(",", ":")).encode()


def write_plain(directory: Path | str, observation: Observation) -> str:
    """Leaves `observation` in a private directory, which is made if it is missing. StoreError when that fails.

    Returns the file's path.
    """
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}") from error
    return _write(directory, observation, serialize(observation), 0o600)


def write_sealed(directory: Path | str, observation: Observation, *, socket: str) -> str:
    """Leaves `observation` in the shared spool, sealed by anyone who we are. StoreError when that fails."""
    return start_sealed_write(directory, socket=socket)(observation)


def start_sealed_write(directory: Path | str, *, socket: str) -> Callable[[Observation], str]:
    """`write_sealed` in two, for an observation that is still to be made: what comes back takes it, once."""
    # Only where a site listens.
    from slurmwrap.host import munge

    seal = munge.start_encode(socket=socket)

    def leave(observation: Observation) -> str:
        sealed = seal(serialize(observation))
        # Its name is the secret: no one can list them.
        return _write(directory, observation, sealed + b"\n", 0o644)

    return leave


def _write(directory: Path | str, observation: Observation, data: bytes, mode: int) -> str:
    """Aside, then renamed."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", os.uname().nodename) or "host"
    name = f"{int(observation.at * 1e6)}-{host}-{observation.nonce}.obs"
    path, aside = os.path.join(directory, name), os.path.join(directory, f".{name}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, mode)
            stream.write(data)
        os.rename(aside, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(aside)
        raise StoreError(f"spool {directory}: {error.strerror}", hint="Is it full, read-only or missing?") from error
    return path
