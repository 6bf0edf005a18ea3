"""Pass a call on to Slurm's own sbatch by replacing this process with it (execve)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub import process_env
from slurmwrap.sbatch.fast_passthrough import is_certain_passthrough, read_regular_file
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment

# `from typing import TYPE_CHECKING` would import re, half of the cost of a call that is passed on to sbatch.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def exec_sbatch_if_certain(words: Sequence[str]) -> None:
    """Become sbatch if the call is certainly not for slurmwrap; else return.

    Most calls of a site end here, so this path is kept cheap.
    """
    if is_certain_passthrough(words, os.environ, read_regular_file):
        process_env.normalize_process()
        # If no sbatch is found, return: gsub_main reports the error.
        with suppress(SlurmwrapError):
            exec_sbatch(words)


def exec_sbatch(words: Sequence[str], stdin: bytes | None = None) -> NoReturn:
    """Replace this process by sbatch, so that the user gets its output, signals and exit code.

    `stdin`: the script that slurmwrap has already read from standard input; sbatch gets it again. Raise SlurmwrapError
    with exit code 127 or 126 if sbatch cannot be started.
    """
    if stdin is not None:
        refill_pipe(0, stdin)
    sys.stderr.flush()
    path = find_sbatch(os.environ)
    process_env.restore_signals()
    try:
        os.execve(path, ["sbatch", *words], make_wrapper_environment(path, os.environ))
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        raise SlurmwrapError(f"{path}: {error.strerror}", exit_code=code) from error


def refill_pipe(descriptor: int, content: bytes) -> None:
    """Replace `descriptor` by a memory file with `content`, so that a pipe that was read can be read again."""
    again = os.memfd_create("script")
    os.write(again, content)
    os.lseek(again, 0, os.SEEK_SET)
    os.dup2(again, descriptor)
