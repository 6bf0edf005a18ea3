"""Collect the commands for the documentation: slurmwrap's from typer, gsub's from the text of its help.

docs_reference.py (pages), docs_man.py (man pages) and tests/docs (do documented command lines exist?) use it. The only
source is the output of --help, so that nothing is written twice.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer

from slurmwrap.cli.slurmwrap import app
from slurmwrap.gsub.gsub_main import HELP
from slurmwrap.sbatch.option_table import OWN, SBATCH, Argument


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One option or argument: its syntax and its description. `words`: the names of an option."""

    typed: str
    about: str
    words: tuple[str, ...] = ()
    takes_value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A paragraph of a help text, or preformatted lines with the line that introduces them."""

    text: str = ""
    title: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its words from `slurmwrap` on, its help in blocks, its arguments and options, its subcommands."""

    path: tuple[str, ...]
    about: str
    blocks: tuple[Block, ...]
    arguments: tuple[Row, ...]
    options: tuple[Row, ...]
    below: tuple[Command, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def synopsis(self) -> str:
        tail = ("COMMAND …",) if self.below else tuple(row.typed for row in self.arguments)
        return " ".join((self.name, *(("[OPTIONS]",) if len(self.options) else ()), *tail))


def slurmwrap() -> Command:
    """Return the tree of all commands that are not hidden."""
    return _command(typer.main.get_command(app), ("slurmwrap",))


def each(command: Command) -> Iterator[Command]:
    """Yield the command and all commands below it, parents first."""
    yield command
    for one in command.below:
        yield from each(one)


def examples(command: Command) -> tuple[str, ...]:
    """Return the command lines in its help, with continued lines joined and without explanations next to them."""
    lines = (line for block in command.blocks for line in _joined(block.lines))
    found = (re.split(r" {2,}(?=[a-zA-Z])", line.strip())[0] for line in lines)
    return tuple(line for line in found if re.match(r"(\w+=\S+ )?(slurmwrap|gsub|source|eval|scontrol|sacct)\b", line))


def _joined(lines: tuple[str, ...]) -> list[str]:
    # A line continues the previous one if that ends with a backslash, or if it is indented deeper than the block.
    text = "\n".join(lines)
    return re.sub(r"\\\n\s*", "", text).splitlines()


def _command(found: Any, path: tuple[str, ...]) -> Command:
    shown = [one for one in found.params if not getattr(one, "hidden", False)]
    hints = _hints(found)
    options = [_option(one, hints) for one in shown if one.param_type_name == "option"]
    below = {name: one for name, one in getattr(found, "commands", {}).items() if not one.hidden}
    text = inspect.cleandoc(found.help or "")
    return Command(
        path=path,
        about=_first_sentence(found.short_help or text),
        blocks=blocks(text),
        arguments=tuple(_argument(one) for one in shown if one.param_type_name == "argument"),
        options=(*options, Row(typed="-h, --help", about="Show the help and exit.", words=("-h", "--help"))),
        below=tuple(_command(one, (*path, name)) for name, one in below.items()),
    )


def blocks(text: str) -> tuple[Block, ...]:
    """Return the blocks of a help text in click's format: paragraphs, and preformatted ones after a line with \\b."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\x08\n)", text.partition("\f")[0])
    return tuple(_block(paragraph) for paragraph in paragraphs if paragraph.strip())


def _block(paragraph: str) -> Block:
    if found := re.match(r"Examples?:  (.*)", paragraph, re.DOTALL):  # a paragraph of its own, ` · ` between the lines
        lines = re.split(r"\s+·\s+|\n\s+", found[1])
        return Block(title="Examples:", lines=tuple(line.strip() for line in lines))
    if not paragraph.startswith("\b"):
        return Block(text=" ".join(paragraph.split()))
    paragraph = re.sub(r"^Examples?:  +", "Examples:\n  ", paragraph.removeprefix("\b").strip("\n"))
    first, *rest = paragraph.splitlines()
    if not rest or not first.endswith((":", "?")):
        return Block(lines=(first, *rest))
    return Block(title=first, lines=tuple(inspect.cleandoc("\n" + "\n".join(rest)).splitlines()))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].replace("\b", "").split())
    return re.split(r"(?<=[.?!]) (?=[A-Z])", paragraph)[0].removesuffix(".")


def _hints(found: Any) -> dict[str, object]:
    return get_type_hints(inspect.unwrap(found.callback)) if found.callback else {}


def _option(one: Any, hints: dict[str, object]) -> Row:
    flag = one.is_flag or one.count
    value = "" if flag else one.metavar or _metavar(hints.get(one.name))
    names = " / ".join(filter(None, (", ".join(_short_first(one.opts)), ", ".join(one.secondary_opts))))
    about = " ".join((one.help or "").split())
    if (default := _default(one, flag)) and "[default:" not in about:
        about = f"{about}  [default: {default}]"
    if one.required:
        about = f"{about}  [required]"
    words = (*one.opts, *one.secondary_opts)
    return Row(typed=f"{names} {value}".strip(), about=about.strip(), words=words, takes_value=not flag)


def _short_first(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: name.startswith("--"))


def _default(one: Any, flag: bool) -> str:
    if one.default is None or not one.show_default or callable(one.default):
        return ""
    if flag:  # of a pair of flags, the one that is the default
        pair = one.opts if one.default else one.secondary_opts
        return pair[0].removeprefix("--") if one.secondary_opts and pair else ""
    if isinstance(one.default, (list, tuple)):
        return " ".join(map(str, one.default))
    return str(one.default)


def _argument(one: Any) -> Row:
    name = one.metavar or one.name.upper()
    many = "…" if one.nargs == -1 and not name.endswith("…") and "[" not in name else ""
    typed = f"{name}{many}" if one.required or name.startswith("[") else f"[{name}{many}]"
    return Row(typed=typed, about=" ".join((one.help or "").split()))


_WORDS = {str: "TEXT", Path: "PATH", int: "N", float: "X"}


def _metavar(hint: object) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next((one for one in get_args(hint) if one is not type(None)), hint)
    if get_origin(hint) in (list, tuple):
        return f"{_metavar(get_args(hint)[0])} …"
    return _WORDS.get(hint, "TEXT")  # type: ignore[call-overload,no-any-return]


# --- gsub ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of gsub's help: the line that introduces it, and rows or a paragraph."""

    title: str
    text: str
    rows: tuple[Row, ...] = ()


def gsub() -> tuple[Section, ...]:
    """Return gsub's help in sections: prose, and indented lines with two columns, which become rows."""
    found: list[Section] = []
    for paragraph in HELP.strip().split("\n\n"):
        lines = paragraph.splitlines()
        prose = [line for line in lines if not line.startswith("  ")]
        rows = tuple(_gsub_rows([line for line in lines if line.startswith("  ")]))
        title = prose[-1] if prose and prose[-1].endswith(":") and rows else ""
        found.append(Section(title=title, text="" if title else " ".join(prose), rows=rows))
    return tuple(found)


def _gsub_rows(lines: list[str]) -> Iterator[Row]:
    typed, about = "", []
    for line in lines:
        if not line.startswith("   "):
            if typed:
                yield _gsub_row(typed, about)
            # Two columns; when the first fills its width, only a single space follows it.
            left, right = [*re.split(r"\s{2,}|(?<=COMMAND) ", line.strip(), maxsplit=1), ""][:2]
            if not right and line.strip().startswith("gsub ") and (cut := _second_column(line, lines)):
                left, right = line[:cut].strip(), line[cut:].strip()
            typed, about = left, [right]
        else:
            about.append(line.strip())
    if typed:
        yield _gsub_row(typed, about)


def _second_column(line: str, lines: list[str]) -> int:
    """Return where the second column of these lines begins: where most have a word after two spaces."""
    starts = [found.end() for one in lines if (found := re.search(r"\S\s{2,}(?=\S)", one[2:]))]
    at = max(set(starts), key=starts.count) + 2 if starts else 0
    return at if at and len(line) > at and line[at - 1] == " " else 0


def _gsub_row(typed: str, about: list[str]) -> Row:
    words = tuple(re.findall(r"--[a-z-]+", typed)) if typed.startswith("--") else ()
    return Row(typed=typed, about="\n".join(filter(None, about)), words=words)


def gsub_options() -> dict[str, Argument]:
    """Return every option of a gsub command line by its name: sbatch's and gsub's own."""
    long = {f"--{one.name}": one.argument for one in SBATCH}
    short = {f"-{one.short}": one.argument for one in SBATCH if one.short}
    return long | short | {f"--{one.name}": one.argument for one in OWN}
