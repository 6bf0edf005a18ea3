"""Edge: a child process and our ends of its three pipes, by posix_spawn. Only host/run_command.py makes them.

As `subprocess.Popen` does it: nothing of ours is left open in the child, what Python ignores is given back to it, and
the program is looked for in the PATH of its own environment. `subprocess` itself, whose import costs every gsub 4 ms,
is there for what posix_spawn cannot do: another user, another directory, a system that is too old for it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

_NO_GROUP = 65534  # Linux's overflow gid, "nogroup"
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.05  # between two looks at whether it ended


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
        self.returncode: int | None = None  # -N: ended by signal N
        self._popen: subprocess.Popen[bytes] | None = None
        theirs, ours = _open_pipes(fed)
        self.stdin, self.stdout, self.stderr = ours
        try:
            if cwd is None and uid is None and min(theirs) > 2:
                with suppress(NotImplementedError):  # sessions are glibc's since 2.26
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
            except ChildProcessError:  # someone ignores SIGCHLD: no one knows how
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
        except OSError as error:  # there, but not to be run: perhaps a later one is
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
    except OSError:  # the listing's own, closed by now
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
