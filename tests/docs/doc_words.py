"""Checks that the words of documented commands exist: commands, options and make targets. Runs nothing.

Reads command lines of blocks, and inline code within a text, where `a|b`, `[--json]` and `…` may occur.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from doc_pages import ROOT
from docs_commands import Command, gsub_options, slurmwrap

from slurmwrap.sbatch.option_table import OWN_BY_NAME, Argument

TREE = slurmwrap()
GSUB = {**gsub_options(), "--help": Argument.NONE, "-h": Argument.NONE}
TARGETS = set(re.findall(r"^([a-z0-9.-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
_KNOWN = ("slurmwrap", "gsub", "make", "python")


def find_unknown_words(text: str) -> Iterator[str]:
    """One sentence for each word of a command line that does not exist."""
    for inner in re.findall(r"[$<]\(([^()]*)\)", text):
        yield from find_unknown_words(inner)
    for words in _simple_commands(text):
        name = words[0].rpartition("/")[2]
        if name == "slurmwrap":
            yield from _wrong_slurmwrap(words[1:])
        elif name == "gsub":
            yield from _wrong_gsub(words[1:])
        elif name == "make":
            targets = [word for word in words[1:] if not word.startswith("-") and "=" not in word and word.islower()]
            yield from (f"make has no target {target}" for target in targets if target not in TARGETS)
        elif name in ("python", "python3") and len(words) > 1 and words[1].startswith(("bench/", ".ci/", "tests/")):
            yield from () if (ROOT / words[1]).exists() else (f"there is no {words[1]}",)


def _simple_commands(text: str) -> Iterator[list[str]]:
    text = re.sub(r"<\([^()]*\)", "FILE", re.sub(r"\\\n\s*", " ", text))
    text = re.sub(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n.*?\n\s*\1\b", "", text, flags=re.DOTALL)
    for line in text.splitlines():
        for part in re.split(r" \| | && | \|\| |; ", line):
            words = _split(part)
            while words and (
                re.match(r"^\w+=", words[0]) or words[0] in ("sudo", "exec", "time", "env", "$", "do", "!")
            ):
                words = words[1:]
            if words:
                yield words


def _split(part: str) -> list[str]:
    try:
        return shlex.split(part, comments=True)
    except ValueError:  # an apostrophe or an incomplete quotation
        return part.split()


def _wrong_slurmwrap(words: list[str]) -> Iterator[str]:
    command, rest = TREE, list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith(("<", ">", "2>")) or word in ("…", "...", "&"):
            return
        if word.lstrip("[").startswith("-") and word != "-":
            yield from _wrong_options(command, word)
            if "=" not in word and _takes_value(command, word) and rest and not word.endswith("]"):
                rest.pop(0)
        elif command.below:
            found = [_below(command, one) for one in _alternatives(word)]
            yield from (
                f"{command.name} has no command {one}"
                for one in _alternatives(word)
                if not _below(command, one) and not _stands_for(one)
            )
            if len(found) != 1 or found[0] is None:
                return
            command = found[0]
        elif any("SCRIPT [ARGUMENTS]" in row.typed for row in command.arguments):
            return  # the rest belongs to sbatch and the script


def _below(command: Command, name: str) -> Command | None:
    return next((one for one in command.below if one.path[-1] == name), None)


def _wrong_options(command: Command, word: str) -> Iterator[str]:
    for one in _alternatives(word):
        name = one.partition("=")[0]
        known = {name for row in command.options for name in row.words}
        if name not in known and not _stands_for(name):
            yield f"{command.name} has no option {name}"


def _takes_value(command: Command, word: str) -> bool:
    return any(row.takes_value for row in command.options if word.strip("[]") in row.words)


def _wrong_gsub(words: list[str]) -> Iterator[str]:
    rest = list(words)
    while rest and rest[0].lstrip("[").startswith("-"):
        word = rest.pop(0)
        for one in _alternatives(word) if not re.match(r"--?[\w-]+=", word) else (word.strip("[]"),):
            name, given, value = one.partition("=")
            option = _gsub_option(name)
            if option is None:
                yield f"gsub has no option {name}"
            elif option is Argument.REQUIRED and not given and re.fullmatch(r"-\w|--.*", name) and rest:
                rest.pop(0)  # its value
            yield from _wrong_choice(name, value)


def _gsub_option(name: str) -> Argument | None:
    if not name.startswith("--"):
        return GSUB.get(name[:2])
    found = {option for option in GSUB if option.startswith(name)}
    return GSUB.get(name) or (GSUB[found.pop()] if len(found) == 1 else None)


def _wrong_choice(name: str, value: str) -> Iterator[str]:
    own = OWN_BY_NAME.get(name.removeprefix("--"))
    if own and own.choices and value:
        yield from (
            f"gsub {name} has no {one}"
            for one in _alternatives(value)
            if one not in own.choices and not _stands_for(one)
        )


def _alternatives(word: str) -> list[str]:
    return [one for one in word.strip("[],.").replace("/--", "|--").split("|") if one]


def _stands_for(word: str) -> bool:
    """Whether a word is a placeholder: COMMAND, …, MODE."""
    return not word or "…" in word or "*" in word or word.upper() == word
