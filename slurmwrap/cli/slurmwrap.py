"""The `slurmwrap` command: load its subcommands on demand, and turn their errors into a line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO, cast

import typer
from typer.core import TyperGroup

from slurmwrap import __version__
from slurmwrap.console import COLOUR_MODES, Console, set_colour_mode
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.json_output import format_json_error, is_json_asked


# Where each command of `slurmwrap` is defined, its line in `--help`, and the order and titles of that list.
#
# The module of a command is imported only when that command runs, because importing all of them takes half a second.
class CommandSource(NamedTuple):
    """Where a command is defined: a function, or the `typer.Typer` of a command that has subcommands."""

    module: str
    attribute: str
    short_help: str
    # Whether long output goes to a pager on a terminal. False for commands that are live, prompt, or show progress.
    paged: bool = False


COMMANDS: dict[str, dict[str, CommandSource]] = {
    "Commands for your jobs": {
        "watch": CommandSource(
            "slurmwrap.cli.watch.watch_command",
            "watch",
            "Your jobs, live: why they wait, when they start and end, how fast they run.",
        ),
        "why": CommandSource("slurmwrap.cli.why", "why", "Explain why a job failed, and what to do now.", paged=True),
        "job": CommandSource(
            "slurmwrap.cli.job",
            "job_command",
            "What a job used of what it asked for, and what to ask for next time.",
            paged=True,
        ),
        "history": CommandSource(
            "slurmwrap.cli.history", "history", "List runs and how they ended, newest first.", paged=True
        ),
        "report": CommandSource(
            "slurmwrap.cli.report",
            "report",
            "Sum up what failed, what it cost, what was saved, what to do.",
            paged=True,
        ),
        "prerun": CommandSource(
            "slurmwrap.cli.prerun", "app", "Your pre-runs: what they found, what they do now.", paged=True
        ),
        "profile": CommandSource(
            "slurmwrap.cli.profile.profile_command", "app", "What your jobs need: CPUs, memory, GPU, speed.", paged=True
        ),
    },
    "More for users": {
        "jobs": CommandSource(
            "slurmwrap.cli.jobs", "app", "What is stored of jobs: runs, decisions, retries used and left.", paged=True
        ),
        "convergence": CommandSource(
            "slurmwrap.cli.convergence_command",
            "convergence",
            "When the loss of a job, or of each job of a sweep, stopped to improve.",
            paged=True,
        ),
        "cancel": CommandSource("slurmwrap.cli.cancel", "cancel", "Cancel one member of a packed array (gsub --pack)."),
        "inputs": CommandSource(
            "slurmwrap.cli.inputs", "app", "Input files that are refused until they change.", paged=True
        ),
        "classify": CommandSource(
            "slurmwrap.cli.classify",
            "classify_command",
            "Explain why a job failed, from its output and its exit code.",
            paged=True,
        ),
        "doctor": CommandSource(
            "slurmwrap.cli.doctor.doctor_command",
            "doctor",
            "Check that everything works, and show how to fix what does not.",
            paged=True,
        ),
        "config": CommandSource(
            "slurmwrap.cli.configuration", "app", "What is configured, and in which file.", paged=True
        ),
        "completion": CommandSource(
            "slurmwrap.cli.completion",
            "completion",
            "Complete options, partitions, nodes, jobs … of gsub on TAB.",
        ),
        "lab": CommandSource("slurmwrap.cli.lab", "app", "A real Slurm of many nodes on this machine."),
    },
    "Commands for administrators": {
        "queue": CommandSource(
            "slurmwrap.cli.queue", "queue", "Why pending jobs wait, and which never start as they are.", paged=True
        ),
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
        "off": CommandSource("slurmwrap.cli.off", "off", "Switch slurmwrap off for the whole site."),
        "on": CommandSource("slurmwrap.cli.off", "on", "Switch slurmwrap on again."),
        "db": CommandSource("slurmwrap.cli.db", "app", "The database: copy, check, delete from it, read it."),
        "hooks": CommandSource(
            "slurmwrap.cli.hooks", "app", "The Prolog, Epilog and EpilogSlurmctld that observe jobs."
        ),
        "incidents": CommandSource(
            "slurmwrap.cli.incidents", "app", "One cause that made several jobs fail at once.", paged=True
        ),
        "spool": CommandSource(
            "slurmwrap.cli.spool", "app", "What waits for the reconciler, and what it rejected.", paged=True
        ),
        "metrics": CommandSource("slurmwrap.cli.metrics", "app", "Figures for Prometheus and Grafana."),
        "nodes": CommandSource(
            "slurmwrap.cli.nodes", "app", "Nodes under suspicion, nodes drained by slurmwrap, and why.", paged=True
        ),
    },
}
_SOURCES = {name: source for commands in COMMANDS.values() for name, source in commands.items()}


def load_command(name: str) -> Any:
    """Import a command of the table and return typer's command object. KeyError if the table has no such name."""
    source = _SOURCES[name]
    found = getattr(import_module(source.module), source.attribute)
    # A callback makes `parent` a command group.
    parent = typer.Typer(rich_markup_mode=None, callback=lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, short_help=source.short_help)
    else:
        parent.command(name, short_help=source.short_help)(found)
    return typer.main.get_command(parent).commands[name]  # type: ignore[attr-defined]


class _LoadedCommands(MutableMapping[str, Any]):
    """Mapping from name to command that imports a command of the table when it is first read; others may be added."""

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
    """The group `slurmwrap`. Its help separates commands for researchers from commands for administrators."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LoadedCommands(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the table."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one list of commands per title, all of the same width, without importing any command."""
        width = max(map(len, _SOURCES))
        for title, commands in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", source.short_help) for name, source in commands.items()])


# Exit code for a wrong command line, as in most programs. gsub exits with sbatch's 255 instead (errors.UsageError).
EX_USAGE = 2
# Exit codes of sysexits.h: an internal error; output that cannot be written.
EX_SOFTWARE, EX_IOERR = 70, 74
_WRITE_FAILED_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

if TYPE_CHECKING:
    from slurmwrap.cli.terminal import PagedOutput

app = typer.Typer(
    name="slurmwrap",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slurmwrap {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    color: Annotated[
        str,
        typer.Option(metavar="auto|always|never", help="Colour; also after the command. auto: on a terminal."),
    ] = "auto",
    no_pager: Annotated[
        bool, typer.Option("--no-pager", help="Do not show long output with $PAGER; also after the command.")
    ] = False,
) -> None:
    """Show why jobs failed and what was done about it; run the services of a site. Jobs are submitted with gsub.

    \b
    A researcher's day:
      gsub train.sbatch          submit; a bug is caught on one GPU first
      slurmwrap watch            my jobs, live: why they wait, when they end
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
    """Run the console script.

    An expected error prints one line and a hint and exits with its own code. Any other exception exits with 70 and
    leaves a file with the details. With --json an error is also printed to stdout, as a JSON document
    (slurmwrap/json_output.py).
    """
    try:
        given = take_output_options(sys.argv[1:])
    except UsageError as error:
        console = Console.of_terminal("slurmwrap")
        console.error(error)
        report = _ErrorReport(console, is_json_asked(sys.argv[1:]))
        sys.exit(report.end("UsageError", str(error), error.hint, EX_USAGE))
    set_colour_mode(given.color)
    console = Console.of_terminal("slurmwrap")
    paged = _start_paging(given)
    code = _run(given, console)
    try:
        if paged is not None:
            sys.stdout = sys.__stdout__
            paged.finish()
        # sys.stdout is None when the process was started with standard output closed.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # Without this, Python would only print "Exception ignored".
        code = _report_write_error(error, console)
    sys.exit(code)


class OutputOptions(NamedTuple):
    """A command line without the options that every command has, and the values of these options."""

    arguments: list[str]
    color: str = "auto"
    pager: bool = True


def take_output_options(words: list[str]) -> OutputOptions:
    """Remove --color and --no-pager from a command line, wherever they are before `--`. Raise UsageError."""
    end = words.index("--") if "--" in words else len(words)
    arguments, color, pager = [], "auto", True
    before = iter(words[:end])
    for word in before:
        name, equals, value = word.partition("=")
        if name == "--color":
            color = value if equals else next(before, "")
            if color not in COLOUR_MODES:
                hint = f"Use one of {', '.join(COLOUR_MODES)}."
                raise UsageError(f"--color takes auto, always or never, not '{color}'", hint=hint)
        elif word == "--no-pager":
            pager = False
        else:
            arguments.append(word)
    return OutputOptions(arguments + words[end:], color, pager)


def _start_paging(given: OutputOptions) -> PagedOutput | None:
    """Replace stdout by a pager if it is a terminal and the command may print much; None if no pager was started."""
    command = next((word for word in given.arguments if not word.startswith("-")), "")
    source = _SOURCES.get(command)
    wanted = given.pager and source is not None and source.paged and not is_json_asked(given.arguments)
    if not wanted or sys.stdout is None or not (sys.stdout.isatty() and sys.stdin is not None and sys.stdin.isatty()):
        return None
    from slurmwrap.cli.terminal import PagedOutput, find_pager

    pager = find_pager(os.environ, os.geteuid())
    if not pager:
        return None
    # A serial console reports 0 rows.
    rows = os.get_terminal_size(sys.stdout.fileno()).lines or 24
    paged = PagedOutput(sys.stdout, pager, rows)
    sys.stdout = cast("TextIO", paged)
    return paged


def _run(given: OutputOptions, console: Console) -> int:
    report = _ErrorReport(console, is_json_asked(given.arguments))
    # typer.echo removes colours when stdout is not a terminal, unless its context has color=True.
    color = True if given.color == "always" else None
    try:
        # typer's own error handling (standalone mode) would print errors before they can become JSON.
        ended = app(given.arguments, prog_name="slurmwrap", standalone_mode=False, color=color)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except SlurmwrapError as error:
        console.error(error)
        return report.end(type(error).__name__, str(error), error.hint, get_exit_code(error))
    except typer.Abort:
        console.say("aborted")
        return report.end("Abort", "aborted", "", 1)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _WRITE_FAILED_ERRNOS and error.filename is None:
            return _report_write_error(error, console)
        # An option or argument that typer refuses. typer exports no name for this exception class.
        if isinstance(error, _TYPER_ERROR):
            error.show()
            context = getattr(error, "ctx", None)
            hint = f"{context.command_path if context else 'slurmwrap'} --help"
            return report.end("UsageError", error.format_message(), hint, error.exit_code)
        console.fault(error)
        return report.end(type(error).__name__, str(error), "", EX_SOFTWARE)
    return ended if isinstance(ended, int) else 0


# click's ClickException, the base class of every refused option: typer exports only some of its subclasses.
_TYPER_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def get_exit_code(error: SlurmwrapError) -> int:
    """Return the exit code of `slurmwrap` for an error: 2 for a wrong command line, where gsub has sbatch's 255."""
    # A UsageError may carry a code of its own. A 255 in any other error comes from Slurm and is kept.
    is_usage = isinstance(error, UsageError) and error.exit_code == UsageError.exit_code
    return EX_USAGE if is_usage else error.exit_code


class _ErrorReport(NamedTuple):
    """Prints errors as JSON when --json was given."""

    console: Console
    as_json: bool

    def end(self, name: str, message: str, hint: str, code: int) -> int:
        if self.as_json:
            try:
                print(format_json_error(name, message, hint, code), flush=True)
            except OSError as full:
                return _report_write_error(full, self.console)
        return code


def _report_write_error(error: OSError, console: Console) -> int:
    """Report once that standard output cannot be written, discard the rest of the output, and return EX_IOERR."""
    if not isinstance(error, BrokenPipeError):
        console.error(SlurmwrapError(f"the output could not be written: {error.strerror}"))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EX_IOERR


if __name__ == "__main__":
    main()
