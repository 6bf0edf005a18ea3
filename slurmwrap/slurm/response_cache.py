"""Cache of Slurm's answers to earlier calls of this user, valid for seconds, so that a loop of gsub asks Slurm once.

One file per question in a private directory: $XDG_RUNTIME_DIR/slurmwrap, else slurmwrap-<uid> in the directory for
temporary files. Another user may have created either. A directory or file that other users can access, or that is
broken, too old, from the future, or of another version, Slurm or environment, is ignored without a message. The files
hold scontrol's output, which is parsed again each time: their content is never executed or used as a finished record.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap import __version__
from slurmwrap.digest import sha256_hex

# Bytes; the answer for 10,000 nodes has 6 MiB.
MAX_BYTES = 64 << 20
_HEAD = 256
# Environment variables that decide which Slurm answers, and by which program.
_IDENTIFYING_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "PATH", "LD_LIBRARY_PATH")


def find_cache_folder(environ: Mapping[str, str], uid: int) -> str:
    """Return the directory of the cache. OSError if XDG_RUNTIME_DIR does not exist."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and is_private_to(os.stat(runtime), uid):
        return f"{runtime}/slurmwrap"
    return f"{environ.get('TMPDIR') or '/tmp'}/slurmwrap-{uid}"


class ResponseCache:
    """Answers younger than `seconds`; with 0 nothing is read or written."""

    def __init__(self, environ: Mapping[str, str], seconds: float) -> None:
        self._seconds = seconds
        self._environ = environ

    def read(self, question: str, times: float = 1.0) -> bytes | None:
        """Return the cached answer if it is younger than `times` the configured seconds; else None."""
        if self._seconds <= 0:
            return None
        with suppress(OSError):
            folder = self._open_cache_folder()
            try:
                return _select_fresh_answer(
                    _read_whole_file(self._make_file_name(question), folder),
                    self._make_identification(),
                    self._seconds * times,
                )
            finally:
                os.close(folder)
        return None

    def leave(self, question: str, answer: bytes) -> None:
        """Store an answer for later calls. Errors are ignored: they only cost those calls a question to Slurm."""
        if self._seconds <= 0 or len(answer) > MAX_BYTES:
            return
        head = f"{self._make_identification()} {time.time()!r} {len(answer)}".encode().ljust(_HEAD - 1) + b"\n"
        name = self._make_file_name(question)
        temporary_name = f".{name}.{os.getpid()}"
        with suppress(OSError):
            folder = self._open_cache_folder()
            try:
                _write(temporary_name, head + answer, folder)
                os.replace(temporary_name, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary_name, dir_fd=folder)
            finally:
                os.close(folder)

    def _open_cache_folder(self) -> int:
        """Open the private directory. OSError if there is none."""
        uid = os.geteuid()
        return _open_folder(find_cache_folder(self._environ, uid), uid)

    def _make_file_name(self, question: str) -> str:
        """Return the name of the file. Each cluster has its own, so that alternating work on two keeps both."""
        return f"{question}-{_digest(self._environ.get(_IDENTIFYING_VARIABLES[0], ''))[:12]}"

    def _make_identification(self) -> str:
        """Return the identification of the answer: this version and the Slurm that was asked."""
        digest = _digest(*(f"{name}={self._environ.get(name, '')}" for name in _IDENTIFYING_VARIABLES))
        return f"slurmwrap-{__version__} {digest[:32]}"


def _digest(*parts: str) -> str:
    return sha256_hex(os.fsencode("\0".join(parts)))


def _open_folder(path: str, uid: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not is_private_to(os.fstat(folder), uid):
        os.close(folder)
        raise PermissionError(f"{path} is not ours alone")
    return folder


def is_private_to(found: os.stat_result, uid: int) -> bool:
    """Return whether `uid` owns it and no other user may access it."""
    return found.st_uid == uid and not found.st_mode & 0o077


def _read_whole_file(name: str, folder: int) -> bytes:
    """Read a regular file of this user that is not too large; b"" otherwise."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not is_private_to(found, os.geteuid()) or found.st_size > MAX_BYTES:
            return b""
        return file.read(MAX_BYTES + _HEAD)


def _select_fresh_answer(content: bytes, mark: str, seconds: float) -> bytes | None:
    head, answer = content[:_HEAD].decode("ascii", "replace"), content[_HEAD:]
    if not head.startswith(f"{mark} "):
        return None
    try:
        at, size = head[len(mark) :].split()
        young = 0 <= time.time() - float(at) < seconds
        return answer if young and int(size) == len(answer) else None
    except ValueError:
        return None


def _write(name: str, content: bytes, folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
