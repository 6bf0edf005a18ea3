"""What the completion scripts are made of: gsub's options out of the option table, slurmwrap's out of its command tree.

The scripts hold this as data, so that no key press starts Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.cli.completion.option_menus import NOT_OFFERED, OWN_WORDS, SBATCH_WORDS, MenuWord
from slurmwrap.diagnosis.taxonomy import DECISIONS, FAILURES
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.options import BASE, OWN, SBATCH, Argument, GsubOption, Release, SbatchOption

NEVER = 9999  # later than any release


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One option as a template sees it. `since` and `until` are releases as a number: 2411 is Slurm 24.11."""

    long: str
    short: str = ""
    argument: Argument = Argument.NONE
    about: str = ""
    values: str = ""  # a word of option_menus.py's language; after `choice` come the choices
    since: int = 0  # 0: every release that is supported
    until: int = NEVER
    offered: bool = True

    @property
    def dated(self) -> bool:
        """Whether some supported release lacks it."""
        return self.since > 0 or self.until < NEVER

    @property
    def names(self) -> tuple[str, ...]:
        """As they are typed, the letter first."""
        return tuple(name for name in (self.short, self.long) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of slurmwrap: its words, what may follow, and the values of its arguments in order."""

    path: tuple[str, ...]
    about: str
    below: tuple[tuple[str, str], ...]  # (name, about) of its own commands
    options: tuple[Offer, ...]
    arguments: tuple[str, ...]
    repeats: bool  # the last argument may stand several times

    @property
    def name(self) -> str:
        """Its words as one, as they are typed after `slurmwrap`."""
        return " ".join(self.path)


def gsub_offers() -> tuple[Offer, ...]:
    """Every option of sbatch and of gsub."""
    own = (_own_offer(option, OWN_WORDS[option.name]) for option in OWN)
    return (*own, *(_make_offer(option, SBATCH_WORDS[option.name]) for option in SBATCH))


def _make_offer(option: SbatchOption, word: MenuWord) -> Offer:
    return Offer(
        long=f"--{option.name}",
        short=f"-{option.short}" if option.short else "",
        argument=option.argument,
        about=word.about,
        values=_format_values(word.values, word.choices),
        since=0 if option.since <= BASE else _number_release(option.since),
        until=_number_release(option.until) if option.until else NEVER,
        offered=option.name not in NOT_OFFERED,
    )


def _own_offer(option: GsubOption, word: MenuWord) -> Offer:
    values = _format_values(word.values, option.choices)
    return Offer(long=f"--{option.name}", argument=option.argument, about=word.about, values=values)


def _format_values(kind: str, choices: tuple[str, ...]) -> str:
    return " ".join((kind, *choices))


def _number_release(release: Release) -> int:
    return release[0] * 100 + release[1]


# --- slurmwrap ----------------------------------------------------------------------------------------------------

# Where the words of the command line say it and nothing in the command tree does.
_BY_NAME: Mapping[str, str] = {
    "--user": "user",
    "--account": "account",
    "--partition": "partition",
    "--node": ",node",
    "--category": f"choice {' '.join(FAILURES)}",
    "--decision": f"choice {' '.join(DECISIONS)}",
    "--status": "choice suspect lemon drained ok",
    "--slurm-user": "user",
    "--topology": "choice tree none",
    "--source": "choice prerun epilog import user",
    "--run-times": "choice small gavel",
    "--gpu-demand": "choice single synthetic",
    "--gate": "choice on off",
    "shell": "choice bash zsh fish",
    "node": "node",
}
_BY_METAVAR: Mapping[str, str] = {
    "DIR": "dir",
    "FILE": "file",
    "FILE…": "file",
    "FILE...": "file",
    "TRACE": "file",
    "NODE": ",node",
    "JOBID": "run",
    "ID|last": "run",
    "[JOB|FINGERPRINT]": "run",
    "KEY|SCRIPT|last": "file",
    "[SBATCH OPTIONS] SCRIPT [ARGUMENTS]": "file",
}


def slurmwrap_commands(root: Any) -> tuple[Command, ...]:
    """The command tree under `root` (what typer.main.get_command gives), parents first."""
    return tuple(_list_commands(root, ()))


def _list_commands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    below = {name: one for name, one in getattr(command, "commands", {}).items() if not one.hidden}
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    yield Command(
        path=path,
        about=_short_help(command),
        below=tuple((name, _short_help(one)) for name, one in below.items()),
        options=(*_list_option_offers(command, shown), Offer(long="--help", short="-h", about="show help")),
        arguments=tuple(_select_value_kind(command, one) for one in arguments),
        repeats=bool(arguments) and arguments[-1].nargs == -1,
    )
    for name, one in below.items():
        yield from _list_commands(one, (*path, name))


def _list_option_offers(command: Any, shown: list[Any]) -> Iterator[Offer]:
    for one in (one for one in shown if one.param_type_name == "option"):
        argument = Argument.NONE if one.is_flag or one.count else Argument.REQUIRED
        short = next((name for name in one.opts if not name.startswith("--")), "")
        about = " ".join((one.help or "").split())
        values = "" if argument is Argument.NONE else _select_value_kind(command, one)
        for long in [name for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]:
            yield Offer(long=long, short=short, argument=argument, about=about, values=values)
            short = ""


def _select_value_kind(command: Any, parameter: Any) -> str:
    """Where a parameter's values come from: by its name, its metavar, or its type in the function's signature."""
    for name in (*parameter.opts, parameter.name):
        if name in _BY_NAME:
            return _BY_NAME[name]
    if parameter.metavar in _BY_METAVAR:
        return _BY_METAVAR[parameter.metavar]
    if "--dir" in parameter.opts or any(name.endswith("-dir") for name in parameter.opts):
        return "dir"
    signature = inspect.signature(inspect.unwrap(command.callback)).parameters if command.callback else {}
    annotation = str(signature[parameter.name].annotation) if parameter.name in signature else ""
    return "file" if "Path" in annotation else ""


def _short_help(command: Any) -> str:
    """The first sentence of its help, or what the tree says in short."""
    text: str = command.short_help or (command.help or "").partition("\n\n")[0]
    return " ".join(text.split()).removesuffix(".")
