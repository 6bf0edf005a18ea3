"""Edge: one process at a time per database, by flock on a file next to it that names the holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmwrap.errors import StoreError


@contextmanager
def hold_exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Holds the lock, which the kernel frees however we end. StoreError names the pid that holds it already."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", hint="the directory must be ours to write") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise StoreError(
                f"{what} is at work already (pid {holder})", hint="end that one first, or let it do the work"
            ) from None
        # SlurmUser must be able to take it later.
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(handle, owner.st_uid, owner.st_gid)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
