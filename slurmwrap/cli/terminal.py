"""Terminal output of the commands: colour, the pager, widths, and the time arguments of --since."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import TextIO

from slurmwrap.console import STYLES, is_colour_wanted
from slurmwrap.errors import UsageError
from slurmwrap.report.job_report.job_report_text import Paint, plain

_UNIT_SECONDS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PERIOD = re.compile(r"([0-9]{1,6})(m|min|h|d|w)")


def choose_painter(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Paint:
    """Return the function that colours text for `stream` (stdout), or one that does not (console.is_colour_wanted)."""
    stream = sys.stdout if stream is None else stream
    return paint if is_colour_wanted(stream, environ) else plain


def paint(text: str, style: str) -> str:
    """Return `text` in a terminal style. Every line is coloured separately, so that a pager may cut between lines."""
    return "\n".join(f"\033[{STYLES[style]}m{line}\033[0m" for line in text.split("\n"))


# Largest width of a page in columns: longer lines are hard to read.
WIDEST = 110


def columns(stream: TextIO | None = None, *, least: int = 60, most: int = WIDEST) -> int:
    """Return the width of a page in columns: the terminal's, within limits; 80 if `stream` (stdout) is no terminal."""
    stream = sys.stdout if stream is None else stream
    try:
        wide = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        wide = 0
    # A serial console reports 0 columns.
    return max(least, min(most, wide)) if wide else 80


def can_print_blocks() -> bool:
    """Return whether the encoding of stdout has block characters."""
    try:
        "█◀±…".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def since(text: str, now: float, zone: tzinfo | None = None, *, option: str = "--since") -> float:
    """Convert `24h`, `7d`, `2w`, `30min` or a date (`2026-11-20`, `2026-11-20T06:00`) to Unix seconds.

    `option` is named in the error message. Raise UsageError.
    """
    period = _PERIOD.fullmatch(text)
    if period:
        return now - int(period[1]) * _UNIT_SECONDS[period[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, OverflowError):
        hint = "write it as 24h, 7d or 2026-11-20"
        raise UsageError(f"{option} '{text}' is neither a period nor a date", hint=hint) from None


def get_local_zone() -> tzinfo | None:
    """Return the local time zone."""
    return datetime.now().astimezone().tzinfo


_LESS = "less"


def find_pager(environ: Mapping[str, str], uid: int) -> list[str]:
    """Return the command line of the pager; [] if none is wanted or installed. `uid` is the effective user id."""
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
    # A pager can run commands, so $PAGER is not trusted when the process has root's rights.
    return uid == 0 or "SUDO_USER" in environ


class PagedOutput:
    """A text stream that starts a pager when more lines than the terminal has are written.

    `finish()` writes what is left and waits until the user leaves the pager.
    """

    def __init__(self, terminal: TextIO, pager: list[str], rows: int) -> None:
        self._terminal, self._pager, self._rows = terminal, pager, rows
        self._kept: list[str] = []
        self._lines = 0
        self._process: subprocess.Popen[str] | None = None
        self.encoding = terminal.encoding
        self.errors = terminal.errors

    def write(self, text: str) -> int:
        """Keep `text`, or pass it to the pager; discard it if the user has left the pager. TypeError as in io."""
        # typer writes b"" to find out whether a stream accepts bytes.
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._process is not None:
            self._send(text)
        else:
            self._kept.append(text)
            self._lines += text.count("\n")
            # The last row of the terminal is needed for the shell's prompt.
            if self._lines >= self._rows:
                self._start()
        return len(text)

    def flush(self) -> None:
        """Do nothing: whether a pager is needed is only known at the end."""

    def isatty(self) -> bool:
        """Return True: colours and width are those of the terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal's file descriptor, from which its width is read."""
        return self._terminal.fileno()

    def finish(self) -> None:
        """Write the kept text to the terminal, or wait for the pager."""
        if self._process is None:
            self._terminal.write("".join(self._kept))
            self._terminal.flush()
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        while self._process.poll() is None:
            # Ctrl-C in the pager is handled by the pager itself.
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
