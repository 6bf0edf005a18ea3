"""Run slurmwrap's own helper processes next to a trial: start, read without blocking, kill (adapter: processes).

A child that hangs in a driver or a file system (D state) survives SIGKILL, so nothing here waits for it without limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

# Seconds to wait for killed children to end; a stuck one is left behind.
GRACE_S = 1.0
# Maximum bytes of an unfinished line.
_MAX_LINE_BYTES = 1 << 20


class HelperProcess:
    """A program whose output is read from a pipe; its stderr is discarded. Raises OSError if it cannot be started."""

    def __init__(self, argv: Sequence[str]) -> None:
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(
            argv, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True, close_fds=True
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Pid of the child."""
        return self._process.pid

    def lines(self) -> list[bytes]:
        """Return the complete lines since the last call, without waiting."""
        # BlockingIOError: there is no more output now. ValueError: the pipe is closed.
        with suppress(OSError, ValueError):
            while chunk := os.read(self._output.fileno(), 1 << 16):
                self._rest += chunk
                if len(self._rest) > _MAX_LINE_BYTES and b"\n" not in chunk:
                    self._rest = b""
        *complete, self._rest = self._rest.split(b"\n")
        return complete

    def kill(self) -> None:
        """Send SIGKILL and close the pipe. `gone` reports whether the child has ended."""
        with suppress(OSError):
            self._process.kill()
        self._output.close()

    @property
    def gone(self) -> bool:
        """Whether the child has ended and was reaped."""
        return self._process.poll() is not None


def make_python_command(*arguments: str) -> list[str]:
    """Return the command line of slurmwrap's own interpreter, isolated from the user's environment (-I)."""
    return [sys.executable, "-I", *arguments]


def end(children: Sequence[HelperProcess]) -> None:
    """Kill the children. A child that does not end within GRACE_S is left behind."""
    for child in children:
        child.kill()
    late = time.monotonic() + GRACE_S
    while not all(child.gone for child in children) and time.monotonic() < late:
        time.sleep(0.005)
