"""Output of gsub on stderr: short lines, colour only on a terminal, user text escaped. Standard library only."""

from __future__ import annotations

import os
import sys
import time

from slurmwrap.errors import SlurmwrapError
from slurmwrap.escape import harmless, visible
from slurmwrap.fast_dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import TextIO

_FAULTS_KEPT = 20
COLOUR_MODES = ("auto", "always", "never")
_colour_mode = ["auto"]
STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


def set_colour_mode(mode: str) -> None:
    """Apply --color: one of COLOUR_MODES, for all output of this process."""
    _colour_mode[0] = mode


def is_colour_wanted(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether styles may be written to `stream`: in mode auto on a terminal, without NO_COLOR and TERM=dumb."""
    if _colour_mode[0] != "auto":
        return _colour_mode[0] == "always"
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Console:
    """Output of the program. `tty`: a progress line may be rewritten in place; `colour`: styles may be used."""

    program: str
    stream: TextIO
    tty: bool = False
    colour: bool = False

    @classmethod
    def of_terminal(cls, program: str) -> Console:
        """Return a console on stderr, with colour where it is wanted."""
        return cls(program, sys.stderr, sys.stderr.isatty(), is_colour_wanted(sys.stderr, os.environ))

    def make_silent(self) -> Console:
        """Return a console whose output is discarded."""
        return Console(self.program, open(os.devnull, "w"))  # noqa: PTH123 - stays open until the process ends

    def style(self, text: str, *names: str) -> str:
        """Return `text` with escape sequences for these styles if colour is wanted."""
        codes = ";".join(STYLES[name] for name in names)
        return f"\033[{codes}m{text}\033[0m" if self.colour and codes else text

    def say(self, text: str, *styles: str) -> None:
        """Print one line after the program's name. Line breaks in user text are escaped: they must not forge a line."""
        self._line(self.style(f"{self.program}: {visible(text)}", *styles))

    def block(self, text: str) -> None:
        """Print text that is already escaped, unchanged; for --explain."""
        self._line(text.rstrip("\n"))

    def error(self, error: SlurmwrapError) -> None:
        """Print an error message and its hint."""
        for line in harmless(str(error)).splitlines() or [type(error).__name__]:
            self._line(self.style(f"{self.program}: error: {line}", "red"))
        if error.hint:
            self._line(f"{self.program}: {harmless(error.hint)}")

    def fault(self, error: Exception) -> None:
        """Print one line about a failure of slurmwrap itself and save the traceback in a file if possible."""
        where = "" if isinstance(error, SlurmwrapError) else _save_traceback(error)
        hint = getattr(error, "hint", "")
        self._line(self.style(f"{self.program}: {type(error).__name__}: {harmless(str(error))}", "yellow") + where)
        if hint:
            self._line(f"{self.program}: {harmless(hint)}")

    def redraw(self, text: str) -> None:
        """Rewrite one line on a terminal; elsewhere print nothing.

        `text` is already escaped and no longer than `columns()`, not counting styles.
        """
        if self.tty:
            self._write(f"\r\033[K{text}")

    def progress_done(self) -> None:
        """Clear the progress line."""
        if self.tty:
            self._write("\r\033[K")

    def _line(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            # stderr is closed or full. That is no reason to fail a submission.
            pass


def columns() -> int:
    """Return the width of the terminal less one, so that a full line does not wrap."""
    try:
        return os.get_terminal_size(2).columns - 1
    except OSError:
        return 79


def _save_traceback(error: Exception) -> str:
    import traceback

    from slurmwrap.config.load_config import find_user_state_dir

    try:
        directory = find_user_state_dir(os.environ)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"fault-{int(time.time())}-{os.getpid()}.log"
        # The traceback contains the user's command line, so only the user may read the file.
        traceback_text = "".join(traceback.format_exception(error))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", errors="backslashreplace") as file:
            file.write(traceback_text)
    except OSError:
        return ""
    _delete_old_tracebacks(directory)
    return f" (details: {path})"


def _delete_old_tracebacks(directory: Path) -> None:
    """Delete the oldest traceback files: a command that fails every minute must not fill the home directory."""
    try:
        for old in sorted(directory.glob("fault-*.log"), key=lambda one: one.stat().st_mtime)[:-_FAULTS_KEPT]:
            old.unlink()
    except OSError:
        # Another process deletes the same files.
        pass
