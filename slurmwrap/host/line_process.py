"""Edge: a program that lives on and answers line by line, each within a deadline. run_command.py runs all others."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence

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
