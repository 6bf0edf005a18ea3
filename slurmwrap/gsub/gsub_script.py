#!python
"""The program gsub. This file is installed unchanged (pyproject.toml, shared-scripts) instead of a console script.

A user of sbatch may have set any PYTHON* variables for the job. They must reach the job, and must not change gsub. A
console script made by an installer imports from PYTHONPATH before the first line of slurmwrap runs, so an old enum.py
there, or an empty entry and a types.py in the working directory, would make sbatch unusable. The modules that this file
imports at the top are frozen into Python or already imported at its start.
"""

import gc
import os
import sys


def main() -> None:
    """Run gsub and end the process by os._exit: a normal end of Python would open the prompt of PYTHONINSPECT."""
    _put_standard_library_first()
    _ignore_warnings()
    try:
        from slurmwrap import timing

        timing.reached("Python")
        from slurmwrap.gsub.exec_sbatch import exec_sbatch_if_certain

        exec_sbatch_if_certain(sys.argv[1:])
        # A submission creates no cyclic garbage, and the collector would take a tenth of gsub's time.
        gc.disable()
        from slurmwrap.gsub.gsub_main import main as gsub

        timing.reached("load what reads a call")
        code = gsub()
        timing.leave()
    except KeyboardInterrupt:
        # Ctrl-C before gsub_main handles it.
        code = _end_by_interrupt()
    _flush_streams()
    os._exit(code)


def _put_standard_library_first() -> None:
    """Move the PYTHONPATH entries after the standard library, and this script's directory to the end of sys.path.

    They are not removed, so that a slurmwrap that is installed only there is still found.
    """
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    from_pythonpath = {_absolute(folder) for folder in given.split(os.pathsep)} if given else set()
    own = None if sys.flags.safe_path else sys.path[0]
    sys.path.sort(key=lambda folder: 2 if folder == own else folder in from_pythonpath)


def _absolute(folder: str) -> str:
    """Return `folder` as Python writes it into sys.path: absolute, or unchanged if the working directory is gone."""
    try:
        return os.path.abspath(folder)  # noqa: PTH100
    except OSError:
        return folder


def _ignore_warnings() -> None:
    """Ignore all warnings: PYTHONWARNINGS=error would turn a library's deprecation warning into an error."""
    if sys.warnoptions:
        import warnings

        warnings.resetwarnings()
        warnings.simplefilter("ignore")


def _end_by_interrupt() -> int:
    """End this process by SIGINT, as Ctrl-C ends a C program, so that a shell loop around it stops too."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 130  # not reached


def _flush_streams() -> None:
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        # The stream may be full, closed or None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":
    main()
