"""Edge: the one place that runs another program. An argv list in, a result out; no shell, no exception for failure.

A program that cannot be started, fails or takes too long is a value, since every caller has a different answer to it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

_CHUNK = 1 << 16  # the size of a pipe's buffer in Linux
_TICK_S = 0.05  # how often to look whether a child ended whose pipes somebody else still holds
_MOST_OF_OTHERS = 1 << 14  # bytes of each output: a command that runs as somebody else is his, and may say anything
_NO_GROUP = 65534  # Linux's overflow gid, "nogroup"
_GRACE_S = 0.4  # for the kernel to end a killed child; a child in D state may never end

_abandoned: list[subprocess.Popen[bytes]] = []  # killed, not yet dead; reaped when the next command runs


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What became of one command."""

    argv: tuple[str, ...]
    exit_code: int | None  # None: it never started or was killed by us; -N: ended by signal N
    stdout: bytes
    stderr: bytes
    timed_out: bool = False  # killed at the time-out; what it wrote until then is kept
    missing: bool = False  # it could not be started; `stderr` says why

    @property
    def ok(self) -> bool:
        """It ran to its end and said 0."""
        return self.exit_code == 0


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: bytes | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    uid: int | None = None,
) -> CommandResult:
    """Runs `argv` in a session of its own and returns within `timeout_s` + 0.5 s, whatever the program does.

    `environ` None: ours with LC_ALL=C, so that texts can be compared. `stdin` None: /dev/null. Both outputs are kept
    whole. A background process of the command that holds the pipes open is not waited for. `uid`: whom to become
    first, without any group of ours; only root can. Of what such a command says only the beginning is kept.
    """
    _reap_abandoned()
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ) if environ is not None else {**os.environ, "LC_ALL": "C"},
            cwd=cwd,
            start_new_session=True,
            user=uid,
            group=None if uid is None else _NO_GROUP,
            extra_groups=None if uid is None else (),
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
        reason = f"{argv[0] if argv else ''}: {getattr(error, 'strerror', None) or error}"
        return CommandResult(
            argv=tuple(argv), exit_code=None, stdout=b"", stderr=os.fsencode(reason), timed_out=False, missing=True
        )
    ended, (stdout, stderr) = False, (bytearray(), bytearray())
    try:
        most = sys.maxsize if uid is None else _MOST_OF_OTHERS
        ended = _talk(process, stdin or b"", (stdout, stderr), deadline, most) and _wait(process, deadline)
    finally:  # also on Ctrl-C: the child has its own session and would not see it
        if not ended:
            _kill(process)
        _close(process)
    return CommandResult(
        argv=tuple(argv),
        exit_code=process.returncode if ended else None,
        stdout=bytes(stdout),
        stderr=bytes(stderr),
        timed_out=not ended,
        missing=False,
    )


def _talk(
    process: subprocess.Popen[bytes], stdin: bytes, kept: tuple[bytearray, bytearray], deadline: float, most: int
) -> bool:
    """Feeds and reads all pipes at once until both outputs end or the child does; False at the deadline."""
    pending = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        _register(selector, process, kept)
        while any(key.data is not None for key in selector.get_map().values()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            events = selector.select(min(left, _TICK_S))
            if not events and process.poll() is not None:
                return True  # all it wrote is read; only a background process holds the pipes
            for key, _ in events:
                if key.data is None:
                    pending = _feed(selector, key, pending)
                elif chunk := os.read(key.fd, _CHUNK):
                    key.data.extend(chunk[: max(0, most - len(key.data))])
                else:
                    selector.unregister(key.fileobj)
    return True


def _register(
    selector: selectors.BaseSelector, process: subprocess.Popen[bytes], kept: tuple[bytearray, bytearray]
) -> None:
    for pipe, buffer in ((process.stdout, kept[0]), (process.stderr, kept[1])):
        assert pipe is not None
        selector.register(pipe, selectors.EVENT_READ, buffer)
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE, None)


def _feed(selector: selectors.BaseSelector, key: selectors.SelectorKey, pending: memoryview) -> memoryview:
    """Writes what fits; closes stdin at its end, or when the child reads no more."""
    try:
        pending = pending[os.write(key.fd, pending[:_CHUNK]) :] if pending else pending
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        pending = pending[:0]
    if not pending:
        selector.unregister(key.fileobj)
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
        pipe.close()
    return pending


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the whole group. What does not die (D state) is left behind and reaped later: waiting could take forever."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone already, or it changed its user
        process.kill()
    if not _wait(process, time.monotonic() + _GRACE_S):
        _abandoned.append(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):  # stdin with unsent bytes
                pipe.close()


def _reap_abandoned() -> None:
    for process in tuple(_abandoned):
        if process.poll() is not None:
            with suppress(ValueError):  # another thread was quicker
                _abandoned.remove(process)
