"""What gsub says on stderr: short lines, colour only on a terminal, user text made harmless. Standard library only."""

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
    """Whether styles may be written to `stream`. By itself: on a terminal, unless NO_COLOR is set or TERM=dumb."""
    if _colour_mode[0] != "auto":
        return _colour_mode[0] == "always"
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Console:
    """Where the program speaks. `tty`: a progress line may be rewritten in place; `colour`: styles may be used."""

    program: str
    stream: TextIO
    tty: bool = False
    colour: bool = False

    @classmethod
    def of_terminal(cls, program: str) -> Console:
        """Return a console on stderr, with colour where it is wanted."""
        return cls(program, sys.stderr, sys.stderr.isatty(), is_colour_wanted(sys.stderr, os.environ))

    def hushed(self) -> Console:
        """One that no one hears."""
        return Console(self.program, open(os.devnull, "w"))  # noqa: PTH123 - until we end

    def style(self, text: str, *names: str) -> str:
        """`text` in colour where that is wanted."""
        codes = ";".join(STYLES[name] for name in names)
        return f"\033[{codes}m{text}\033[0m" if self.colour and codes else text

    def say(self, text: str, *styles: str) -> None:
        """One line, with the program's name; a line break in what a user wrote must not forge another line."""
        self._line(self.style(f"{self.program}: {visible(text)}", *styles))

    def block(self, text: str) -> None:
        """Text as it is (already harmless), for --explain."""
        self._line(text.rstrip("\n"))

    def error(self, error: SlurmwrapError) -> None:
        """What is wrong, and the way out."""
        for line in harmless(str(error)).splitlines() or [type(error).__name__]:
            self._line(self.style(f"{self.program}: error: {line}", "red"))
        if error.hint:
            self._line(f"{self.program}: {harmless(error.hint)}")

    def fault(self, error: Exception) -> None:
        """Something of slurmwrap's failed: one line, and the traceback in a file where one can be written."""
        where = "" if isinstance(error, SlurmwrapError) else _keep_traceback(error)
        hint = getattr(error, "hint", "")
        self._line(self.style(f"{self.program}: {type(error).__name__}: {harmless(str(error))}", "yellow") + where)
        if hint:
            self._line(f"{self.program}: {harmless(hint)}")

    def redraw(self, text: str) -> None:
        """Rewrites one line on a terminal; elsewhere says nothing. `text` is harmless and no longer than `columns()`,
        not counting styles."""
        if self.tty:
            self._write(f"\r\033[K{text}")

    def progress_done(self) -> None:
        """Clears the progress line."""
        if self.tty:
            self._write("\r\033[K")

    def _line(self, text: str) -> None:
        self._write(text + "\n")

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            # stderr closed or full: nothing to be done, and no reason to fail a submission
            pass


def columns() -> int:
    """The terminal's width, less one so that a full line does not wrap."""
    try:
        return os.get_terminal_size(2).columns - 1
    except OSError:
        return 79


def _keep_traceback(error: Exception) -> str:
    import traceback

    from slurmwrap.config.load_config import find_user_state_dir

    try:
        directory = find_user_state_dir(os.environ)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"fault-{int(time.time())}-{os.getpid()}.log"
        # With what the user called: for no one else.
        told = "".join(traceback.format_exception(error))
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", errors="backslashreplace") as file:
            file.write(told)
    except OSError:
        return ""
    _keep_newest(directory)
    return f" (details: {path})"


def _keep_newest(directory: Path) -> None:
    """A command that fails every minute must not fill the home."""
    try:
        for old in sorted(directory.glob("fault-*.log"), key=lambda one: one.stat().st_mtime)[:-_FAULTS_KEPT]:
            old.unlink()
    except OSError:
        # Another process does the same.
        pass
