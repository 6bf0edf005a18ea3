"""Restore the process environment that the caller passed to gsub, so that sbatch and the job see it unchanged.

Python changes some of it at its start. sbatch inherits the environment, open files and signals, and passes the
environment on to the job. So gsub removes the LC_CTYPE that Python set, never opens a file in the place of a closed
standard stream, and restores the default action of SIGPIPE before it becomes sbatch.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

# `from typing import TYPE_CHECKING` would import re, half of the cost of a call that is passed on to sbatch.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# The values of LC_CTYPE that Python itself may set (PEP 538).
_COERCED = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})


def normalize_process() -> None:
    """Undo Python's changes and open missing standard streams. Call once, before anything else."""
    _undo_locale_coercion()
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_closed()
    if "PYTHONIOENCODING" in os.environ:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def restore_signals() -> None:
    """Restore the default action of signals that Python ignores, so that SIGPIPE ends sbatch at a closed pipe."""
    from signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)


def end_by_interrupt() -> NoReturn:
    """End this process by SIGINT, as Ctrl-C does."""
    from signal import SIGINT

    _end_by(SIGINT)


def end_by_exit_code(exit_code: int) -> int:
    """Return `exit_code`; if it is -N (sbatch was ended by signal N), end this process by the same signal."""
    if exit_code < 0:
        _end_by(-exit_code)
    return exit_code


def is_one_stream() -> bool:
    """Return whether stdout and stderr are the same file and not a terminal.

    Then a program reads both and may parse the last word as the job id (Nextflow and many `subprocess` calls join
    them).
    """
    with suppress(OSError):
        return os.path.sameopenfile(1, 2) and not os.isatty(1)
    return False


def is_at_terminal() -> bool:
    """Return whether standard input or standard error is a terminal."""
    return os.isatty(0) or os.isatty(2)


def write_stdout(text: str) -> None:
    """Write `text` to standard output. At a closed pipe, end this process by SIGPIPE as it would end sbatch."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        from signal import SIGPIPE

        _end_by(SIGPIPE)
    except OSError:
        # For example a full disk: sbatch ignores that too.
        pass


def _end_by(number: int) -> NoReturn:
    """End this process by the signal, as a C program would, so that a shell loop around it stops too."""
    from signal import SIG_DFL, SIG_UNBLOCK, pthread_sigmask, signal

    with suppress(OSError):  # SIGKILL accepts no handler
        signal(number, SIG_DFL)
    pthread_sigmask(SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # not reached


def _undo_locale_coercion() -> None:
    """Remove the LC_CTYPE that Python sets in the C locale; otherwise the job would inherit it."""
    if os.environ.get("LC_CTYPE") not in _COERCED:
        return
    found = _read_given_variable(b"LC_CTYPE")
    if found is None:
        return
    if found:
        os.environ["LC_CTYPE"] = os.fsdecode(found[0])
    else:
        del os.environ["LC_CTYPE"]


def _read_given_variable(name: bytes) -> list[bytes] | None:
    """Return the value with which this process was started, as a list of at most one; None if it is not readable."""
    with suppress(OSError), open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        started_with = file.read().split(b"\0")
        return [entry.partition(b"=")[2] for entry in started_with if entry.startswith(name + b"=")][:1]
    return None


def _fill_closed() -> None:
    """Open /dev/null for closed standard streams.

    Otherwise a database or the script would get descriptor 0, 1 or 2 and be written to. Python opens files
    close-on-exec, so sbatch still finds the streams closed.
    """
    with suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
