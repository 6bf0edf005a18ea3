"""Reads a batch script without running it: turns shell text into commands made of words. Pure but for the home of
`~user`.

Not a shell: it knows quotes, simple variables, line continuations, here-documents, operators and compound commands
well enough to say what a typical job script starts, and says where it does not know (`Word.text` is None).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.shell_clauses import (
    CLOSING,
    OPENING,
    SKIPPED,
    ClauseReader,
    Heredoc,
    Part,
    RawWord,
    Target,
    get_bare_text,
)

__all__ = [
    "UNKNOWN",
    "Guess",
    "Heredoc",
    "RawCommand",
    "RawWord",
    "Target",
    "expand",
    "parse_commands",
    "split_shell_assignment",
]

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCommand:
    """One simple command as written. `line` is 1-based; `sure` False when it may not run at all."""

    words: tuple[RawWord, ...]
    line: int
    sure: bool
    writes: bool = False  # its output goes to a file that may be a program
    reads: tuple[RawWord, ...] = ()  # what is behind `<`
    heredoc: Heredoc | None = None  # the last one, which is what the command reads
    feeds: bool = False  # it is behind a pipe
    in_function: bool = False  # $1 and "$@" are not the script's
    then: str = ""  # the operator behind it
    targets: tuple[Target, ...] = ()  # what is behind `>`


# `> file` and `done > file` run no command of their own
_NOTHING = RawWord(parts=(("text", ":", ""),))
# Stands for text that only the running shell knows, a word or part of one; no real word holds a NUL.
UNKNOWN = "\0"


class Guess(str):
    """A word that holds if the environment sets nothing else: the default of `${NAME:-default}`."""

    __slots__ = ()


def parse_commands(script: str) -> tuple[RawCommand, ...]:
    """All simple commands of `script`, in order; what is in functions, loops and branches is not `sure`."""
    state = _Nesting()
    found: list[RawCommand] = []
    after = ""
    for line, raw, operator, writes, reads, heredoc, targets in ClauseReader(script).clauses():
        words = state.enter(raw, operator) or ((_NOTHING,) if targets else ())
        if words:
            sure = state.sure and (after != "||") and (after != "&&" or bool(found and _is_continued(found[-1])))
            found.append(
                RawCommand(
                    words=words,
                    line=line,
                    sure=sure,
                    writes=writes,
                    reads=reads,
                    heredoc=heredoc,
                    feeds=after in ("|", "|&"),
                    in_function=state.functions > 0,
                    then=operator,
                    targets=targets,
                )
            )
        state.leave(operator)
        after = operator if raw or operator != "\n" else after
    return tuple(found)


_TESTS = ("[", "[[", "((", "test", "grep", "command", "which", "type")


def _is_continued(command: RawCommand) -> bool:
    # What follows `cd x &&` runs in every job worth checking; what follows a test may not.
    return command.sure and command.words[0].literal not in _TESTS


class _Nesting:
    """How deep the reader is in compound commands, functions and subshells."""

    def __init__(self) -> None:
        self.depth = self.functions = self.cases = self.subshells = 0

    @property
    def sure(self) -> bool:
        return not (self.depth or self.functions or self.subshells)

    def enter(self, words: tuple[RawWord, ...], operator: str) -> tuple[RawWord, ...]:
        """Strips reserved words; what is left is a simple command."""
        at = 0
        while at < len(words) and (first := get_bare_text(words[at])) and (first in SKIPPED | OPENING or first == "}"):
            self.depth += (first in OPENING) - (first in CLOSING)
            self.cases += (first == "case") - (first == "esac")
            self.functions -= first == "}" and self.functions > 0
            at = len(words) if first in ("for", "case", "select") else at + 1
        words = words[at:]
        if operator == "()" or (words and get_bare_text(words[0]) == "function"):
            self.functions += 1
            return ()
        return () if operator == ")" and self.cases else words  # a pattern of `case`

    def leave(self, operator: str) -> None:
        """Counts subshells."""
        if operator == "(":
            self.subshells += 1
        elif operator == ")" and not self.cases and self.subshells:
            self.subshells -= 1


def expand(word: RawWord, variables: Mapping[str, str | None], args: tuple[str, ...] | None) -> tuple[str, ...]:
    """The words that `word` becomes. A name that is not in `variables`, or None there, gives UNKNOWN in its place.

    `args` None: $1 and "$@" are not known."""
    if len(word.parts) == 1 and word.parts[0][:2] in (("variable", "@"), ("variable", "*")):
        return (UNKNOWN,) if args is None else args
    pieces = [_expand_part(part, variables, args) for part in word.parts]
    if word.glob:
        return (UNKNOWN,)
    text = "".join(UNKNOWN if piece is None else piece for piece in pieces)
    kind = Guess if any(isinstance(piece, Guess) for piece in pieces) else str
    if word.quoted or all(part[0] == "text" for part in word.parts):
        return (kind(text),)
    return tuple(kind(part) for part in text.split())


def split_shell_assignment(word: RawWord) -> tuple[str, RawWord] | None:
    """(name, value) of `NAME=value`; the value of `NAME+=value` is unknown."""
    if not word.parts or word.parts[0][0] != "text" or not (found := _ASSIGNMENT.match(word.parts[0][1])):
        return None
    rest = word.parts[0][1][found.end() :]
    parts = (("text", rest, ""), *word.parts[1:]) if not found[2] else (("unknown", "", ""),)
    return found[1], RawWord(parts=parts, quoted=True)


# Substitutions that give a directory which is known: $(pwd), $(realpath "$SLURM_SUBMIT_DIR").
_DIRECTORY = r"""(?:(?:realpath|readlink\s+-[fe])\s+"?\$\{?(SLURM_SUBMIT_DIR|PWD)\}?"?|pwd(?:\s+-[LP])?)\s*"""


def _find_home(user: str) -> str | None:
    # Here: few scripts name another user's home.
    import pwd

    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return None


def _expand_part(part: Part, variables: Mapping[str, str | None], args: tuple[str, ...] | None) -> str | None:
    kind, name, default = part
    if kind == "unknown":
        found = re.fullmatch(_DIRECTORY, name.strip())
        return variables.get(found[1] or "PWD") if found else None
    if kind == "text":
        return name
    if kind == "home":
        return _find_home(name)
    if name == "0" or (args is None and (name.isdigit() or name in "#@*")):
        return None
    args = args or ()
    if name.isdigit():
        return args[int(name) - 1] if int(name) <= len(args) else default
    if name in ("#", "@", "*"):
        return str(len(args)) if name == "#" else " ".join(args)
    value = variables.get(name)
    return value or (Guess(default) if default and (name not in variables or value == "") else value)
