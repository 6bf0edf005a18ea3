"""Client of worker.py: one request line, one answer line, each with a time-out."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16
# PIPE_BUF: this many bytes can be written without blocking when select reports that a pipe is writable.
_PIECE = 4096
_GRACE_S = 0.5


class LineProgram:
    """A program, started at the first request in its own session, in "/", with this environment, without stderr."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._argv = argv
        self._environ = environ
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, line: bytes, timeout_s: float) -> bytes:
        """Return the line that answers `line`. TimeoutError or OSError (it ended): the program is closed then."""
        deadline = time.monotonic() + timeout_s
        try:
            child = self._child = self._child or self._start()
            _send(child, line, deadline)
            return _receive(child, deadline)
        except BaseException:
            # Also on Ctrl-C: the rest of an answer must not be taken for the next one.
            self.close()
            raise

    def close(self) -> None:
        """Kill the program. If this process ends without calling it, the program reads the end of its input."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            # The program is in D state; Popen reaps it when the next one is started.
            return

    def _start(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=self._environ,
            cwd="/",
            start_new_session=True,  # Ctrl-C must reach only this process
        )
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        return child


def _send(child: subprocess.Popen[bytes], line: bytes, deadline: float) -> None:
    assert child.stdin is not None
    remaining = memoryview(line)
    while remaining:
        _wait(child.stdin.fileno(), selectors.EVENT_WRITE, deadline)
        try:
            remaining = remaining[os.write(child.stdin.fileno(), remaining[:_PIECE]) :]
        except BrokenPipeError:
            raise OSError(_describe_exit(child)) from None


def _receive(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert child.stdout is not None
    received = bytearray()
    # There is one answer per request, so nothing follows the line.
    while not received.endswith(b"\n"):
        _wait(child.stdout.fileno(), selectors.EVENT_READ, deadline)
        chunk = os.read(child.stdout.fileno(), _CHUNK)
        if not chunk:
            raise OSError(_describe_exit(child))
        received += chunk
    return bytes(received)


def _describe_exit(child: subprocess.Popen[bytes]) -> str:
    try:
        return f"exit code {child.wait(_GRACE_S)}"
    except subprocess.TimeoutExpired:
        return "it closed its output"


def _wait(descriptor: int, event: int, deadline: float) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise TimeoutError


_WORKER = Path(__file__).with_name("worker.py")


class UnsupportedPyslurm(Exception):
    """PySlurm cannot do it and Slurm was not asked, so the commands can be used."""


class SlurmRefused(Exception):
    """Slurm refused the request. `said`: what libslurm printed."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message)
        self.said = said


class WorkerTimeout(Exception):
    """No answer in time, or the child ended: it is unknown whether Slurm received the request."""


class Link:
    """A worker process with `environ` as its environment, started at the first request."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        # -P: neither the directory of worker.py nor the current one may provide a module "pyslurm".
        argv = [sys.executable, "-P", str(_WORKER)]
        self._program = LineProgram(argv, {**environ, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"})
        self._timeout_s = timeout_s
        # Why no more requests are sent; "" while the worker can be used.
        self.broken = ""

    def ask(self, task: str, given: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Return the answer. Raises UnsupportedPyslurm, SlurmRefused or WorkerTimeout."""
        if self.broken:
            raise UnsupportedPyslurm(self.broken)
        line = json.dumps({"task": task, "with": dict(given or {})}).encode() + b"\n"
        answer = json.loads(self._exchange_line(line, self._timeout_s if timeout_s is None else timeout_s))
        if "unfit" in answer:
            raise UnsupportedPyslurm(answer["unfit"])
        if "refused" in answer:
            raise SlurmRefused(answer["refused"], answer["said"])
        return answer["ok"]

    def close(self) -> None:
        """End the child; it also ends by itself when this process ends."""
        self._program.close()

    def _exchange_line(self, line: bytes, timeout_s: float) -> bytes:
        try:
            return self._program.ask(line, timeout_s)
        except TimeoutError:
            raise WorkerTimeout(f"PySlurm: no answer within {timeout_s:g} s") from None
        except OSError as error:
            self.broken = f"PySlurm's process ended ({error})"
            raise WorkerTimeout(self.broken) from None
