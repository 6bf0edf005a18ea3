"""Edge: a few lines at the end of a job's own output file, written with the rights of the process's user."""

from __future__ import annotations

import os
import stat

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def append_lines(path: str, text: str) -> None:
    """Adds `text` to a regular file, which is made where there is none, as slurmd would make it. What is there
    stays. OSError for anything else: a link, a pipe, a device, no directory."""
    try:
        # Less the umask, as slurmstepd does.
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
    """Of the file, b"" where it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(descriptor, 1, max(0, os.fstat(descriptor).st_size - 1))
    finally:
        os.close(descriptor)
