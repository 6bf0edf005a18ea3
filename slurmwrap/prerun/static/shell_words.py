"""Words, redirections and commands of a parsed batch script, and the expansion of words (adapter: user database)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass

__all__ = [
    "UNKNOWN",
    "Guess",
    "Heredoc",
    "Part",
    "RawCommand",
    "RawWord",
    "Redirection",
    "expand",
    "split_shell_assignment",
]


# ("text", value, "") | ("variable", name, default) | ("home", user, "") | ("unknown", code of a substitution, "")
# | ("process", code, ""): the file name that replaces <(code) or >(code)
Part = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWord:
    """A word before expansion."""

    parts: tuple[Part, ...]
    quoted: bool = False
    glob: bool = False
    # Number of the line on which it begins.
    line: int = 0

    @property
    def literal(self) -> str | None:
        """Its text if it has nothing to expand, else None."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == "text" else None

    @property
    def bare(self) -> str | None:
        """Its text if it has nothing to expand and no quotes, else None."""
        return None if self.quoted else self.literal

    @property
    def is_process(self) -> bool:
        """Whether it contains a process substitution, so that it names a pipe and no file."""
        return any(kind == "process" for kind, _, _ in self.parts)


@dataclass(slots=True, kw_only=True)
class Heredoc:
    """A here-document. The reader fills in the body when it reaches it."""

    delimiter: str
    dashed: bool
    # The delimiter is quoted, so the shell expands nothing in the body.
    quoted: bool
    body: str = ""
    # Number of the body's first line.
    line: int = 0
    # The delimiter was found.
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """One redirection. `script[start:end]` is its word as written."""

    # "<", ">", ">>", ">|", "<>", "<&", ">&", "&>", "&>>", "<<", "<<-", "<<<"
    operator: str
    word: RawWord
    start: int
    end: int
    # "", "2", "{fd}"
    descriptor: str = ""
    heredoc: Heredoc | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCommand:
    """One simple command as written. `line` counts from 1. `sure` is False if the command may not run at all."""

    words: tuple[RawWord, ...]
    line: int
    sure: bool
    redirections: tuple[Redirection, ...] = ()
    # It reads from a pipe.
    feeds: bool = False
    # It is in a function, so $1 and "$@" are not the script's.
    in_function: bool = False
    # The operator after it.
    then: str = ""

    @property
    def targets(self) -> tuple[Redirection, ...]:
        """The redirections that write to a file or a descriptor."""
        return tuple(one for one in self.redirections if ">" in one.operator and not one.word.is_process)

    @property
    def reads(self) -> tuple[RawWord, ...]:
        """Files after `<`."""
        return tuple(one.word for one in self.redirections if one.operator == "<" and not one.word.is_process)

    @property
    def stdin(self) -> Redirection | None:
        """The redirection of its standard input: the last one counts. None if there is none."""
        found = (one for one in reversed(self.redirections) if one.operator[0] == "<" and one.descriptor in ("", "0"))
        return next(found, None)

    @property
    def writes(self) -> bool:
        """Whether its output goes to a file that may be a program."""
        names = (one.word.literal for one in self.targets)
        return any(name is None or name.endswith((".py", ".sh")) for name in names)


# Stands for a word, or a part of one, that only the running shell knows. No real word contains a NUL.
UNKNOWN = "\0"


class Guess(str):
    """A word that is right unless the environment sets another value: the default of `${NAME:-default}`."""

    __slots__ = ()


_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)(\[.*?\])?(\+)?=")


def expand(word: RawWord, variables: Mapping[str, str | None], args: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the words to which `word` expands. A name that is missing or None in `variables` gives UNKNOWN.

    `args` None: $1 and "$@" are not known.
    """
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
    """Return (name, value) of `NAME=value`. None for any other word.

    The values of `NAME+=value` and `NAME[INDEX]=value` are unknown.
    """
    found = _ASSIGNMENT.match("".join(value if kind == "text" else UNKNOWN for kind, value, _ in word.parts))
    if found is None:
        return None
    if found[2] or found[3]:
        return found[1], RawWord(parts=(("unknown", "", ""),), quoted=True)
    value = (("text", word.parts[0][1][found.end() :], ""), *word.parts[1:])
    return found[1], RawWord(parts=value, quoted=True)


# Command substitutions whose directory is known: $(pwd), $(realpath "$SLURM_SUBMIT_DIR").
_DIRECTORY = r"""(?:(?:realpath|readlink\s+-[fe])\s+"?\$\{?(SLURM_SUBMIT_DIR|PWD)\}?"?|pwd(?:\s+-[LP])?)\s*"""


def _find_home(user: str) -> str | None:
    # Imported here because few scripts name another user's home.
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
