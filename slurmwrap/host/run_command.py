"""Run other programs (adapter): takes an argv list and returns a result; no shell, and no exception for a failure.

A program that cannot be started, fails or takes too long gives a result, since each caller reacts to it differently.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import time

# `threading` is built on these; its import costs every gsub 1 ms.
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess


# A child process and this process's ends of its three pipes, by posix_spawn.
#
# It behaves as `subprocess.Popen`: no file of this process stays open in the child, signals that Python ignores get
# their default action again, and the program is searched in the PATH of the child's environment. `subprocess` itself,
# whose import costs every gsub 4 ms, is used only for what posix_spawn cannot do: another user, another directory, or
# a system that is too old for it.
_NO_GROUP = 65534  # Linux's overflow gid, "nogroup"
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Seconds between two checks whether the child has ended.
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
        # -N: ended by signal N.
        self.returncode: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        child_ends, own_ends = _open_pipes(fed)
        self.stdin, self.stdout, self.stderr = own_ends
        try:
            if cwd is None and uid is None and min(child_ends) > 2:
                # glibc supports setsid here since 2.26.
                with suppress(NotImplementedError):
                    self.pid = _spawn_program(program or argv[0], argv, environ, child_ends, session)
            if not self.pid:
                self._popen = _open_by_popen(program, argv, environ, child_ends, session, cwd, uid)
                self.pid = self._popen.pid
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in child_ends:
                os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self._popen is not None:
            self.returncode = self._popen.poll()
        elif self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # SIGCHLD is ignored, so the exit code is unknown.
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, deadline: float) -> bool:
        """Wait until `deadline` (time.monotonic) and return whether the process has ended."""
        pause = _FIRST_PAUSE_S
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return True

    def send(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close_stdin(self) -> None:
        """Close the child's standard input."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close(self) -> None:
        """Close this process's ends of the pipes."""
        self.close_stdin()
        for descriptor in (self.stdout, self.stderr):
            os.close(descriptor)


def _open_pipes(fed: bool) -> tuple[tuple[int, int, int], tuple[int | None, int, int]]:
    """Return (stdin, stdout, stderr of the child; this process's ends). OSError when too many files are open."""
    descriptors: list[int] = []
    try:
        descriptors += os.pipe() if fed else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
        descriptors += os.pipe()
        descriptors += os.pipe()
    except OSError:
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        raise
    return (descriptors[0], descriptors[3], descriptors[5]), (
        descriptors[1] if fed else None,
        descriptors[2],
        descriptors[4],
    )


def _spawn_program(
    name: str, argv: Sequence[str], environ: Mapping[str, str], streams: tuple[int, int, int], session: bool
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
    closed = [(os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _list_inherited_descriptors()]
    # Not `name` itself where PATH has none: that would be a file of the working directory, which may be another user's.
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    first_error: OSError | None = None
    for path in _list_program_paths(name, environ):
        try:
            return os.posix_spawn(
                path,
                list(argv),
                environ,
                file_actions=[*actions, *closed],
                setsid=session,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            # The file exists but cannot be run; a later directory of PATH may have another one.
            first_error = first_error or error
    raise first_error or missing


def _list_program_paths(name: str, environ: Mapping[str, str]) -> list[str]:
    """Return the paths where the program may be. Relative directories of PATH are ignored, also the empty one."""
    if "/" in name:
        return [name]
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = [os.path.join(folder, name) for folder in folders if os.path.isabs(folder)]
    return [candidate for candidate in candidates if os.path.lexists(candidate)]


def _list_inherited_descriptors() -> list[int]:
    """Return descriptors that this process inherited and left inheritable; its children must not get them."""
    found = (int(name) for name in os.listdir("/proc/self/fd"))
    return [descriptor for descriptor in found if descriptor > 2 and _is_inheritable(descriptor)]


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:
        # This is the listing's own descriptor, which is closed by now.
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
_POLL_INTERVAL_S = 0.05  # how often to check whether the child has ended while another process still holds its pipes
# Maximum bytes of each output of a command that runs as another user, who controls it and may make it print anything.
_MAX_OUTPUT_OF_OTHER_USERS = 1 << 14
_GRACE_S = 0.4  # for the kernel to end a killed child; a child in D state may never end

Heard = Callable[[bytes, bytes], None]

# Children that were killed but have not ended yet; they are reaped when the next command runs.
_killed_children: list[SpawnedProcess] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of one command."""

    argv: tuple[str, ...]
    # None: it never started or was killed here; -N: ended by signal N.
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    # Killed at the time-out; the output until then is kept.
    timed_out: bool = False
    # It could not be started; `stderr` contains the reason.
    missing: bool = False

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit code 0."""
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
    """Run `argv` in its own session and return within `timeout_s` + 0.5 s, whatever the program does.

    `environ` None: this process's environment with LC_ALL=C, so that texts can be compared. `stdin` None: /dev/null.
    Both outputs are returned completely. A background process of the command that keeps the pipes open is not waited
    for. `uid`: run as this user without any group of slurmwrap's; only root can do that, and only the beginning of each
    output is returned.

    `program`: the file to start, if it differs from argv[0]. `session` False: the child stays in this session and
    process group, so that the terminal's Ctrl-C reaches both, and SIGTERM and SIGHUP are forwarded to it; the result
    is how it ends. `heard` is called with both outputs so far whenever they grow. `meanwhile`: a short function that is
    called once the program runs, before its output is read.
    """
    deadline = time.monotonic() + timeout_s
    child = _start_process(argv, program, environ, stdin is not None, session, cwd, uid)
    if isinstance(child, CommandResult):
        return child
    _feed_small_input(child, stdin)
    most = sys.maxsize if uid is None else _MAX_OUTPUT_OF_OTHER_USERS
    return _wait_for_end(child, argv, stdin, deadline, most, session, heard, meanwhile)


def start_detached(argv: Sequence[str]) -> Callable[[], int | None]:
    """Start a program that may outlive this process: in its own session, in /, with /dev/null as all three files.

    The returned function gives its exit code, None while it runs. OSError when it cannot be started.
    """
    import subprocess

    null = subprocess.DEVNULL
    child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    return child.poll


def start_command(
    argv: Sequence[str], *, timeout_s: float, stdin: bytes | None = None, environ: Mapping[str, str] | None = None
) -> Callable[[], CommandResult]:
    """Start a program as `run` does. The returned function, to be called once, waits for its end."""
    deadline = time.monotonic() + timeout_s
    child = _start_process(argv, None, environ, stdin is not None, True, None, None)
    if isinstance(child, SpawnedProcess):
        _feed_small_input(child, stdin)

    def wait_for_result() -> CommandResult:
        if isinstance(child, CommandResult):
            return child
        # However late it is called, the output that was written until then can still be read.
        earliest_deadline = time.monotonic() + _GRACE_S
        return _wait_for_end(child, argv, stdin, max(deadline, earliest_deadline), sys.maxsize, True, None)

    return wait_for_result


def start_unfed_command(argv: Sequence[str], *, timeout_s: float) -> Callable[[bytes], CommandResult]:
    """Start a program whose input is not known yet. The returned function, to be called once, gives it and waits.

    The time-out counts from that call. If it is never called, the program reads an end of file when this process ends.
    """
    child = _start_process(argv, None, None, True, True, None, None)

    def feed_and_wait(stdin: bytes) -> CommandResult:
        if isinstance(child, CommandResult):
            return child
        return _wait_for_end(child, argv, stdin, time.monotonic() + timeout_s, sys.maxsize, True, None)

    return feed_and_wait


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
    """Write input that fits into the empty pipe at once, so that no later call is needed."""
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
        # Also on Ctrl-C, which a child in its own session would not receive.
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
    """Forward SIGTERM and SIGHUP to the child, unless they are ignored (nohup) or this is not the main thread."""
    old_handlers = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                with suppress(ValueError):
                    old_handlers[number] = signal.signal(number, lambda got, _: child.send(got))
        yield
    finally:
        for number, before in old_handlers.items():
            signal.signal(number, before)


def _exchange_data(
    child: SpawnedProcess,
    stdin: bytes,
    outputs: tuple[bytearray, bytearray],
    deadline: float,
    most: int,
    heard: Heard | None,
) -> bool:
    """Write input and read both outputs until they end or the child does; return False at the deadline."""
    pending, ended = memoryview(stdin), False
    buffers = {child.stdout: outputs[0], child.stderr: outputs[1]}
    poller = _make_poller(child)
    while buffers:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        events = poller.poll(0 if ended else 1000 * min(remaining, _POLL_INTERVAL_S))
        if not events and ended:
            return True  # all output of the child is read; only a background process holds the pipes
        # The child may print and end between these two calls, so the pipes are read once more after its end.
        ended = not events and child.poll() is not None
        for descriptor, _ in events:
            if descriptor == child.stdin:
                pending = _feed_input(poller, child, pending)
            elif chunk := os.read(descriptor, _CHUNK):
                buffer = buffers[descriptor]
                buffer.extend(chunk[: max(0, most - len(buffer))])
                if heard is not None:
                    heard(bytes(outputs[0]), bytes(outputs[1]))
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
    """Write what fits; close stdin at the end of the input, or when the child has closed it."""
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
    """Kill the child or its process group. One that does not end (D state) is reaped later."""
    try:
        (os.killpg if group else os.kill)(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # The process has ended or changed its user.
        child.send(signal.SIGKILL)
    if not child.wait(time.monotonic() + _GRACE_S):
        _killed_children.append(child)


def _reap_abandoned() -> None:
    for child in tuple(_killed_children):
        if child.poll() is not None:
            with suppress(ValueError):  # another thread has removed it
                _killed_children.remove(child)


if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")


# Run one function in a thread, for work that mostly waits for another process.
def start_in_background(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` in a thread that is not waited for at exit. The returned function waits and returns its value."""
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
