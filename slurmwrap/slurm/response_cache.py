"""Edge: what Slurm answered to an earlier call of this user a few seconds ago, so that a loop of gsub asks it once.

A file per question in a private directory: $XDG_RUNTIME_DIR/slurmwrap, else slurmwrap-<uid> below the directory for
temporary files. Others may have made either: a directory or file that is not ours alone, of another version, Slurm or
environment, broken, too old or from the future, is as good as none, and nothing is ever said about it. It holds
scontrol's own words, which are parsed again each time: no one's file is ever executed, or believed to be a record.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap import __version__
from slurmwrap.digest import sha256_hex

# 10,000 nodes are 6 MiB
MAX_BYTES = 64 << 20
_HEAD = 256
# Which Slurm is asked, and by what.
_OF_THE_ANSWER = ("SLURM_CONF", "SLURM_CONF_SERVER", "PATH", "LD_LIBRARY_PATH")


def find_cache_folder(environ: Mapping[str, str], uid: int) -> str:
    """Where answers are kept. OSError for a XDG_RUNTIME_DIR that is not there."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and is_ours_alone(os.stat(runtime), uid):
        return f"{runtime}/slurmwrap"
    return f"{environ.get('TMPDIR') or '/tmp'}/slurmwrap-{uid}"


class ResponseCache:
    """Answers younger than `seconds`; with 0 none is ever read or left."""

    def __init__(self, environ: Mapping[str, str], seconds: float) -> None:
        self._seconds = seconds
        self._environ = environ

    def read(self, question: str, times: float = 1.0) -> bytes | None:
        """The answer, if it is younger than `times` our seconds."""
        if self._seconds <= 0:
            return None
        with suppress(OSError):
            folder = self._open_cache_folder()
            try:
                return _select_fresh_answer(
                    _read_whole_file(self._name(question), folder), self._mark(), self._seconds * times
                )
            finally:
                os.close(folder)
        return None

    def leave(self, question: str, answer: bytes) -> None:
        """For the calls that follow. Whatever hinders it costs them a question to Slurm."""
        if self._seconds <= 0 or len(answer) > MAX_BYTES:
            return
        head = f"{self._mark()} {time.time()!r} {len(answer)}".encode().ljust(_HEAD - 1) + b"\n"
        name = self._name(question)
        aside = f".{name}.{os.getpid()}"
        with suppress(OSError):
            folder = self._open_cache_folder()
            try:
                _write(aside, head + answer, folder)
                os.replace(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with suppress(OSError):
                    os.unlink(aside, dir_fd=folder)
            finally:
                os.close(folder)

    def _open_cache_folder(self) -> int:
        """The private directory, opened. OSError where there is none."""
        uid = os.geteuid()
        return _open_folder(find_cache_folder(self._environ, uid), uid)

    def _name(self, question: str) -> str:
        """A file for each cluster, so that work on two of them by turns keeps both."""
        return f"{question}-{_digest(self._environ.get(_OF_THE_ANSWER[0], ''))[:12]}"

    def _mark(self) -> str:
        """Whose answer it is: this version's question to this Slurm."""
        told = _digest(*(f"{name}={self._environ.get(name, '')}" for name in _OF_THE_ANSWER))
        return f"slurmwrap-{__version__} {told[:32]}"


def _digest(*parts: str) -> str:
    return sha256_hex(os.fsencode("\0".join(parts)))


def _open_folder(path: str, uid: int) -> int:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not is_ours_alone(os.fstat(folder), uid):
        os.close(folder)
        raise PermissionError(f"{path} is not ours alone")
    return folder


def is_ours_alone(found: os.stat_result, uid: int) -> bool:
    """No one else may read or write it."""
    return found.st_uid == uid and not found.st_mode & 0o077


def _read_whole_file(name: str, folder: int) -> bytes:
    """A small enough regular file of our own."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not is_ours_alone(found, os.geteuid()) or found.st_size > MAX_BYTES:
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
