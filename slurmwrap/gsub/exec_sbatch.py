"""Hands a call over: this process becomes Slurm's own sbatch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub import process_env
from slurmwrap.sbatch.fast_passthrough import is_certain_passthrough, read_regular_file
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment

# typing's own loads re, half of what a call that is passed on costs
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def pass_at_a_glance(words: Sequence[str]) -> None:
    """Does not return where the call is plainly none of slurmwrap's: this is all that most calls of a site pay for."""
    if is_certain_passthrough(words, os.environ, read_regular_file):
        process_env.normalize_process()
        # No sbatch to be found: the long way reports it.
        with suppress(SlurmwrapError):
            exec_sbatch(words)


def exec_sbatch(words: Sequence[str], stdin: bytes | None = None) -> NoReturn:
    """Its output, signals and exit code are the user's. `stdin`: what was read of slurmwrap's already."""
    if stdin is not None:
        refill_pipe(0, stdin)
    sys.stderr.flush()
    path = find_sbatch(os.environ)
    process_env.restore_signals()
    try:
        os.execve(path, ["sbatch", *words], make_wrapper_environment(path, os.environ))
    except OSError as error:  # nothing was submitted
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise SlurmwrapError(f"{path}: {error.strerror}", exit_code=code) from error


def refill_pipe(descriptor: int, content: bytes) -> None:
    """A pipe that was read to its end, full again for anyone who reads the descriptor next."""
    again = os.memfd_create("script")
    os.write(again, content)
    os.lseek(again, 0, os.SEEK_SET)
    os.dup2(again, descriptor)
