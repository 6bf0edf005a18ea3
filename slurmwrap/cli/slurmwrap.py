"""`slurmwrap`: the root of the commands, and the one place where their errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from slurmwrap import __version__
from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError


# The commands of `slurmwrap`: where each is defined, what `--help` says of it, in which order and under which title.
#
# A command's module is imported when that command runs: all of them together take half a second.
class CommandSource(NamedTuple):
    """Where a command is defined: a function, or the `typer.Typer` of a command with commands of its own."""

    module: str
    attribute: str
    short_help: str


COMMANDS: dict[str, dict[str, CommandSource]] = {
    "Commands for your jobs": {
        "watch": CommandSource(
            "slurmwrap.cli.watch.watch_command",
            "watch",
            "A job, live: why it waits, when it may start, how fast it goes.",
        ),
        "why": CommandSource("slurmwrap.cli.why", "why", "Tell why a job failed, and what to do now."),
        "history": CommandSource("slurmwrap.cli.history", "history", "List runs and how they ended, newest first."),
        "report": CommandSource(
            "slurmwrap.cli.report",
            "report",
            "Sum up what failed, what it cost, what was saved, what to do.",
        ),
        "prerun": CommandSource("slurmwrap.cli.prerun", "app", "Your pre-runs: what they found, what they do now."),
        "profile": CommandSource(
            "slurmwrap.cli.profile.profile_command", "app", "What your jobs need: CPUs, memory, GPU, speed."
        ),
    },
    "More for users": {
        "jobs": CommandSource(
            "slurmwrap.cli.jobs", "app", "What is kept of jobs: runs, decisions, retries used and left."
        ),
        "inputs": CommandSource("slurmwrap.cli.inputs", "app", "Input files that are refused until they change."),
        "classify": CommandSource(
            "slurmwrap.cli.classify", "classify_command", "Say why a job failed, from its output and its exit."
        ),
        "doctor": CommandSource(
            "slurmwrap.cli.doctor.doctor_command",
            "doctor",
            "Check that everything works, and say how to fix what does not.",
        ),
        "config": CommandSource("slurmwrap.cli.configuration", "app", "What is configured, and in which file."),
        "completion": CommandSource(
            "slurmwrap.cli.completion.completion_command",
            "completion",
            "Complete options, partitions, nodes, jobs … of gsub on TAB.",
        ),
        "lab": CommandSource("slurmwrap.cli.lab", "app", "A real Slurm of many nodes on this machine."),
    },
    "Commands for administrators": {
        "simulate": CommandSource(
            "slurmwrap.cli.simulate.simulate_command", "simulate", "Replay a load on a cluster of your choice."
        ),
        "whatif": CommandSource(
            "slurmwrap.cli.whatif.whatif_command",
            "whatif",
            "What would slurmwrap have done for your cluster last month?",
        ),
        "reconcile": CommandSource(
            "slurmwrap.cli.reconcile", "reconcile", "Find out why jobs ended, and act by the rules."
        ),
        "db": CommandSource("slurmwrap.cli.db", "app", "The database: copy, check, delete from it, read it."),
        "hooks": CommandSource(
            "slurmwrap.cli.hooks", "app", "The Prolog, Epilog and EpilogSlurmctld that observe jobs."
        ),
        "incidents": CommandSource("slurmwrap.cli.incidents", "app", "One cause that made several jobs fail at once."),
        "spool": CommandSource("slurmwrap.cli.spool", "app", "What waits for the reconciler, and what it rejected."),
        "metrics": CommandSource("slurmwrap.cli.metrics", "app", "Figures for Prometheus and Grafana."),
        "nodes": CommandSource(
            "slurmwrap.cli.nodes", "app", "Nodes under suspicion, nodes drained by slurmwrap, and why."
        ),
    },
}
_SOURCES = {name: source for commands in COMMANDS.values() for name, source in commands.items()}


def load_command(name: str) -> Any:
    """Import a command of the table; returns typer's command object. KeyError: the table has no such name."""
    source = _SOURCES[name]
    found = getattr(import_module(source.module), source.attribute)
    # A callback makes it a group.
    parent = typer.Typer(rich_markup_mode=None, callback=lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, short_help=source.short_help)
    else:
        parent.command(name, short_help=source.short_help)(found)
    return typer.main.get_command(parent).commands[name]  # type: ignore[attr-defined]


class _LoadedCommands(MutableMapping[str, Any]):
    """Name → command. One of the table is imported when it is first read; others may be added."""

    def __init__(self, added: MutableMapping[str, Any]) -> None:
        self._known: dict[str, Any] = dict.fromkeys(_SOURCES) | dict(added)

    def __getitem__(self, name: str) -> Any:
        if self._known[name] is None:
            self._known[name] = load_command(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __setitem__(self, name: str, command: Any) -> None:
        self._known[name] = command

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Commands(TyperGroup):
    """The group `slurmwrap`. Its help reports what a researcher needs from what an administrator runs."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedCommands(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes one list per title, all of the same width; no command is imported for it."""
        width = max(map(len, _SOURCES))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", source.short_help) for name, source in commands.items()])


# sysexits.h: an internal error; output that cannot be written
EX_SOFTWARE, EX_IOERR = 70, 74
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
        # It is where standard output is closed.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Python itself would say "Exception ignored", and no more.
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
