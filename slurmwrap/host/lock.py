"""Allow one process at a time per database, by flock on a file next to it that names the holder (adapter)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmwrap.errors import StoreError


@contextmanager
def hold_exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock, which the kernel frees however the process ends. StoreError names the pid that holds it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", hint="this user must be able to write the directory") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                f"{what} is already running (pid {holder})", hint="stop that process, or let it do the work"
            ) from None
        # As root, give the file to the owner of the directory: SlurmUser must be able to lock it later.
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
