#!python
"""gsub as a program: installed as it stands here (pyproject.toml, shared-scripts), since who calls sbatch has any
Python variables at all. They are meant for their job: they go there, and change nothing here.

A console script made by an installer imports from PYTHONPATH before the first line of slurmwrap: an old enum.py
there, or an empty entry in a directory with a types.py, and there would be no sbatch any more. Modules that this file
imports itself are frozen into Python or were imported by it already.
"""

import gc
import os
import sys


def main() -> None:
    """Does not return: a Python that winds itself up would go on to PYTHONINSPECT's prompt."""
    _standard_library_first()
    _no_warnings()
    try:
        from slurmwrap import timing

        timing.reached("Python")
        from slurmwrap.gsub.exec_sbatch import pass_at_a_glance

        pass_at_a_glance(sys.argv[1:])
        # Nothing of a submission is ever garbage: a tenth of our time would go into looking for it.
        gc.disable()
        from slurmwrap.gsub.gsub_main import main as gsub

        timing.reached("load what reads a call")
        code = gsub()
        timing.leave()
    except KeyboardInterrupt:
        # Before gsub could see to it.
        code = _interrupted()
    _flush()
    os._exit(code)


def _standard_library_first() -> None:
    """PYTHONPATH goes behind, this script's directory to the end: a slurmwrap that is only there is still found."""
    given = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    theirs = {_absolute(folder) for folder in given.split(os.pathsep)} if given else set()
    own = None if sys.flags.safe_path else sys.path[0]
    sys.path.sort(key=lambda folder: 2 if folder == own else folder in theirs)


def _absolute(folder: str) -> str:
    """As Python's start leaves it in sys.path; where the working directory is gone that is the name itself."""
    try:
        return os.path.abspath(folder)  # noqa: PTH100
    except OSError:
        return folder


def _no_warnings() -> None:
    """PYTHONWARNINGS=error would make an error of any library's deprecation."""
    if sys.warnoptions:
        import warnings

        warnings.resetwarnings()
        warnings.simplefilter("ignore")


def _interrupted() -> int:
    """As Ctrl-C ends a C program, so that a shell's loop around it stops too."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return 130  # not reached


def _flush() -> None:
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        # Full, closed, or none at all.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":
    main()
