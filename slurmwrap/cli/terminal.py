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

_UNITS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PERIOD = re.compile(r"([0-9]{1,6})(m|min|h|d|w)")


def painter(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> Paint:
    """Colours for `stream` (stdout), where they are wanted (console.is_colour_wanted)."""
    stream = sys.stdout if stream is None else stream
    return paint if is_colour_wanted(stream, environ) else plain


def paint(text: str, style: str) -> str:
    """`text` in one of the styles of a terminal; every line by itself, so that a pager may cut between them."""
    return "\n".join(f"\033[{STYLES[style]}m{line}\033[0m" for line in text.split("\n"))


# Columns: longer lines are hard to read.
WIDEST = 110


def columns(stream: TextIO | None = None, *, least: int = 60, most: int = WIDEST) -> int:
    """What a page may be wide: the terminal's width within limits, and 80 where `stream` (stdout) is none."""
    stream = sys.stdout if stream is None else stream
    try:
        wide = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        wide = 0
    # A serial console says 0.
    return max(least, min(most, wide)) if wide else 80


def since(text: str, now: float, zone: tzinfo | None = None, *, option: str = "--since") -> float:
    """`24h`, `7d`, `2w`, `30min`, or a date (`2026-11-20`, `2026-11-20T06:00`) -> Unix seconds. UsageError."""
    period = _PERIOD.fullmatch(text)
    if period:
        return now - int(period[1]) * _UNITS[period[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).timestamp()
    except (ValueError, OverflowError):
        hint = "write it as 24h, 7d or 2026-11-20"
        raise UsageError(f"{option} '{text}' is neither a period nor a date", hint=hint) from None


def local_zone() -> tzinfo | None:
    """The zone of the reader's clock."""
    return datetime.now().astimezone().tzinfo


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
