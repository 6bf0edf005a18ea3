"""Append lines to a job's own output file, with the rights of the process's user (adapter)."""

from __future__ import annotations

import os
import stat

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def append_lines(path: str, text: str) -> None:
    """Append `text` to a regular file, which is created as slurmd would create it if it does not exist.

    OSError for anything else: a link, a pipe, a device, a missing directory.
    """
    try:
        # The umask applies, as in slurmstepd.
        descriptor = os.open(path, _FLAGS, 0o666)
    except ValueError as error:  # a NUL byte
        raise OSError(str(error)) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no regular file")
        content = text.encode("utf-8", "backslashreplace")
        if found.st_size and _read_last_byte(path) not in (b"\n", b""):
            content = b"\n" + content
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def _read_last_byte(path: str) -> bytes:
    """Return the last byte of the file; b"" if it is empty or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, 1, max(0, os.fstat(descriptor).st_size - 1))
    finally:
        os.close(descriptor)
