"""Programs of slurmwrap's next to a trial, in its allocation: started, read without waiting, ended. Edge: processes.

A child that waits in a driver or a file system that hangs (D state) survives SIGKILL: nothing here waits for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

# For killed children to be gone; a stuck one is left behind.
GRACE_S = 1.0
# bytes of an unfinished line
_CAP = 1 << 20


class HelperProcess:
    """A program with its output on a pipe; stderr goes nowhere. Raises OSError when it cannot be started."""

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
        """Of the child."""
        return self._process.pid

    def lines(self) -> list[bytes]:
        """Whole lines that have come since the last call; never waits."""
        # BlockingIOError: nothing there now; ValueError: closed.
        with suppress(OSError, ValueError):
            while chunk := os.read(self._output.fileno(), 1 << 16):
                self._rest += chunk
                if len(self._rest) > _CAP and b"\n" not in chunk:
                    self._rest = b""
        *whole, self._rest = self._rest.split(b"\n")
        return whole

    def kill(self) -> None:
        """Tells it to end; `gone` says whether it has. Nothing more is read from it."""
        with suppress(OSError):
            self._process.kill()
        self._output.close()

    @property
    def gone(self) -> bool:
        """It has ended and was reaped."""
        return self._process.poll() is not None


def make_python_command(*arguments: str) -> list[str]:
    """Our own interpreter, deaf to the user's environment."""
    return [sys.executable, "-I", *arguments]


def end(children: Sequence[HelperProcess]) -> None:
    """Ends them; what does not die within GRACE_S is left behind."""
    for child in children:
        child.kill()
    late = time.monotonic() + GRACE_S
    while not all(child.gone for child in children) and time.monotonic() < late:
        time.sleep(0.005)
