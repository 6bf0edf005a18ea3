"""The files that the site publishes: the reconciler writes, gsub and `slurmwrap why` read. Standard library only.

DIRECTORY/published.json                 for all users: node health, blocked inputs, profiles
DIRECTORY/faults.json, gate-permit.json  for the Prolog gate on the nodes
DIRECTORY/why/<job / 1000>/<job>-<submit_time>.munge  one diagnosed run, sealed by MUNGE for its owner's uid alone

A thousand job ids share a folder of why/, so that gsub, which asks about a few jobs, lists few folders. When a new
folder is created, folders in which nothing was written for KEEP_S are removed.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from slurmwrap.errors import StoreError
from slurmwrap.model.gate_permit import Gate
from slurmwrap.protocols import Published
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Protocol

    from slurmwrap.config.load_config import Config
    from slurmwrap.model.job_run import ActionRecord, JobRun
    from slurmwrap.model.running_job import GpuUse
else:
    Protocol = object

FILE = "published.json"
WHY = "why"
PERMIT, FAULTS = "gate-permit.json", "faults.json"  # node_hooks/prolog_gate.py reads them

KEEP_S = 180 * 86400.0
_PER_FOLDER = 1000  # job ids

_LIMIT = 64 << 20
# Bytes of a credential that are read.
_SEALED_LIMIT = 1 << 20
# Bytes that are sealed: base64 makes a third more of them, and MUNGE refuses more than 1 MiB.
_PAYLOAD_LIMIT = 700_000


class Seal(Protocol):
    """The signature of host.munge.encode: makes a credential that only `uid_restriction` can decode."""

    def __call__(self, payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes: ...


# Credential → (payload, uid that encoded it); None: not for this user.
Unseal = Callable[[bytes], tuple[bytes, int] | None]


class FilePublisher:
    """Implements protocols.Publisher in a directory that belongs to root or SlurmUser. StoreError on a write error."""

    def __init__(self, directory: Path, socket: str, seal: Seal) -> None:
        self.directory = directory
        self._socket = socket
        self._seal = seal

    def publish(self, published: Published) -> None:
        """Replace the world-readable state in one step."""
        text = json.dumps(to_json_dict(published), separators=(",", ":"))
        _replace(self.directory / FILE, text.encode("ascii"))

    def tell_gate(self, gate: Gate) -> None:
        """Write the faults before the permit, so that the gate never refuses on faults older than its permit."""
        faults = [to_json_dict(fault) for fault in gate.faults]
        permit = {"version": 1, "until": gate.until, "allowed": gate.allowed}
        for name, content in ((FAULTS, {"version": 1, "at": gate.at, "faults": faults}), (PERMIT, permit)):
            _replace(self.directory / name, json.dumps(content).encode("ascii"))

    def end_pass(self) -> None:
        """Do nothing: each run is sealed at once."""

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord], gpu_use: Sequence[GpuUse] = ()) -> None:
        """Seal one diagnosed run for its owner's uid. A run without an owner is not published."""
        if run.uid < 0:
            return
        # How far the reconciler read the output: no reader needs it, and a submission can make it as long as it likes.
        attempt = to_json_dict(run) | {"output_begins": {}, "output_ends": {}}
        content = {"version": 1, "attempt": attempt, "actions": [to_json_dict(action) for action in actions]}
        payload = json.dumps(content | {"gpu_use": [to_json_dict(use) for use in gpu_use]}).encode("ascii")
        if len(payload) > _PAYLOAD_LIMIT:
            # One run that cannot be sealed would be tried first in each pass, before those of other users.
            payload = json.dumps(content).encode("ascii")
        sealed = self._seal(payload, socket=self._socket, uid_restriction=run.uid)
        folder = self.directory / WHY / _get_folder_name(run.attempt.job_id)
        existed = folder.is_dir()
        _replace(folder / f"{run.attempt.job_id}-{run.attempt.submit_time}.munge", sealed)
        if not existed:
            _remove_old(self.directory / WHY, newest=folder.stat().st_mtime)


def _get_folder_name(job_id: int) -> str:
    return str(job_id // _PER_FOLDER)


def _remove_old(why: Path, newest: float) -> None:
    """Remove folders last written more than KEEP_S before `newest`, a file's time, so that only one clock is used."""
    for folder in why.iterdir():
        with suppress(OSError):
            if newest - folder.stat().st_mtime > KEEP_S:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()


def _replace(path: Path, content: bytes) -> None:
    # Imported here because gsub only reads.
    from slurmwrap.store.atomic_write import replace_file

    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(path, content, 0o644)
    except OSError as error:
        hint = f"see that {path.parent} belongs to SlurmUser and has space left"
        raise StoreError(f"cannot publish {path}: {error.strerror or error}", hint=hint) from error


def list_trusted_uids(config: Config) -> frozenset[int]:
    """Return the uids of root and SlurmUser: the configured one, else the owner of the site's state directory."""
    try:
        if config.site.slurm_user:
            return frozenset({0, pwd.getpwnam(config.site.slurm_user).pw_uid})
        return frozenset({0, os.stat(config.site.state_dir).st_uid}) if config.site.state_dir else frozenset({0})
    except (KeyError, OSError):
        return frozenset({0})


def read_published(path: str | Path, trusted_uids: Collection[int]) -> Published | None:
    """Return what the site published at `path` (the file or its directory); None if missing or not trusted.

    It is trusted only if root or one of `trusted_uids` (SlurmUser) owns both the file and its directory, and no other
    user may write either: otherwise a user could make gsub avoid nodes or refuse another user's input.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == FILE else path
    content = _read_trusted_content(folder, FILE, trusted_uids, _LIMIT)
    if content is None:
        return None
    try:
        return record_from_json(Published, json.loads(content))
    except (ValueError, RecursionError):
        return None


def read_why(
    directory: Path, job_id: int | None, decode: Unseal, trusted_uids: Collection[int], *, limit: int = 500
) -> list[dict[str, Any]]:
    """Return what the site reported to this user about one raw job id (None: all their jobs), oldest first.

    Each is a dict {"version", "attempt", "actions"} for `parse_published`. Up to `limit` files are read, newest first.
    """
    pattern = f"{_get_folder_name(job_id)}/{job_id}-*.munge" if job_id is not None else "*/*.munge"
    files = sorted((directory / WHY).glob(pattern), key=_parse_sealed_order, reverse=True)[:limit]
    found = [_unseal_file(file, decode, trusted_uids) for file in reversed(files)]
    return [content for content in found if content is not None]


def has_published(directory: str | Path, job_ids: Collection[int]) -> bool:
    """Return whether the site published a file about one of these jobs. Only names are listed, no file is opened."""
    prefixes = tuple(f"{job_id}-" for job_id in job_ids)
    for folder in {_get_folder_name(job_id) for job_id in job_ids}:
        with suppress(OSError), os.scandir(os.path.join(directory, WHY, folder)) as entries:
            if any(entry.name.startswith(prefixes) for entry in entries):
                return True
    return False


def parse_published(plain: dict[str, Any]) -> tuple[JobRun, tuple[ActionRecord, ...]]:
    """Convert one dict of `read_why` to records. ValueError names the wrong field."""
    # Imported here because gsub reads no diagnosis in most calls.
    from slurmwrap.model.job_run import ActionRecord, JobRun

    try:
        attempt, actions = plain["attempt"], plain["actions"]
    except KeyError as error:
        raise ValueError(f"{error.args[0]} is missing") from error
    return record_from_json(JobRun, attempt), tuple(record_from_json(ActionRecord, action) for action in actions)


def parse_published_gpu_use(plain: dict[str, Any]) -> tuple[GpuUse, ...]:
    """Return the use of the GPUs in one dict of `read_why`; () if there is none. ValueError names the wrong field."""
    from slurmwrap.model.running_job import GpuUse

    return tuple(record_from_json(GpuUse, use) for use in plain.get("gpu_use") or ())


def read_trusted(directory: str, name: str, trusted_uids: Collection[int]) -> bytes | None:
    """Return the content of a file that the reconciler published; None if it is missing or not trusted."""
    return _read_trusted_content(directory, name, trusted_uids, _SEALED_LIMIT)


def _parse_sealed_order(file: Path) -> tuple[int, ...]:
    """Return (submit time, job id) from the name. Invalid names sort first and fail to decode."""
    job_id, _, submit_time = file.stem.partition("-")
    return (int(submit_time), int(job_id)) if job_id.isdigit() and submit_time.isdigit() else ()


def _unseal_file(file: Path, decode: Unseal, trusted_uids: Collection[int]) -> dict[str, Any] | None:
    sealed = _read_trusted_content(file.parent, file.name, trusted_uids, _SEALED_LIMIT)
    opened = decode(sealed) if sealed is not None else None
    if opened is None or opened[1] not in {0, *trusted_uids}:
        return None
    try:
        plain = json.loads(opened[0])
    except (ValueError, RecursionError):
        return None
    return plain if isinstance(plain, dict) and {"attempt", "actions"} <= plain.keys() else None


def _read_trusted_content(folder: str | Path, name: str, trusted_uids: Collection[int], limit: int) -> bytes | None:
    # Directory and file are checked through their open descriptors, so that no user can replace them after the check.
    trusted = {0, *trusted_uids}
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_trusted(os.fstat(directory), trusted):
            return None
        # O_NONBLOCK: opening a FIFO must not block before fstat shows that it is not a regular file.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_trusted(status, trusted) or status.st_size > limit:
                return None
            return file.read(limit)
    except OSError:
        return None
    finally:
        os.close(directory)


def _is_trusted(status: os.stat_result, trusted: set[int]) -> bool:
    return status.st_uid in trusted and not status.st_mode & 0o022
