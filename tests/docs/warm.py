"""`slurmwrap` and `gsub` without the half second in which Python loads their modules: a process that has them forks.

All else is as in a process of its own: user, directory, environment, channels, exit code, the mounts of the caller.
`python warm.py SOCKET` serves until its standard input ends; `python -I -S warm.py SOCKET PROGRAM WORDS...` is a call.
"""

from __future__ import annotations

import array
import os
import socket
import sys

TYPE_CHECKING = False  # a call loads as little as it can
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen


class Call:
    """As it goes over the socket. `user` and `group`: -1 for the caller's own; root may name others."""

    def __init__(
        self, program: str, words: Sequence[str], cwd: str, environ: Mapping[str, str],
        mask: int = 0o22, user: int = -1, group: int = -1,
    ) -> None:  # fmt: skip
        self.program, self.words, self.cwd, self.environ = program, words, cwd, environ
        self.mask, self.user, self.group = mask, user, group

    def packed(self) -> bytes:
        """Texts between NULs, which none of them contains."""
        numbers = map(str, (self.mask, self.user, self.group, len(self.words)))
        environ = (f"{name}={value}" for name, value in self.environ.items())
        return os.fsencode("\0".join((self.program, self.cwd, *numbers, *self.words, *environ)))

    @classmethod
    def unpacked(cls, text: bytes) -> Call:
        program, cwd, mask, user, group, count, *rest = os.fsdecode(text).split("\0")
        environ = dict(pair.split("=", 1) for pair in rest[int(count) :])
        return cls(program, rest[: int(count)], cwd, environ, int(mask), int(user), int(group))


def ask(address: str, call: Call, channels: Sequence[int] = (0, 1, 2)) -> int:
    """The call's exit code, negative for a signal. The three descriptors become its standard ones."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        server.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", channels))])
        server.sendall(call.packed())
        server.shutdown(socket.SHUT_WR)
        return int(server.recv(16) or b"70")


def as_shell(address: str, program: str, words: list[str]) -> int:
    """A call with what this process has, and its exit code as a shell counts it."""
    mask = os.umask(0o22)
    code = ask(address, Call(program, words, os.getcwd(), os.environ, mask))  # noqa: PTH109
    return code if code >= 0 else 128 - code


def start(address: Path) -> Popen[str]:
    """A server on that socket, ready to be asked; as a context manager it ends with it."""
    import subprocess

    argv = [sys.executable, __file__, str(address)]
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
    assert server.stdout
    assert server.stdout.readline() == "ready\n"
    return server


def serve(address: str) -> None:
    """Answers calls, each in a process of its own, until standard input ends; calls that still run end then, too."""
    import gc
    import select
    import signal

    _load()
    gc.freeze()
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    os.chmod(address, 0o666)  # noqa: PTH101
    listening.listen(64)
    print("ready", flush=True)
    running: dict[int, socket.socket] = {}
    while 0 not in (ready := select.select([0, listening, woken], [], [])[0]):
        if listening in ready:
            caller, _ = listening.accept()
            running[_started(caller)] = caller
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
    os.killpg(0, signal.SIGKILL)


def _tell_ends(running: dict[int, socket.socket]) -> None:
    """To each caller whose call is over, how it ended."""
    from contextlib import suppress

    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with running.pop(child) as caller, suppress(BrokenPipeError):  # it did not wait
            caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _load() -> None:
    """What most commands import; the rest is loaded by the call that needs it."""
    import importlib
    import pkgutil

    import slurmwrap.cli

    modules = [found.name for found in pkgutil.iter_modules(slurmwrap.cli.__path__, "slurmwrap.cli.")]
    for name in (*modules, "psutil", "jinja2", "slurmwrap.store.session"):
        importlib.import_module(name)


def _started(caller: socket.socket) -> int:
    """Reads a call and starts it; returns its process id."""
    import struct

    _, ancillary, *_ = caller.recvmsg(1, socket.CMSG_SPACE(12))
    channels = array.array("i", ancillary[0][2])
    text = b""
    while more := caller.recv(1 << 16):
        text += more
    peer, user, group = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    call = Call.unpacked(text)
    if user == 0 and call.user >= 0:
        user, group = call.user, call.group
    child = os.fork()
    if child == 0:
        _become(call, channels, peer, user, group)
    for channel in channels:
        os.close(channel)
    return child


def _become(call: Call, channels: Sequence[int], peer: int, user: int, group: int) -> None:
    """The call itself: takes on its caller's identity and surroundings, runs the program's own main, ends."""
    import signal

    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, channel in enumerate(channels):
            os.dup2(channel, number)
            os.close(channel)
        _mounts_of(peer)
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        os.umask(call.mask)
        os.chdir(call.cwd)
        os.environ.clear()
        os.environ.update(call.environ)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, "rww"[number], closefd=False) for number in range(3))
        code = _run(call)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _run(call: Call) -> int:
    sys.argv = [call.program, *call.words]
    if call.program == "gsub":
        import runpy

        runpy.run_path(os.path.join(os.path.dirname(sys.executable), "gsub"), run_name="__main__")  # noqa: PTH118, PTH120
    from slurmwrap.cli.slurmwrap import main

    return int(main() or 0)


def _mounts_of(peer: int) -> None:
    """Root's shell of a page has mounts of its own, where what it writes is thrown away."""
    theirs = f"/proc/{peer}/ns/mnt"
    if os.readlink(theirs) != os.readlink("/proc/self/ns/mnt"):  # noqa: PTH115
        import ctypes

        namespace = os.open(theirs, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x20000) != 0:  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    sys.exit(as_shell(*sys.argv[1:3], sys.argv[3:]))
