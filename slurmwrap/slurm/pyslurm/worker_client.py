"""Client of worker.py: one request, one answer in a line, each within a deadline."""

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
# PIPE_BUF: so much can be written where select says that anything can.
_PIECE = 4096
_GRACE_S = 0.5


class LineProgram:
    """`argv`, started at the first line in a session of its own, in "/", with this environment and without stderr."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._argv = argv
        self._environ = environ
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, line: bytes, timeout_s: float) -> bytes:
        """The line that answers `line`. TimeoutError at the deadline, OSError when it ended; it is gone then."""
        deadline = time.monotonic() + timeout_s
        try:
            child = self._child = self._child or self._start()
            _send(child, line, deadline)
            return _receive(child, deadline)
        except BaseException:
            # Ctrl-C too: the rest of an answer must not be taken for the next one.
            self.close()
            raise

    def close(self) -> None:
        """Ends the program. It reads the end of its input when we end without this."""
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
            # In D state; Popen reaps it when the next one is started.
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
            start_new_session=True,  # Ctrl-C is for us
        )
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        return child


def _send(child: subprocess.Popen[bytes], line: bytes, deadline: float) -> None:
    assert child.stdin is not None
    left = memoryview(line)
    while left:
        _wait(child.stdin.fileno(), selectors.EVENT_WRITE, deadline)
        try:
            left = left[os.write(child.stdin.fileno(), left[:_PIECE]) :]
        except BrokenPipeError:
            raise OSError(_describe_exit(child)) from None


def _receive(child: subprocess.Popen[bytes], deadline: float) -> bytes:
    assert child.stdout is not None
    heard = bytearray()
    # One answer to one question: nothing comes behind it.
    while not heard.endswith(b"\n"):
        _wait(child.stdout.fileno(), selectors.EVENT_READ, deadline)
        chunk = os.read(child.stdout.fileno(), _CHUNK)
        if not chunk:
            raise OSError(_describe_exit(child))
        heard += chunk
    return bytes(heard)


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
    """PySlurm cannot do it, and Slurm was not asked: the commands can."""


class SlurmRefused(Exception):
    """Slurm said no. `said`: what libslurm printed besides."""

    def __init__(self, words: str, said: str) -> None:
        super().__init__(words)
        self.said = said


class WorkerTimeout(Exception):
    """No answer in time, or the child ended over it: no one knows whether Slurm heard the request."""


class Link:
    """A worker with `environ` as its environment, started at the first request."""

    def __init__(self, environ: Mapping[str, str], timeout_s: float) -> None:
        # -P: neither the directory of worker.py nor the current one may hold a "pyslurm"
        argv = [sys.executable, "-P", str(_WORKER)]
        self._program = LineProgram(argv, {**environ, "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"})
        self._timeout_s = timeout_s
        # Why nothing is asked any more.
        self.broken = ""

    def ask(self, task: str, given: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """The answer. Raises Unfit, Refused or Silent."""
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
        """Ends the child; it also ends by itself when we do."""
        self._program.close()

    def _exchange_line(self, line: bytes, timeout_s: float) -> bytes:
        try:
            return self._program.ask(line, timeout_s)
        except TimeoutError:
            raise WorkerTimeout(f"PySlurm: no answer within {timeout_s:g} s") from None
        except OSError as error:
            self.broken = f"PySlurm's process ended ({error})"
            raise WorkerTimeout(self.broken) from None
