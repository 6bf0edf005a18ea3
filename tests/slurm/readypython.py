"""Runs `gsub`, `slurmwrap` and `python -m slurmwrap.cli.NAME` as forks of a process that has already imported them.

Most of the time of a `slurmwrap` command is spent on imports. Each fork has its own account, environment, directory,
standard streams and exit code. Commands that need a new Python are started as usual (`can_fork`), and so are processes
that a test starts itself.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pwd
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

MODULES = ("slurmwrap.cli.slurmwrap", "slurmwrap.gsub.gsub_main", "slurmwrap.cli.lab")
GSUB, SLURMWRAP = (str(Path(sys.executable).parent / name) for name in ("gsub", "slurmwrap"))
_START_PREFIXES = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "SLURMWRAP_STAGES", "COLUMNS", "TERMINAL_WIDTH", "NO_COLOR")
_EXPECTED_ENVIRON = {"PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account of the process. `becomes`: it may change to other users, see slurmwrap.lab.daemons.as_service_of."""

    uid: int
    gid: int
    becomes: bool = False


def can_fork(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether this command is imported already and its environment does not affect the start of Python or libc."""
    module = argv[0] == sys.executable and len(argv) > 2 and argv[1] == "-m" and argv[2] in MODULES
    if not module and argv[0] not in (GSUB, SLURMWRAP):
        return False
    starts_daemons = argv[1:3] == ["lab", "up"] or argv[2:4] == ["slurmwrap.cli.lab", "up"]
    if starts_daemons:  # the daemons would inherit the environment of the server
        return False
    return {name: value for name, value in environ.items() if name.startswith(_START_PREFIXES)} == _EXPECTED_ENVIRON


class _Server:
    """The process that forks: one for each pytest process, started with the first command."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lock = threading.Lock()
        environ = {"PATH": os.environ["PATH"], **_EXPECTED_ENVIRON}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], env=environ, cwd="/",
            )  # fmt: skip
        atexit.register(self.end)

    def end(self) -> None:
        self.socket.close()
        self.process.wait(10)

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        handle = os.memfd_create("request")
        try:
            os.write(handle, json.dumps(request).encode())
            sent = array.array("i", [handle, *descriptors])
            with self.lock:
                self.socket.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)])
        finally:
            os.close(handle)


_server: _Server | None = None


def run(
    argv: Sequence[str], environ: Mapping[str, str], cwd: str, account: Account | None, stdin: str, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run with captured output. `account`: None for that of pytest."""
    global _server
    _server = _server or _Server()
    pipes = [os.pipe() for _ in range(4)]  # stdin, stdout, stderr, (pid and exit code)
    ours = [pipes[0][1], *(pipe[0] for pipe in pipes[1:])]
    theirs = [pipes[0][0], *(pipe[1] for pipe in pipes[1:])]
    try:
        account_fields = account and asdict(account)
        _server.start({"argv": list(argv), "environ": dict(environ), "cwd": cwd, "account": account_fields}, theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    feeder = threading.Thread(target=_feed, args=(ours[0], stdin.encode()))
    feeder.start()
    status = _Reader(ours[3])
    readers = [_Reader(descriptor) for descriptor in ours[1:3]]
    deadline = time.monotonic() + timeout
    try:
        for reader in (*readers, status):
            reader.thread.join(max(0.0, deadline - time.monotonic()))
            if reader.thread.is_alive():
                raise subprocess.TimeoutExpired(list(argv), timeout, readers[0].content, readers[1].content)
    except BaseException:  # also the timeout of pytest, and Ctrl-C
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(int(status.content.split()[0]), signal.SIGKILL)
        raise
    feeder.join()
    out, err = (reader.content.decode(errors="replace").replace("\r\n", "\n") for reader in readers)
    return subprocess.CompletedProcess(list(argv), int(status.content.split()[1]), out, err)


class _Reader:
    def __init__(self, descriptor: int) -> None:
        self.content = b""
        self.thread = threading.Thread(target=self._read, args=(descriptor,), daemon=True)
        self.thread.start()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as pipe:
            while chunk := pipe.read(65536):
                self.content += chunk


def _feed(descriptor: int, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(content)


# ------------------------------------------------------------------------------------------- in the server


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in each fork, with its request; ends the server when pytest has ended."""
    waking, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status_pipes: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, waking], [], [])
        if waking in ready:
            os.read(waking, 4096)
        while status_pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _send(status_pipes[pid], f"{os.waitstatus_to_exitcode(status)}\n")
            os.close(status_pipes.pop(pid))
        if requests in ready:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 5)
            if not message:
                os._exit(0)
            handle, *streams, status_to = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.lseek(handle, 0, os.SEEK_SET)
                request = json.loads(os.read(handle, 1 << 24))
                for number, descriptor in enumerate(streams):
                    os.dup2(descriptor, number)
                requests.detach()
                os.closerange(3, 1024)
                return request  # type: ignore[no-any-return]
            status_pipes[pid] = status_to
            _send(status_to, f"{pid} ")
            for descriptor in (handle, *streams):
                os.close(descriptor)


def _send(descriptor: int, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, text.encode())


def _become(request: Mapping[str, Any]) -> None:
    """Changes to the directory, account, environment and arguments of the request."""
    os.chdir(request["cwd"])
    if request["account"]:
        _change_to(Account(**request["account"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = request["argv"]
    sys.path[0] = request["cwd"]


def _run() -> NoReturn:
    """Runs the program that sys.argv names."""
    if sys.argv[0] != sys.executable:
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(0)
    module = sys.modules[sys.argv[2]]
    sys.argv = [str(module.__file__), *sys.argv[3:]]
    sys.exit(module.main() if hasattr(module, "main") else module.app())


def _change_to(account: Account) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(failed: int) -> None:
        if failed:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    groups = os.getgrouplist(pwd.getpwuid(account.uid).pw_name, account.gid) if account.becomes else []
    os.setgroups(groups)
    os.setresgid(account.gid, account.gid, account.gid)
    if account.becomes:
        check(libc.prctl(8, 1, 0, 0, 0))  # PR_SET_KEEPCAPS
    os.setresuid(account.uid, account.uid, account.uid)
    if account.becomes:
        both = 1 << 6 | 1 << 7  # CAP_SETGID, CAP_SETUID: effective, permitted, inheritable
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        check(libc.capset(header, (ctypes.c_uint32 * 6)(both, both, both, 0, 0, 0)))
        for capability in (6, 7):
            check(libc.prctl(47, 2, capability, 0, 0))  # PR_CAP_AMBIENT_RAISE
        check(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    check(libc.prctl(4, 1, 0, 0, 0))  # PR_SET_DUMPABLE: /proc/self belongs to the new account, as after an exec


def _load() -> None:
    """Imports all that a command needs before it parses its arguments, including all subcommands."""
    import typer.main

    from slurmwrap.diagnosis.signatures import get_default_signatures

    for name in MODULES:
        importlib.import_module(name)
    typer.main.get_command = functools.cache(typer.main.get_command)
    commands = typer.main.get_command(sys.modules[MODULES[0]].app).commands
    list(commands.values())  # a subcommand is imported when it is accessed
    get_default_signatures()
    gc.collect()
    gc.freeze()  # forks then do not collect the imported objects


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    _load()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    _run()
