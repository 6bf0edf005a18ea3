"""--help, --usage and --version: print sbatch's own answer first, byte for byte, then the part about gsub."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from slurmwrap import __version__
from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub import process_env
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment

_USAGE = "gsub [sbatch's options] [gsub's options] SCRIPT [ARGUMENTS]; gsub --help lists its own\n"


def run_help_of_sbatch(words: Sequence[str], option: str, about_us: str) -> int:
    """Run sbatch with `option`, print the part about gsub, and return sbatch's exit code.

    For --usage and --version gsub prints its own part to stderr, because programs read stdout.
    """
    try:
        code = _ask_sbatch(words)
    except SlurmwrapError:
        _print_gsub_help(option, about_us)
        raise
    # Print gsub's help even if sbatch fails, for example where Slurm is not configured.
    if code == 0 or option == "help":
        _print_gsub_help(option, about_us)
    return code


def _ask_sbatch(words: Sequence[str]) -> int:
    """Run sbatch with the same standard streams and return its exit code."""
    from signal import SIGPIPE, SIGXFSZ

    program = find_sbatch(os.environ)
    environ = make_wrapper_environment(program, os.environ)
    child = os.posix_spawn(program, ["sbatch", *words], environ, setsigdef=(SIGPIPE, SIGXFSZ))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _print_gsub_help(option: str, about_us: str) -> None:
    if option == "help":
        process_env.write_stdout("\n" + about_us)
    elif option == "usage":
        sys.stderr.write(_USAGE)
    else:
        sys.stderr.write(f"gsub of slurmwrap {__version__}\n")
