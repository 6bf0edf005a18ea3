"""--help, --usage and --version: sbatch's own answer first, byte for byte, then what is to say about gsub."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from slurmwrap import __version__
from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub import process_env
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment

_USAGE = "gsub [sbatch's options] [gsub's options] SCRIPT [ARGUMENTS]; gsub --help tells its own\n"


def run_help_of_sbatch(words: Sequence[str], option: str, about_us: str) -> int:
    """sbatch's exit code. Of ours nothing is said about --usage and --version on stdout: programs read it."""
    try:
        code = _ask_sbatch(words)
    except SlurmwrapError:
        _print_gsub_help(option, about_us)
        raise
    # Where Slurm is not set up one may still ask what gsub is.
    if code == 0 or option == "help":
        _print_gsub_help(option, about_us)
    return code


def _ask_sbatch(words: Sequence[str]) -> int:
    """Its output goes where ours does."""
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
