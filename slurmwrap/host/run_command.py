"""Edge: the one place that runs another program. An argv list in, a result out; no shell, no exception for failure.

A program that cannot be started, fails or takes too long is a value, since every caller has a different answer to it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# `threading` is made of these, and costs every gsub 1 ms
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess


# A child process and our ends of its three pipes, by posix_spawn. Only host/run_command.py makes them.
#
# As `subprocess.Popen` does it: none of our files is left open in the child, what Python ignores is given back to it,
# and the program is looked for in the PATH of its own environment. `subprocess` itself, whose import costs every gsub
# 4 ms, is there for what posix_spawn cannot do: another user, another directory, a system that is too old for it.
_NO_GROUP = 65534  # Linux's overflow gid, "nogroup"
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Between two looks at whether it ended.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.05


class SpawnedProcess:
    """A process that runs `argv`. OSError when it cannot be started, ValueError for a NUL byte in an argument."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        program: str | None,
        environ: Mapping[str, str],
        fed: bool,
        session: bool,
        cwd: str | os.PathLike[str] | None,
        uid: int | None,
    ) -> None:
        self.pid = 0
        # -N: ended by signal N
        self.returncode: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        theirs, ours = _open_pipes(fed)
        self.stdin, self.stdout, self.stderr = ours
        try:
            if cwd is None and uid is None and min(theirs) > 2:
                # Sessions are glibc's since 2.26.
                with suppress(NotImplementedError):
                    self.pid = _spawn_program(program or argv[0], argv, environ, theirs, session)
            if not self.pid:
                self._popen = _open_by_popen(program, argv, environ, theirs, session, cwd, uid)
                self.pid = self._popen.pid
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        if self._popen is not None:
            self.returncode = self._popen.poll()
        elif self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Someone ignores SIGCHLD: no one knows how.
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, deadline: float) -> bool:
        """Whether it has ended by then (time.monotonic)."""
        pause = _FIRST_PAUSE_S
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True

    def send(self, number: int) -> None:
        """A signal to it; to no one once it is gone."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close_stdin(self) -> None:
        """The end of what it reads."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close(self) -> None:
        """Our ends of its pipes."""
        self.close_stdin()
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)


def _open_pipes(fed: bool) -> tuple[tuple[int, int, int], tuple[int | None, int, int]]:
    """(stdin, stdout, stderr of the child, our ends of them). OSError when too many files are open."""
    made: list[int] = []
    try:
        made += os.pipe() if fed else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        made += os.pipe()
        made += os.pipe()
    except OSError:
        for descriptor in made:
            if descriptor >= 0:
                os.close(descriptor)
        raise
    return (made[0], made[3], made[5]), (made[1] if fed else None, made[2], made[4])


def _spawn_program(
    name: str, argv: Sequence[str], environ: Mapping[str, str], streams: tuple[int, int, int], session: bool
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    closed = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _list_inherited_descriptors()]
    refused: OSError | None = None
    for place in _list_program_paths(name, environ):
        try:
            return os.posix_spawn(
                place,
                list(argv),
                environ,
                file_actions=[*actions, *closed],
                setsid=session,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            # There, but not to be run: perhaps a later one is.
            refused = refused or error
    raise refused or missing


def _list_program_paths(name: str, environ: Mapping[str, str]) -> list[str]:
    """Where the program may be, at least one."""
    if "/" in name:
        return [name]
    places = [os.path.join(folder, name) for folder in environ.get("PATH", os.defpath).split(os.pathsep)]
    return [place for place in places if os.path.lexists(place)] or [name]


def _list_inherited_descriptors() -> list[int]:
    """What anyone who started us left open for their children: not meant for ours."""
    found = (int(name) for name in os.listdir("/proc/self/fd"))
    return [descriptor for descriptor in found if descriptor > 2 and _is_inheritable(descriptor)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        # The listing's own, closed by now.
        return False


def _open_by_popen(
    program: str | None,
    argv: Sequence[str],
    environ: Mapping[str, str],
    streams: tuple[int, int, int],
    session: bool,
    cwd: str | os.PathLike[str] | None,
    uid: int | None,
) -> subprocess.Popen[bytes]:
    import subprocess

    stdin, stdout, stderr = streams
    return subprocess.Popen(
        argv,
        executable=program,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environ,
        cwd=cwd,
        start_new_session=session,
        user=uid,
        group=None if uid is None else _NO_GROUP,
        extra_groups=None if uid is None else (),
    )


_CHUNK = 1 << 16  # the size of a pipe's buffer in Linux
_TICK_S = 0.05  # how often to look whether a child ended whose pipes someone else still holds
_MOST_OF_OTHERS = 1 << 14  # bytes of each output: a command that runs as someone else is theirs, and may say anything
_GRACE_S = 0.4  # for the kernel to end a killed child; a child in D state may never end

Heard = Callable[[bytes, bytes], None]

# Killed, not yet dead; reaped when the next command runs.
_abandoned: list[SpawnedProcess] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What became of one command."""

    argv: tuple[str, ...]
    # None: it never started or was killed by us; -N: ended by signal N.
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    # Killed at the time-out; what it wrote until then is kept.
    timed_out: bool = False
    # It could not be started; `stderr` says why.
    missing: bool = False

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
    result. `heard` gets both outputs so far whenever they grew. `meanwhile`: something short of the caller's, done
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
        # Whenever we come back: what it has said by then is there to be read.
        late = time.monotonic() + _GRACE_S
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
    except (OSError, ValueError) as error:
        # ValueError: a NUL byte in an argument.
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
    finally:
        # Also on Ctrl-C: a child with its own session would not see it.
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
    """Our SIGTERM and SIGHUP are the child's, unless we were started with them ignored (nohup), or are a thread."""
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
    except (ProcessLookupError, PermissionError):
        # Gone already, or it changed its user.
        child.send(signal.SIGKILL)
    if not child.wait(time.monotonic() + _GRACE_S):
        _abandoned.append(child)


def _reap_abandoned() -> None:
    for child in tuple(_abandoned):
        if child.poll() is not None:
            with suppress(ValueError):  # another thread was quicker
                _abandoned.remove(child)


if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


# One piece of work next to us, for what mostly waits for another process.
def start_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Starts `work` at once; no one waits for it at the program's end. What comes back waits, and gives its value."""
    found: list[T] = []
    raised: list[BaseException] = []
    running = allocate_lock()

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            raised.append(error)
        finally:
            running.release()

    def result() -> T:
        with running:
            if raised:
                raise raised[0]
            return found[0]

    running.acquire()
    start_new_thread(run, ())
    return result
