"""`slurmwrap`: the root of the commands, and the one place where their errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from slurmwrap import __version__
from slurmwrap.cli import (
    classify,
    configuration,
    incidents,
    inputs,
    jobs,
    lab,
    nodes,
    prerun,
    reconcile,
    spool,
)
from slurmwrap.cli.command_groups import Commands
from slurmwrap.cli.completion import command as completion
from slurmwrap.cli.db import command as db
from slurmwrap.cli.doctor.command import doctor
from slurmwrap.cli.history import history
from slurmwrap.cli.hooks import command as hooks
from slurmwrap.cli.metrics import command as metrics
from slurmwrap.cli.profile import command as profile
from slurmwrap.cli.report.command import report
from slurmwrap.cli.simulate.command import simulate
from slurmwrap.cli.voice import Voice
from slurmwrap.cli.watch.command import watch
from slurmwrap.cli.whatif.command import whatif
from slurmwrap.cli.why import why
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
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
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


app.command()(why)
app.command(short_help="A job, live: why it waits, when it may start, how fast it goes.")(watch)
app.command()(history)
app.command()(report)
app.command(short_help="Check that everything works, and say how to fix what does not.")(doctor)
app.command()(simulate)
app.command()(whatif)


classify.register(app)
reconcile.register(app)
app.add_typer(lab.app, name="lab", short_help="A real Slurm of many nodes on this machine.")
app.add_typer(configuration.app, name="config", short_help="What is configured, and in which file.")
app.add_typer(db.app, name="db", short_help="The database: copy, check, delete from it, read it.")
app.add_typer(hooks.app, name="hooks")
app.add_typer(jobs.app, name="jobs", short_help="What is kept of jobs: runs, decisions, retries used and left.")
app.add_typer(incidents.app, name="incidents", short_help="One cause that made several jobs fail at once.")
app.add_typer(spool.app, name="spool", short_help="What waits for the reconciler, and what it rejected.")
app.add_typer(inputs.app, name="inputs", short_help="Input files that are refused until they change.")
app.add_typer(metrics.app, name="metrics", short_help="Figures for Prometheus and Grafana.")
app.add_typer(nodes.app, name="nodes", short_help="Nodes under suspicion, nodes drained by slurmwrap, and why.")
app.add_typer(prerun.app, name="prerun", short_help="Your pre-runs: what they found, what they do now.")
app.add_typer(profile.app, name="profile", short_help="What your jobs need: CPUs, memory, GPU, speed.")
completion.register(app)


def main() -> None:
    """The console script. Expected errors: one line, a hint, their own code; others: 70 and a file with the details."""
    voice = Voice.of_terminal("slurmwrap")
    code = _run(voice)
    try:
        if sys.stdout is not None:  # it is where standard output is closed
            sys.stdout.flush()
    except OSError as error:  # Python itself would say "Exception ignored", and no more
        code = _not_written(error, voice)
    sys.exit(code)


def _run(voice: Voice) -> int | str | None:
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


def _not_written(error: OSError, voice: Voice) -> int:
    """Standard output takes no more: said once, and what is left of it goes nowhere."""
    if not isinstance(error, BrokenPipeError):
        voice.error(SlurmwrapError(f"the output could not be written: {error.strerror}"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EX_IOERR


if __name__ == "__main__":
    main()
