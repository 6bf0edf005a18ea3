"""Check many data files: first the structure of all, then the whole content of each, at a limited rate (adapter).

A file that changed or vanished while it was read is no finding. A fault that some readers accept counts only after the
format's own library, in the job's Python, has refused the file.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import IO, Protocol

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.prerun.inputs.content_checks import ContentFault, find_content_fault, is_certain, is_tfrecord
from slurmwrap.prerun.inputs.library_readers import DEEP, LibraryReaders, select_reader
from slurmwrap.prerun.static.file_formats import find_format_fault

# A change of the checks changes this number, so that all files are read again.
_VERSION = 1
# Files that are read at the same time: many small files on a file server wait for the network, not for the disk.
_WORKERS = 4
_BATCH = 1024
# A file that changed less than this before may still be written: it is checked again later.
SETTLED_S = 60.0
# Faults that are collected before the check ends.
MAX_FAULTS = 20
# Errors of a read that the disk or the file system causes, not the state of the network or of this process.
_BROKEN_ERRORS = frozenset((errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EREMOTEIO, errno.ENODATA))
_READ_BUFFER = 256 << 10
# Begins a fault that a library reported.
_BY_LIBRARY = "cannot be decoded:"


class CheckStopped(Exception):
    """Raised in the middle of a read when the check has to end."""


class KnownFiles(Protocol):
    """The digests of files that were found sound before (store/sound_files.py)."""

    def __contains__(self, digest: bytes) -> bool: ...
    def add(self, digest: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFault:
    """A broken file. `why` says why it is an input; `certain`: every program that reads it meets the fault."""

    path: str
    text: str
    offset: int | None = None
    certain: bool = True
    why: str = ""


@dataclass(slots=True, kw_only=True)
class CheckSummary:
    """What a check did. Changed by several threads; the counts are exact once it has ended."""

    files: int = 0  # all
    known: int = 0  # found sound by an earlier check
    read: int = 0  # read completely now
    bytes: int = 0
    faults: list[FileFault] = field(default_factory=list)
    complete: bool = False  # no file was left out


class RateLimiter:
    """Limits the bytes per second of all threads together, and ends reads once `stop` is set. `rate` 0: no limit."""

    def __init__(
        self,
        rate: float,
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.rate, self.stop, self.clock = rate, stop, clock
        self.sleep = sleep or stop.wait
        self.bytes = 0
        self._free_at = clock()
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may have been read. Raise CheckStopped if the check has to end."""
        with self._lock:
            self.bytes += count
            now = self.clock()
            wait = 0.0
            if self.rate:
                # After a pause, at most one second's bytes may be read at once.
                self._free_at = max(self._free_at, now - 1.0) + count / self.rate
                wait = self._free_at - now
        if wait > 0:
            self.sleep(wait)
        if self.stop.is_set():
            raise CheckStopped


class _LimitedFile(io.RawIOBase):
    """A file whose reads are limited. It does not own its descriptor."""

    def __init__(self, descriptor: int, limiter: RateLimiter) -> None:
        self._descriptor, self._limiter = descriptor, limiter

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = os.readv(self._descriptor, [buffer])
        self._limiter.take(count)
        return count


def identify(path: str, status: os.stat_result) -> bytes:
    """Return the digest of a file's path, size, time of change and inode: another content has another digest."""
    text = f"{_VERSION}\0{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


@dataclass(slots=True, kw_only=True)
class FileChecker:
    """Checks files and keeps the summary. `now`: Unix seconds, to compare with the times of files."""

    known: KnownFiles
    limiter: RateLimiter
    readers: LibraryReaders
    now: Callable[[], float] = time.time
    summary: CheckSummary = field(default_factory=CheckSummary)
    # Called with each fault as soon as it is found.
    report: Callable[[FileFault], object] = lambda fault: None
    _inputs: Mapping[str, str] = field(default_factory=dict)
    _unsettled: list[str] = field(default_factory=list)

    def check_all(self, inputs: Mapping[str, str]) -> CheckSummary:
        """Check structure and content of the files, path -> why it is an input."""
        self.check_contents(self.check_structures(inputs))
        return self.summary

    def check_structures(self, inputs: Mapping[str, str]) -> list[str]:
        """Check the headers and ends of all files, which shows most truncated files within seconds.

        Return the files whose content is to be read. End early if the limiter stops or MAX_FAULTS are found.
        """
        self.summary.files, self._inputs, todo = len(inputs), inputs, []
        with suppress(CheckStopped), ThreadPoolExecutor(_WORKERS) as pool:
            for path, state in self._map(pool, self._check_structure, inputs):
                if state == "read":
                    todo.append(path)
                else:
                    self._sort(path, state)
        return todo

    def check_contents(self, todo: Sequence[str]) -> None:
        """Read the files completely, and at last those that may have been in the middle of being written."""
        broken = {fault.path for fault in self.summary.faults}
        with suppress(CheckStopped), ThreadPoolExecutor(_WORKERS) as pool:
            for path, state in self._map(pool, self._check_content, [path for path in todo if path not in broken]):
                self._sort(path, state)
            self._check_unsettled()
            self.summary.complete = len(self.summary.faults) < MAX_FAULTS and not self.limiter.stop.is_set()
        self.summary.bytes = self.limiter.bytes

    def _map(
        self, pool: ThreadPoolExecutor, check: Callable[[str], ContentFault | str], paths: Iterable[str]
    ) -> Iterator[tuple[str, ContentFault | str]]:
        remaining = iter(paths)
        while batch := list(islice(remaining, _BATCH)):
            if self.limiter.stop.is_set():
                raise CheckStopped
            if len(self.summary.faults) >= MAX_FAULTS:
                return
            yield from zip(batch, pool.map(check, batch), strict=True)

    def _sort(self, path: str, state: ContentFault | str) -> None:
        if isinstance(state, ContentFault):
            fault = FileFault(
                path=path, text=state.text, offset=state.offset, certain=state.certain, why=self._inputs.get(path, "")
            )
            self.summary.faults.append(fault)
            self.report(fault)
        elif state == "known":
            self.summary.known += 1
        elif state == "sound":
            self.summary.read += 1
        elif state == "unsettled":
            self._unsettled.append(path)

    def _check_unsettled(self) -> None:
        """Check the files again that may have been in the middle of being written, once they are old enough."""
        again, self._unsettled = self._unsettled, []
        for path in again:
            with suppress(OSError):
                wait = os.stat(path).st_mtime + SETTLED_S - self.now()
                if wait > SETTLED_S:
                    continue
                if wait > 0:
                    self.limiter.sleep(wait)
                if self.limiter.stop.is_set():
                    raise CheckStopped
                self._sort(path, self._check_content(path))

    def _check_structure(self, path: str) -> ContentFault | str:
        """Return the fault, or a word: "read" (the content is to be read), "known", "unsettled" or "gone"."""

        def look(descriptor: int, status: os.stat_result) -> ContentFault | None:
            suffix = os.path.splitext(path)[1].lower()
            with os.fdopen(descriptor, "rb", closefd=False) as stream:
                text = find_format_fault(stream, status.st_size, suffix, 0)
            # The whole content decides about the others.
            return ContentFault(text) if text and is_certain(text, suffix) else None

        found = self._examine(path, look)
        return "read" if found is None else found

    def _check_content(self, path: str) -> ContentFault | str:
        """Read the file; return as `_check_structure`, or "sound"."""

        def look(descriptor: int, status: os.stat_result) -> ContentFault | None:
            suffix = os.path.splitext(path)[1].lower()
            head = os.pread(descriptor, 512, 0)
            reader = select_reader(head, suffix, tfrecord=is_tfrecord(head))
            return self._read_deep(path, descriptor, status, suffix, reader)

        found = self._examine(path, look, is_complete=True)
        return "sound" if found is None else found

    def _read_deep(
        self, path: str, descriptor: int, status: os.stat_result, suffix: str, reader: str
    ) -> ContentFault | None:
        """Read by the library if only that sees the content, else by slurmwrap's own checks."""
        if reader in DEEP and status.st_size and self.readers.has(reader):
            state, text = self.readers.read(path, reader, status.st_size)
            self.limiter.take(status.st_size)
            if state == "sound":
                return None
            if state in ("broken", "refused"):
                return ContentFault(f"{_BY_LIBRARY} {text}", certain=state == "broken")
        raw = _LimitedFile(descriptor, self.limiter)
        stream: IO[bytes] = io.BufferedReader(raw, _READ_BUFFER)
        return find_content_fault(stream, status.st_size, suffix)

    def _examine(
        self, path: str, look: Callable[[int, os.stat_result], ContentFault | None], *, is_complete: bool = False
    ) -> ContentFault | str | None:
        """Open the file, let `look` read it, and return what is to be believed of the result.

        Return None if `look` finds no fault, else the fault, or a word as `_check_structure`. `is_complete`: `look`
        reads everything, so that a sound file need not be read again.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return _describe_open_error(error)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return "gone"
            digest = identify(path, status)
            if digest in self.known:
                return "known"
            try:
                found = look(descriptor, status)
            except OSError as error:
                found = _describe_read_error(error, descriptor)
                if found is None:
                    return "gone"
            except CheckStopped:
                raise
            except Exception:
                # A check that fails itself says nothing about the file.
                return "gone"
            if not _is_same(path, status):
                return "unsettled"
            if found is None:
                if is_complete:
                    self.known.add(digest)
                return None
            if self.now() - status.st_mtime < SETTLED_S:
                return "unsettled"
            confirmed = self._confirm(path, status, found)
            if confirmed is None and is_complete:
                self.known.add(digest)
            return confirmed
        finally:
            os.close(descriptor)

    def _confirm(self, path: str, status: os.stat_result, found: ContentFault) -> ContentFault | str | None:
        """Ask the format's library about a fault. None: it reads the file without an error."""
        with open(path, "rb") as stream:
            head = stream.read(512)
        suffix = os.path.splitext(path)[1].lower()
        reader = select_reader(head, suffix, tfrecord=is_tfrecord(head))
        if not self.readers.has(reader) or not status.st_size or found.text.startswith(_BY_LIBRARY):
            return found
        state, text = self.readers.read(path, reader, status.st_size)
        if state == "sound":
            return None
        if state == "broken":
            return replace(found, certain=True, text=f"{found.text} ({text})" if text else found.text)
        return found


def _describe_open_error(error: OSError) -> ContentFault | str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return ContentFault("cannot be opened: permission denied", certain=False)
    if error.errno in _BROKEN_ERRORS:
        return ContentFault(f"cannot be opened: {error.strerror}")
    return "gone"


def _describe_read_error(error: OSError, descriptor: int) -> ContentFault | None:
    if error.errno not in _BROKEN_ERRORS:
        return None
    return ContentFault(f"cannot be read: {error.strerror}", os.lseek(descriptor, 0, os.SEEK_CUR))


def _is_same(path: str, before: os.stat_result) -> bool:
    """Return whether the path still names the file as it was before it was read."""
    try:
        after = os.stat(path)
    except OSError:
        return False
    fields = ("st_ino", "st_size", "st_mtime_ns")
    return all(getattr(after, name) == getattr(before, name) for name in fields)


def format_fault(fault: FileFault, chdir: str = "") -> str:
    """Return one sentence about the file without an end mark: its name, the fault, and the place."""
    name = fault.path.removeprefix(f"{chdir.rstrip('/')}/") if chdir else fault.path
    at = f" (at byte {fault.offset:,})" if fault.offset is not None else ""
    return f"{name} {fault.text}{at}"
