"""Reads a batch script without running it: turns shell text into commands made of words. Pure.

Not a shell: it knows quotes, simple variables, line continuations, here-documents, operators and compound commands
well enough to say what a typical job script starts, and says where it does not know (`Word.text` is None).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "(", ")")
_OPENING = frozenset({"if", "while", "until", "for", "case", "select"})
_CLOSING = frozenset({"fi", "done", "esac"})
_SKIPPED = frozenset({"then", "else", "elif", "do", "!", "time", "{"}) | _CLOSING
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_REDIRECT = re.compile(r"(?:\d*|&)(<<-?|<<<|[<>]>?[&|]?|&>>?)")

Part = tuple[str, str, str]  # ("text", value, "") | ("variable", name, default) | ("unknown", "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawWord:
    """A word before expansion."""

    parts: tuple[Part, ...]
    quoted: bool = False
    glob: bool = False

    @property
    def literal(self) -> str | None:
        """Its text when there is nothing to expand."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == "text" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCommand:
    """One simple command as written. `line` is 1-based; `sure` False when it may not run at all."""

    words: tuple[RawWord, ...]
    line: int
    sure: bool
    writes: bool = False  # its output goes to a file that may be a program
    reads: tuple[RawWord, ...] = ()  # what stands behind `<`


UNKNOWN = "\0"  # stands for text that only the running shell knows, a word or part of one; no real word holds a NUL


class Guess(str):
    """A word that holds if the environment sets nothing else: the default of `${NAME:-default}`."""

    __slots__ = ()


def commands(script: str) -> tuple[RawCommand, ...]:
    """All simple commands of `script`, in order; what stands in functions, loops and branches is not `sure`."""
    state = _Nesting()
    found: list[RawCommand] = []
    after = ""
    for line, raw, operator, writes, reads in _Reader(script).clauses():
        words = state.enter(raw, operator)
        if words:
            sure = state.sure and (after != "||") and (after != "&&" or bool(found and _goes_on(found[-1])))
            found.append(RawCommand(words=words, line=line, sure=sure, writes=writes, reads=reads))
        state.leave(operator)
        after = operator if raw or operator != "\n" else after
    return tuple(found)


def _goes_on(command: RawCommand) -> bool:
    # What follows `cd x &&` runs in every job worth checking; what follows a test may not.
    return command.sure and command.words[0].literal not in ("[", "[[", "test", "grep", "command", "which", "type")


_Clause = tuple[int, tuple[RawWord, ...], str, bool, tuple[RawWord, ...]]


class _Nesting:
    """How deep the reader stands in compound commands, functions and subshells."""

    def __init__(self) -> None:
        self.depth = self.functions = self.cases = self.subshells = 0

    @property
    def sure(self) -> bool:
        return not (self.depth or self.functions or self.subshells)

    def enter(self, words: tuple[RawWord, ...], operator: str) -> tuple[RawWord, ...]:
        """Strips reserved words; what is left is a simple command."""
        at = 0
        while at < len(words) and (first := _bare(words[at])) and (first in _SKIPPED | _OPENING or first == "}"):
            self.depth += (first in _OPENING) - (first in _CLOSING)
            self.cases += (first == "case") - (first == "esac")
            self.functions -= first == "}" and self.functions > 0
            at = len(words) if first in ("for", "case", "select") else at + 1
        words = words[at:]
        if operator == "()" or (words and _bare(words[0]) == "function"):
            self.functions += 1
            return ()
        return () if operator == ")" and self.cases else words  # a pattern of `case`

    def leave(self, operator: str) -> None:
        """Counts subshells."""
        if operator == "(":
            self.subshells += 1
        elif operator == ")" and not self.cases and self.subshells:
            self.subshells -= 1


def _bare(word: RawWord) -> str | None:
    return None if word.quoted else word.literal


def expand(word: RawWord, variables: Mapping[str, str | None], args: tuple[str, ...]) -> tuple[str, ...]:
    """The words that `word` becomes. A name that is not in `variables`, or None there, gives UNKNOWN in its place."""
    if len(word.parts) == 1 and word.parts[0][:2] in (("variable", "@"), ("variable", "*")):
        return args
    pieces = [_piece(part, variables, args) for part in word.parts]
    if word.glob:
        return (UNKNOWN,)
    text = "".join(UNKNOWN if piece is None else piece for piece in pieces)
    kind = Guess if any(isinstance(piece, Guess) for piece in pieces) else str
    if word.quoted or all(part[0] == "text" for part in word.parts):
        return (kind(text),)
    return tuple(kind(part) for part in text.split())


def assignment(word: RawWord) -> tuple[str, RawWord] | None:
    """(name, value) of `NAME=value`; the value of `NAME+=value` is unknown."""
    if not word.parts or word.parts[0][0] != "text" or not (found := _ASSIGNMENT.match(word.parts[0][1])):
        return None
    rest = word.parts[0][1][found.end() :]
    parts = (("text", rest, ""), *word.parts[1:]) if not found[2] else (("unknown", "", ""),)
    return found[1], RawWord(parts=parts, quoted=True)


def _piece(part: Part, variables: Mapping[str, str | None], args: tuple[str, ...]) -> str | None:
    kind, name, default = part
    if kind != "variable":
        return name if kind == "text" else None
    if name == "0":
        return None
    if name.isdigit():
        return args[int(name) - 1] if int(name) <= len(args) else default
    if name in ("#", "@", "*"):
        return str(len(args)) if name == "#" else " ".join(args)
    value = variables.get(name)
    return value or (Guess(default) if default and (name not in variables or value == "") else value)


class _Reader:
    """Walks over the text once. Holds a position, nothing else that outlives a clause."""

    def __init__(self, script: str) -> None:
        self.text, self.at, self.line = script, 0, 1
        self.heredocs: list[tuple[str, bool]] = []
        self.reads: list[RawWord] = []  # of the clause at hand

    def clauses(self) -> list[_Clause]:
        """(line, words, operator that ends it, writes to a file, files read by `<`) of each clause."""
        found: list[_Clause] = []
        words: list[RawWord] = []
        line, writes = 1, False
        while self.at < len(self.text):
            if (operator := self._operator()) is not None:
                if operator == "(" and len(words) == 1 and self.text[self.at : self.at + 1] == ")":
                    operator, self.at = "()", self.at + 1
                found.append((line, tuple(words), operator, writes, tuple(self.reads)))
                words, writes, self.reads = [], False, []
            elif redirect := _REDIRECT.match(self.text, self.at):
                writes = self._redirect(redirect) or writes
            else:
                line = self.line if not words else line
                word = self._word()
                words += [word] if word.parts else []
        return [*found, (line, tuple(words), "", writes, tuple(self.reads))]

    def _operator(self) -> str | None:
        """Skips blanks and comments; the operator here, None when a word starts."""
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

    def _redirect(self, found: re.Match[str]) -> bool:
        self.at = found.end()
        if found[1] in ("<", ">") and self.text[self.at : self.at + 1] == "(":  # process substitution
            self.at += 1
            self._until_closed("(", ")")
            return False
        while self.text[self.at : self.at + 1] in (" ", "\t"):
            self.at += 1
        target = self._word()
        if found[1] in ("<<", "<<-"):
            self.heredocs.append(("".join(value for _, value, _ in target.parts), found[1] == "<<-"))
        if found[1] == "<" and target.parts:
            self.reads.append(target)
        return ">" in found[1] and (target.literal is None or target.literal.endswith((".py", ".sh")))

    def _skip_heredocs(self) -> None:
        for delimiter, dashed in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                body, self.at, self.line = self.text[self.at : end], end + 1, self.line + 1
                if (body.lstrip("\t") if dashed else body) == delimiter:
                    break
        self.heredocs = []

    def _word(self) -> RawWord:
        parts: list[Part] = []
        quoted, glob = False, False
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;&|()<>":
            here = self.text[self.at]
            if here in "'\"":
                quoted = True
                parts += self._quoted(here)
            elif here == "\\":
                self._escape(parts)
            elif here in "$`":
                parts.append(self._dollar())
            else:
                glob = (
                    glob or here in "*?[" or (here == "{" and "," in self.text[self.at : self.at + 200].split("}")[0])
                )
                glob = glob or (here == "~" and not parts)
                parts.append(("text", here, ""))
                self.at += 1
                if here == "=" and self.text[self.at : self.at + 1] == "(":  # an array
                    self.at += 1
                    self._until_closed("(", ")")
                    parts.append(("unknown", "", ""))
        return RawWord(parts=_merged(parts) or ((("text", "", ""),) if quoted else ()), quoted=quoted, glob=glob)

    def _escape(self, parts: list[Part]) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following == "\n":
            self.line += 1
        else:
            parts.append(("text", following, ""))

    def _quoted(self, quote: str) -> list[Part]:
        parts: list[Part] = []
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            here = self.text[self.at]
            if quote == '"' and here in "$`":
                parts.append(self._dollar())
                continue
            if quote == '"' and here == "\\" and self.text[self.at + 1 : self.at + 2] in '"\\$`\n':
                self._escape(parts)
                continue
            self.line += here == "\n"
            parts.append(("text", here, ""))
            self.at += 1
        self.at += 1
        return parts

    def _dollar(self) -> Part:
        unknown: Part = ("unknown", "", "")
        if self.text[self.at] == "`":
            self.at += 1
            self._until_closed("", "`")
            return unknown
        self.at += 1
        following = self.text[self.at : self.at + 1]
        if following == "(":
            self.at += 1
            self._until_closed("(", ")")
            return unknown
        if following == "{":
            self.at += 1
            start = self.at
            self._until_closed("{", "}")
            return _braced(self.text[start : self.at - 1])
        if name := _NAME.match(self.text, self.at):
            self.at = name.end()
            return ("variable", name[0], "")
        if following and following in "@*#0123456789?$!-":
            self.at += 1
            return ("variable", following, "") if following not in "?$!-" else unknown
        return ("text", "$", "")

    def _until_closed(self, opening: str, closing: str) -> None:
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


def _braced(inside: str) -> Part:
    found = re.fullmatch(r"([A-Za-z_]\w*|\d+|@|\*)(?::?-([^$`\"'\\]*))?", inside)
    return ("variable", found[1], found[2] or "") if found else ("unknown", "", "")


def _merged(parts: list[Part]) -> tuple[Part, ...]:
    merged: list[Part] = []
    for part in parts:
        if part[0] == "text" and merged and merged[-1][0] == "text":
            merged[-1] = ("text", merged[-1][1] + part[1], "")
        else:
            merged.append(part)
    return tuple(merged)
