"""A pager for output that is longer than the terminal, as git and systemctl have it.

`PagedOutput` stands in for standard output on a terminal. Lines are kept until there are more than the terminal has;
then the pager starts and gets everything. $PAGER names it, `less` is the default, `cat` and an empty value turn it
off. For root and under sudo only `less` in its secure mode is used: a sudo rule for one command
must not become a shell (systemctl(1), SYSTEMD_PAGERSECURE).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import TextIO

_LESS = "less"


def find_pager(environ: Mapping[str, str], uid: int) -> list[str]:
    """The pager's command line; empty where none is wanted or installed. `uid` is the effective user id."""
    named = environ.get("PAGER", _LESS)
    try:
        words = shlex.split(named)
    except ValueError:
        return []
    if not words or words[0] == "cat":
        return []
    if _must_be_secure(environ, uid):
        words = [_LESS]
    return words if shutil.which(words[0]) else []


def _must_be_secure(environ: Mapping[str, str], uid: int) -> bool:
    return uid == 0 or "SUDO_USER" in environ


class PagedOutput:
    """A text stream for `terminal`; `finish()` writes what is left and waits until the reader leaves the pager."""

    def __init__(self, terminal: TextIO, pager: list[str], rows: int) -> None:
        self._terminal, self._pager, self._rows = terminal, pager, rows
        self._kept: list[str] = []
        self._lines = 0
        self._process: subprocess.Popen[str] | None = None
        self.encoding = terminal.encoding
        self.errors = terminal.errors

    def write(self, text: str) -> int:
        """Keep `text`, or pass it on. After the reader has left the pager it goes nowhere. TypeError, as io has it."""
        # typer finds out by b"" whether a stream takes bytes.
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._process is not None:
            self._send(text)
        else:
            self._kept.append(text)
            self._lines += text.count("\n")
            # The last row is the shell's prompt.
            if self._lines >= self._rows:
                self._start()
        return len(text)

    def flush(self) -> None:
        """Nothing: whether a pager is needed is known at the end."""

    def isatty(self) -> bool:
        """True: colours and width are the terminal's."""
        return True

    def fileno(self) -> int:
        """The terminal's, for its width."""
        return self._terminal.fileno()

    def finish(self) -> None:
        """Write what was kept, or wait for the pager."""
        if self._process is None:
            self._terminal.write("".join(self._kept))
            self._terminal.flush()
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while self._process.poll() is None:
            # Ctrl-C in the pager is the pager's.
            with contextlib.suppress(KeyboardInterrupt):
                self._process.wait()

    def _start(self) -> None:
        text = "".join(self._kept)
        environ = {"LESS": "FRX", **os.environ}
        if _must_be_secure(os.environ, os.geteuid()):
            environ["LESSSECURE"] = "1"
        try:
            self._process = subprocess.Popen(
                self._pager, stdin=subprocess.PIPE, env=environ, text=True, encoding=self.encoding, errors=self.errors
            )
        except OSError:
            self._pager, self._rows = [], 1 << 62
            return
        self._kept = []
        self._send(text)

    def _send(self, text: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(text)
