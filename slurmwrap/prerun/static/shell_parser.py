"""Parse a batch script into commands, words, redirections and here-documents without running it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass

_OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "(", ")")
OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
CLOSING = frozenset({"fi", "done", "esac"})
SKIPPED = frozenset({"then", "else", "elif", "do", "!", "time", "{"}) | CLOSING
RESERVED = SKIPPED | OPENING
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*\+?=([^=]*:)?$")
_TEST = re.compile(r"\[\[\s")
# Longest `((` expression in characters, and how many are examined: this bounds the time for a script full of brackets.
_MAX_ARITHMETIC_LENGTH, _MAX_ARITHMETIC = 400, 2000
_REDIRECT = re.compile(r"(?:\d*|&)(<<<|<<-?|[<>]>?[&|]?|&>>?)")
_TILDE = re.compile(r"~([A-Za-z_][\w.-]*)?(?=[/:\s;&|()<>]|$)")

# ("text", value, "") | ("variable", name, default) | ("home", user, "") | ("unknown", "", "")
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
class Target:
    """A file that a redirection writes to. `script[start:end]` is its word as written."""

    # ">", ">>", ">|", "<>", "&>", "&>>", ">&"
    operator: str
    word: RawWord
    start: int
    end: int


Clause = tuple[int, tuple[RawWord, ...], str, bool, tuple[RawWord, ...], Heredoc | None, tuple[Target, ...]]


def get_bare_text(word: RawWord) -> str | None:
    """Return the text of a word without quotes that has nothing to expand, else None."""
    return None if word.quoted else word.literal


class ClauseReader:
    """Splits the text into clauses in one pass. Besides the position it keeps state only for the current clause."""

    def __init__(self, script: str) -> None:
        self.text, self.at, self.line = script, 0, 1
        self.heredocs: list[Heredoc] = []
        # Files that the current clause reads.
        self.reads: list[RawWord] = []
        self.heredoc: Heredoc | None = None
        # Files that the current clause writes.
        self.targets: list[Target] = []
        self.looks = _MAX_ARITHMETIC

    def clauses(self) -> list[Clause]:
        """Return (line, words, final operator, writes a program, files after `<`, here-document, files after `>`)."""
        found: list[Clause] = []
        words: list[RawWord] = []
        # `begins` is True as long as the clause has only reserved words.
        line, writes, begins = 1, False, True
        while self.at < len(self.text):
            if begins and self._skip_blanks() and (condition := self._read_condition()):
                line = line if words else condition[0].line
                words, begins = words + condition, False
            elif (operator := self._read_operator()) is not None:
                if operator == "(" and len(words) == 1 and self.text[self.at : self.at + 1] == ")":
                    operator, self.at = "()", self.at + 1
                clause = (line, tuple(words), operator, writes, tuple(self.reads), self.heredoc, tuple(self.targets))
                found.append(clause)
                words, writes, self.reads, self.heredoc, self.targets, begins = [], False, [], None, [], True
            elif redirect := _REDIRECT.match(self.text, self.at):
                line = self.line if not words else line
                writes = self._read_redirection(redirect) or writes
            else:
                line = self.line if not words else line
                word = self._read_word()
                words += [word] if word.parts else []
                begins = begins and (not word.parts or get_bare_text(word) in RESERVED)
        return [*found, (line, tuple(words), "", writes, tuple(self.reads), self.heredoc, tuple(self.targets))]

    def _read_condition(self) -> list[RawWord]:
        """Return the words of a `[[ ... ]]` or `(( ... ))` that begins here; [] if there is none."""
        if self.text.startswith("((", self.at):
            return self._read_arithmetic()
        return self._read_test() if _TEST.match(self.text, self.at) else []

    def _read_arithmetic(self) -> list[RawWord]:
        """Return the words of a `(( ... ))`; [] if the brackets are a subshell within a subshell."""
        self.looks -= 1
        end = _find_arithmetic_end(self.text[self.at : self.at + _MAX_ARITHMETIC_LENGTH]) if self.looks > 0 else 0
        if not end:
            return []
        words = [RawWord(parts=parts, line=self.line) for parts in ((("text", "((", ""),), (("unknown", "", ""),))]
        self.line += self.text.count("\n", self.at, self.at + end)
        self.at += end
        return words

    def _read_test(self) -> list[RawWord]:
        words = [self._read_word()]
        while self.at < len(self.text) and get_bare_text(words[-1]) != "]]":
            here = self.text[self.at]
            if here == ";":
                # The condition never ends.
                break
            if here.isspace() or here in "&|()<>" or self.text.startswith("\\\n", self.at):
                self.line += "\n" in self.text[self.at : self.at + 2] if here == "\\" else here == "\n"
                self.at += 2 if here == "\\" else 1
            else:
                word = self._read_word()
                words += [word] if word.parts else []
        return words

    def _skip_blanks(self) -> bool:
        """Skip to the next word on the line. Always return True, for use in a condition."""
        while self.text[self.at : self.at + 1] in (" ", "\t", "\r"):
            self.at += 1
        return True

    def _read_operator(self) -> str | None:
        """Skip blanks and comments. Return the operator at this position, or None if a word starts."""
        while self.at < len(self.text):
            here = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif here in " \t\r":
                self.at += 1
            elif here == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif here == "\n":
                self.at, self.line = self.at + 1, self.line + 1
                self._skip_heredocs()
                return "\n"
            elif self.text.startswith("&>", self.at):
                return None
            else:
                found = next((o for o in _OPERATORS if self.text.startswith(o, self.at)), None)
                self.at += len(found or "")
                return found
        return ""

    def _read_redirection(self, found: re.Match[str]) -> bool:
        self.at = found.end()
        if found[1] in ("<", ">") and self.text[self.at : self.at + 1] == "(":
            # Process substitution.
            self.at += 1
            self._skip_until_closed("(", ")")
            return False
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        start = self.at
        target = self._read_word()
        if ">" in found[1] and target.parts:
            both = "&" if found[0].startswith("&") else ""
            self.targets.append(Target(operator=both + found[1].lstrip("&"), word=target, start=start, end=self.at))
        if found[1] in ("<<", "<<-"):
            delimiter = "".join(value for _, value, _ in target.parts)
            self.heredoc = Heredoc(delimiter=delimiter, dashed=found[1] == "<<-", quoted=target.quoted)
            self.heredocs.append(self.heredoc)
        if found[1] == "<" and target.parts:
            self.reads.append(target)
        return ">" in found[1] and (target.literal is None or target.literal.endswith((".py", ".sh")))

    def _skip_heredocs(self) -> None:
        for here in self.heredocs:
            here.line, lines = self.line, list[str]()
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line, self.at, self.line = self.text[self.at : end], end + 1, self.line + 1
                line = line.lstrip("\t") if here.dashed else line
                if line == here.delimiter:
                    here.ended = True
                    break
                lines.append(line)
            here.body = "".join(f"{line}\n" for line in lines)
        self.heredocs = []

    def _read_word(self) -> RawWord:
        parts: list[Part] = []
        quoted, glob, line = False, False, self.line
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;&|()<>":
            here = self.text[self.at]
            if here in "'\"":
                quoted = True
                parts += self._read_quoted(here)
            elif here == "\\":
                self._read_escape(parts)
            elif here in "$`":
                parts.append(self._read_dollar())
            elif (
                here == "~" and not quoted and _is_path_beginning(parts) and (tilde := _TILDE.match(self.text, self.at))
            ):
                parts.append(("home", tilde[1], "") if tilde[1] else ("variable", "HOME", ""))
                self.at = tilde.end()
            else:
                glob = (
                    glob or here in "*?[" or (here == "{" and "," in self.text[self.at : self.at + 200].split("}")[0])
                )
                # `~+` and `~-`.
                glob = glob or (here == "~" and not parts)
                parts.append(("text", here, ""))
                self.at += 1
                if here == "=" and self.text[self.at : self.at + 1] == "(":
                    # An array.
                    self.at += 1
                    self._skip_until_closed("(", ")")
                    parts.append(("unknown", "", ""))
        whole = _merge_parts(parts) or ((("text", "", ""),) if quoted else ())
        return RawWord(parts=whole, quoted=quoted, glob=glob, line=line)

    def _read_escape(self, parts: list[Part]) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            self.line += 1
        else:
            parts.append(("text", following, ""))

    def _read_quoted(self, quote: str) -> list[Part]:
        parts: list[Part] = []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            here = self.text[self.at]
            if quote == '"' and here in "$`":
                parts.append(self._read_dollar())
                continue
            if quote == '"' and here == "\\" and self.text[self.at + 1 : self.at + 2] in '"\\$`\n':
                self._read_escape(parts)
                continue
            self.line += here == "\n"
            parts.append(("text", here, ""))
            self.at += 1
        self.at += 1
        return parts

    def _read_dollar(self) -> Part:
        """Read a variable or a substitution that begins here with `$` or a backquote."""
        unknown: Part = ("unknown", "", "")
        if self.text[self.at] == "`":
            self.at += 1
            self._skip_until_closed("", "`")
            return unknown
        self.at += 1
        following = self.text[self.at : self.at + 1]
        if following == "(":
            self.at += 1
            start = self.at
            self._skip_until_closed("(", ")")
            return ("unknown", self.text[start : self.at - 1][:200], "")
        if following == "{":
            self.at += 1
            start = self.at
            self._skip_until_closed("{", "}")
            return _parse_braced(self.text[start : self.at - 1])
        if name := _NAME.match(self.text, self.at):
            self.at = name.end()
            return ("variable", name[0], "")
        if following and following in "@*#0123456789?$!-":
            self.at += 1
            return ("variable", following, "") if following not in "?$!-" else unknown
        return ("text", "$", "")

    def _skip_until_closed(self, opening: str, closing: str) -> None:
        """Skip past the bracket that closes the current one. Escaped and single-quoted text is not searched."""
        depth = 1
        while self.at < len(self.text) and depth:
            here = self.text[self.at]
            if here == "\\":
                self.at += 1
            elif here == "'" and closing != "}":
                end = self.text.find("'", self.at + 1)
                self.at = end if end > 0 else self.at
            depth += (here == opening) - (here == closing)
            self.line += here == "\n"
            self.at += 1


def _parse_braced(inside: str) -> Part:
    found = re.fullmatch(r"([A-Za-z_]\w*|\d+|@|\*)(?::?-([^$`\"'\\]*))?", inside)
    return ("variable", found[1], found[2] or "") if found else ("unknown", "", "")


def _is_path_beginning(parts: list[Part]) -> bool:
    """Return whether the shell expands a tilde after `parts`.

    It does at the beginning of a word and of an assigned value, and after a colon in that value (bash(1), Tilde
    Expansion).
    """
    text = "".join(value for kind, value, _ in parts if kind == "text")
    assigns = bool(parts) and parts[0][0] == "text" and _ASSIGNED.match(text) is not None
    return not parts or (assigns and parts[-1][0] == "text" and text[-1] in "=:")


def _merge_parts(parts: list[Part]) -> tuple[Part, ...]:
    merged: list[Part] = []
    for part in parts:
        if part[0] == "text" and merged and merged[-1][0] == "text":
            merged[-1] = ("text", merged[-1][1] + part[1], "")
        else:
            merged.append(part)
    return tuple(merged)


def _find_arithmetic_end(text: str) -> int:
    """Return the length of the `((...))` with which `text` begins; 0 if there is none."""
    depth = 0
    for found in re.finditer(r"[()]", text):
        depth += 1 if found[0] == "(" else -1
        if depth == 1 and found[0] == ")":
            return found.end() + 1 if text[found.end() : found.end() + 1] == ")" else 0
    return 0


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
    """One simple command as written. `line` counts from 1. `sure` is False if the command may not run at all."""

    words: tuple[RawWord, ...]
    line: int
    sure: bool
    # Its output goes to a file that may be a program.
    writes: bool = False
    # Files after `<`.
    reads: tuple[RawWord, ...] = ()
    # Its last here-document, which is the one that the command reads.
    heredoc: Heredoc | None = None
    # It reads from a pipe.
    feeds: bool = False
    # It is in a function, so $1 and "$@" are not the script's.
    in_function: bool = False
    # The operator after it.
    then: str = ""
    # Files after `>`.
    targets: tuple[Target, ...] = ()


# The word for `> file` and `done > file`, which run no command of their own.
_NOTHING = RawWord(parts=(("text", ":", ""),))
# Stands for a word, or a part of one, that only the running shell knows. No real word contains a NUL.
UNKNOWN = "\0"


class Guess(str):
    """A word that is right unless the environment sets another value: the default of `${NAME:-default}`."""

    __slots__ = ()


def parse_commands(script: str) -> tuple[RawCommand, ...]:
    """Return all simple commands of `script` in order. Those in functions, loops and branches are not `sure`."""
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
    # A command after `cd x &&` runs in every job worth checking; a command after a test may not run.
    return command.sure and command.words[0].literal not in _TESTS


class _Nesting:
    """The nesting depth of compound commands, functions and subshells."""

    def __init__(self) -> None:
        self.depth = self.functions = self.cases = self.subshells = 0

    @property
    def sure(self) -> bool:
        return not (self.depth or self.functions or self.subshells)

    def enter(self, words: tuple[RawWord, ...], operator: str) -> tuple[RawWord, ...]:
        """Remove reserved words and return the rest, which is a simple command."""
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
        # Before `)` in a `case` there is a pattern and no command.
        return () if operator == ")" and self.cases else words

    def leave(self, operator: str) -> None:
        """Count subshells."""
        if operator == "(":
            self.subshells += 1
        elif operator == ")" and not self.cases and self.subshells:
            self.subshells -= 1


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
    """Return (name, value) of `NAME=value`; the value of `NAME+=value` is unknown. None for any other word."""
    if not word.parts or word.parts[0][0] != "text" or not (found := _ASSIGNMENT.match(word.parts[0][1])):
        return None
    rest = word.parts[0][1][found.end() :]
    parts = (("text", rest, ""), *word.parts[1:]) if not found[2] else (("unknown", "", ""),)
    return found[1], RawWord(parts=parts, quoted=True)


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
