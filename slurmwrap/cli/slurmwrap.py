"""`slurmwrap`: the root of the commands, and the one place where their errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from slurmwrap import __version__
from slurmwrap.cli.command_groups import Commands
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError

EX_SOFTWARE, EX_IOERR = 70, 74  # sysexits.h: an internal error; output that cannot be written
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

app = typer.Typer(
    name="slurmwrap",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slurmwrap {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Why jobs failed, what was done about it, and the parts that an administrator runs. Jobs go in by gsub.

    \b
    A researcher's day:
      gsub train.sbatch          submit; a bug is caught on one GPU first
      slurmwrap watch            my newest job, live: why it waits, how fast it is
      slurmwrap why              why did my last failed job fail, and what now?
      slurmwrap history          my runs of the last week
    \b
    An administrator's morning:
      slurmwrap report           what failed last night, what it cost, what to do
      slurmwrap report --since 7d --json
    \b
    What would another policy do for the cluster?
      slurmwrap simulate trace.csv --mode slurm --policy fifo,srtf
    \b
    Trying it out, without a cluster:
      slurmwrap lab up && eval "$(slurmwrap lab env)"
    """


def main() -> None:
    """The console script. Expected errors: one line, a hint, their own code; others: 70 and a file with the details."""
    voice = Console.of_terminal("slurmwrap")
    code = _run(voice)
    try:
        if sys.stdout is not None:  # it is where standard output is closed
            sys.stdout.flush()
    except OSError as error:  # Python itself would say "Exception ignored", and no more
        code = _not_written(error, voice)
    sys.exit(code)


def _run(voice: Console) -> int | str | None:
    try:
        app(prog_name="slurmwrap")
    except SystemExit as ended:
        return ended.code
    except SlurmwrapError as error:
        voice.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            return _not_written(error, voice)
        voice.fault(error)
        return EX_SOFTWARE
    return 0


def _not_written(error: OSError, voice: Console) -> int:
    """Standard output takes no more: said once, and what is left of it goes nowhere."""
    if not isinstance(error, BrokenPipeError):
        voice.error(SlurmwrapError(f"the output could not be written: {error.strerror}"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EX_IOERR


if __name__ == "__main__":
    main()
