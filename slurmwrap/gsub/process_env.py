"""What the caller gave this process, as a C program finds it: Python changes some of it before our first line.

sbatch takes over its environment, open files and signals as they are, and hands the environment to the job. So gsub
takes Python's own LC_CTYPE out again, never opens a file in the place of a closed standard stream, and gives SIGPIPE
back before it becomes sbatch.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

# typing's own loads re, half of what a call that is passed on costs
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# What Python may put there: PEP 538.
_COERCED = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})


def normalize_process() -> None:
    """Once, before anything else is done."""
    _undo_locale_coercion()
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _fill_closed()
    if "PYTHONIOENCODING" in os.environ:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def restore_signals() -> None:
    """Signals that Python ignores are given back: sbatch in a closed pipe ends by SIGPIPE."""
    from signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)


def end_by_interrupt() -> NoReturn:
    """Ctrl-C."""
    from signal import SIGINT

    _end_by(SIGINT)


def end_by_exit_code(exit_code: int) -> int:
    """An exit code as it is; -N, which stands for sbatch's end by signal N, ends us by that signal too."""
    if exit_code < 0:
        _end_by(-exit_code)
    return exit_code


def is_one_stream() -> bool:
    """Whether standard output and standard error are one, and no terminal: a program reads them, and may take the last
    word for the job's number (Nextflow and many `subprocess` calls join them)."""
    with suppress(OSError):
        return os.path.sameopenfile(1, 2) and not os.isatty(1)
    return False


def is_at_terminal() -> bool:
    """Whether a person types the call, or reads what it says."""
    return os.isatty(0) or os.isatty(2)


def write_stdout(text: str) -> None:
    """`text` on standard output; into a closed pipe it ends us as it would end sbatch, when all is done."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        from signal import SIGPIPE

        _end_by(SIGPIPE)
    except OSError:
        # A full disk, say: sbatch does not mind either.
        pass


def _end_by(number: int) -> NoReturn:
    """Ends as a C program does by that signal, so that a shell's loop around it stops too."""
    from signal import SIG_DFL, SIG_UNBLOCK, pthread_sigmask, signal

    with suppress(OSError):  # SIGKILL takes no handler
        signal(number, SIG_DFL)
    pthread_sigmask(SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # not reached


def _undo_locale_coercion() -> None:
    """In the C locale Python sets LC_CTYPE for its children; the job would get it."""
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
    """The values of a variable as this process was started with it: one, or none; None where the kernel hides it."""
    with suppress(OSError), open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        started_with = file.read().split(b"\0")
        return [entry.partition(b"=")[2] for entry in started_with if entry.startswith(name + b"=")][:1]
    return None


def _fill_closed() -> None:
    """/dev/null is in for closed standard streams: else a database or the script would be opened in their place,
    and written to. Like all that Python opens it is closed again at exec, so that sbatch finds them closed."""
    with suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(number)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
