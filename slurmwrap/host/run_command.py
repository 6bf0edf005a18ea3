"""Edge: the one place that runs another program. An argv list in, a result out; no shell, no exception for failure.

A program that cannot be started, fails or takes too long is a value, since every caller has a different answer to it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.spawn import SpawnedProcess

_CHUNK = 1 << 16  # the size of a pipe's buffer in Linux
_TICK_S = 0.05  # how often to look whether a child ended whose pipes someone else still holds
_MOST_OF_OTHERS = 1 << 14  # bytes of each output: a command that runs as someone else is theirs, and may say anything
_GRACE_S = 0.4  # for the kernel to end a killed child; a child in D state may never end

Heard = Callable[[bytes, bytes], None]

_abandoned: list[SpawnedProcess] = []  # killed, not yet dead; reaped when the next command runs


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
    program: str | None = None,
    session: bool = True,
    heard: Heard | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> CommandResult:
    """Runs `argv` in a session of its own and returns within `timeout_s` + 0.5 s, whatever the program does.

    `environ` None: ours with LC_ALL=C, so that texts can be compared. `stdin` None: /dev/null. Both outputs are kept
    whole. A background process of the command that holds the pipes open is not waited for. `uid`: whom to become
    first, without any group of slurmwrap's; only root can. Of what such a command says only the beginning is kept.

    `program`: the file to start, where argv[0] is to say something else. `session` False: it stays in our session and
    process group, so that the terminal's Ctrl-C is for both, and what would end us goes to it: how it ends is then the
    result. `heard` is told both outputs so far whenever they grew. `meanwhile`: something short of the caller's, done
    once the program runs and before anything is read of it.
    """
    deadline = time.monotonic() + timeout_s
    child = _start_process(argv, program, environ, stdin is not None, session, cwd, uid)
    if isinstance(child, CommandResult):
        return child
    _feed_small_input(child, stdin)
    most = sys.maxsize if uid is None else _MOST_OF_OTHERS
    return _wait_for_end(child, argv, stdin, deadline, most, session, heard, meanwhile)


def start_command(
    argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None, environ: Mapping[str, str] | None = None
) -> Callable[[], CommandResult]:
    """`run` in two: the program is started now, and what comes back, to be called once, waits for its end."""
    deadline = time.monotonic() + timeout_s
    child = _start_process(argv, None, environ, stdin is not None, True, None, None)
    if isinstance(child, SpawnedProcess):
        _feed_small_input(child, stdin)

    def ended() -> CommandResult:
        if isinstance(child, CommandResult):
            return child
        late = time.monotonic() + _GRACE_S  # whenever we come back: what it has said by then is there to be read
        return _wait_for_end(child, argv, stdin, max(deadline, late), sys.maxsize, True, None)

    return ended


def start_unfed_command(argv: Sequence[str], *, timeout_s: float) -> Callable[[bytes], CommandResult]:
    """`run` in two, for an input that is not known yet: what comes back, to be called once, gives it and waits.

    The time-out counts from then. Where it is never called the program reads an end of file when we end.
    """
    child = _start_process(argv, None, None, True, True, None, None)

    def fed(stdin: bytes) -> CommandResult:
        if isinstance(child, CommandResult):
            return child
        return _wait_for_end(child, argv, stdin, time.monotonic() + timeout_s, sys.maxsize, True, None)

    return fed


def _start_process(
    argv: Sequence[str],
    program: str | None,
    environ: Mapping[str, str] | None,
    fed: bool,
    session: bool,
    cwd: str | os.PathLike[str] | None,
    uid: int | None,
) -> SpawnedProcess | CommandResult:
    _reap_abandoned()
    environ = {**os.environ, "LC_ALL": "C"} if environ is None else environ
    try:
        return SpawnedProcess(argv, program=program, environ=environ, fed=fed, session=session, cwd=cwd, uid=uid)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in an argument
        reason = f"{program or (argv[0] if argv else '')}: {getattr(error, 'strerror', None) or error}"
        return CommandResult(
            argv=tuple(argv), exit_code=None, stdout=b"", stderr=os.fsencode(reason), timed_out=False, missing=True
        )


def _feed_small_input(child: SpawnedProcess, stdin: bytes | None) -> None:
    """An empty pipe takes it whole: no one needs to come back for it."""
    if child.stdin is not None and stdin is not None and len(stdin) <= select.PIPE_BUF:
        with suppress(BrokenPipeError):
            os.write(child.stdin, stdin)
        child.close_stdin()


def _wait_for_end(
    child: SpawnedProcess,
    argv: Sequence[str],
    stdin: bytes | None,
    deadline: float,
    most: int,
    session: bool,
    heard: Heard | None,
    meanwhile: Callable[[], None] | None = None,
) -> CommandResult:
    ended, (stdout, stderr) = False, (bytearray(), bytearray())
    try:
        with nullcontext() if session else _forward_signals(child):
            if meanwhile is not None:
                meanwhile()
            ended = _exchange_data(child, stdin or b"", (stdout, stderr), deadline, most, heard) and child.wait(
                deadline
            )
    finally:  # also on Ctrl-C: a child with its own session would not see it
        if not ended:
            _kill(child, session)
        child.close()
    return CommandResult(
        argv=tuple(argv),
        exit_code=child.returncode if ended else None,
        stdout=bytes(stdout),
        stderr=bytes(stderr),
        timed_out=not ended,
        missing=False,
    )


@contextmanager
def _forward_signals(child: SpawnedProcess) -> Iterator[None]:
    """SIGTERM and SIGHUP of ours are the child's, unless we were started with them ignored (nohup), or are a thread."""
    kept = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                with suppress(ValueError):
                    kept[number] = signal.signal(number, lambda got, _: child.send(got))
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def _exchange_data(
    child: SpawnedProcess,
    stdin: bytes,
    kept: tuple[bytearray, bytearray],
    deadline: float,
    most: int,
    heard: Heard | None,
) -> bool:
    """Feeds and reads all pipes at once until both outputs end or the child does; False at the deadline."""
    pending, over = memoryview(stdin), False
    buffers = {child.stdout: kept[0], child.stderr: kept[1]}
    poller = _make_poller(child)
    while buffers:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        events = poller.poll(0 if over else 1000 * min(left, _TICK_S))
        if not events and over:
            return True  # all it wrote is read; only a background process holds the pipes
        # it may speak and end between these two calls: all of it is read when we look again after its end
        over = not events and child.poll() is not None
        for descriptor, _ in events:
            if descriptor == child.stdin:
                pending = _feed_input(poller, child, pending)
            elif chunk := os.read(descriptor, _CHUNK):
                buffer = buffers[descriptor]
                buffer.extend(chunk[: max(0, most - len(buffer))])
                if heard is not None:
                    heard(bytes(kept[0]), bytes(kept[1]))
            else:
                poller.unregister(descriptor)
                del buffers[descriptor]
    return True


def _make_poller(child: SpawnedProcess) -> select.poll:
    poller = select.poll()
    poller.register(child.stdout, select.POLLIN)
    poller.register(child.stderr, select.POLLIN)
    if child.stdin is not None:
        os.set_blocking(child.stdin, False)
        poller.register(child.stdin, select.POLLOUT)
    return poller


def _feed_input(poller: select.poll, child: SpawnedProcess, pending: memoryview) -> memoryview:
    """Writes what fits; closes stdin at its end, or when the child reads no more."""
    assert child.stdin is not None
    try:
        pending = pending[os.write(child.stdin, pending[:_CHUNK]) :] if pending else pending
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        pending = pending[:0]
    if not pending:
        poller.unregister(child.stdin)
        child.close_stdin()
    return pending


def _kill(child: SpawnedProcess, group: bool) -> None:
    """Ends it, or its whole group. What does not die (D state) is left behind and reaped later: that may never end."""
    try:
        (os.killpg if group else os.kill)(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone already, or it changed its user
        child.send(signal.SIGKILL)
    if not child.wait(time.monotonic() + _GRACE_S):
        _abandoned.append(child)


def _reap_abandoned() -> None:
    for child in tuple(_abandoned):
        if child.poll() is not None:
            with suppress(ValueError):  # another thread was quicker
                _abandoned.remove(child)
