"""Edit: one change of one file of a case; PythonSource: a parsed program, whose nodes can be replaced. Pure."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A candidate change. `old` and `new` are whole lines with their line ends; `new` may be "".

    For a damaged data file `line` is 0, `old` and `new` describe the content, and `damage` names what is done to it.
    """

    file: str
    line: int
    operator: str
    old: str
    new: str
    damage: str = ""

    def to_json_dict(self) -> dict[str, Any]:
        """Return the fields for mutation.json."""
        return asdict(self)


def apply_edit(text: str, edit: Edit) -> str:
    """Return the text with the edit's lines replaced. Raise ValueError if the old lines are not there."""
    lines = split_lines(text)
    old = split_lines(edit.old)
    first = edit.line - 1
    if lines[first : first + len(old)] != old:
        raise ValueError(f"{edit.file}:{edit.line} does not hold {edit.old!r}")
    return "".join([*lines[:first], edit.new, *lines[first + len(old) :]])


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends. They end at \\n only, as in `ast`; splitlines() ends them at form feeds too."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class PythonSource:
    """The text and syntax tree of one Python file. Raises SyntaxError and ValueError as `ast.parse` does."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.tree = ast.parse(text)
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The parent of each node."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes outside f-strings, because positions inside them are not exact before Python 3.12."""
        found: list[ast.AST] = []
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            found.append(node)
            if not isinstance(node, ast.JoinedStr):
                waiting += reversed(list(ast.iter_child_nodes(node)))
        return tuple(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """All identifiers of the file, so that a misspelt one is not another one."""
        return frozenset(
            name
            for node in ast.walk(self.tree)
            for name in (
                getattr(node, "id", ""),
                getattr(node, "attr", ""),
                getattr(node, "arg", ""),
                getattr(node, "name", ""),
            )
            if isinstance(name, str) and name
        )

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parents of the node, nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def span(self, node: Any) -> tuple[int, int]:
        """Return start and stop of the node in `data`."""
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node: ast.AST) -> str:
        """Return the node's text."""
        start, stop = self.span(node)
        return self.data[start:stop].decode()

    def replace(self, operator: str, start: int, stop: int, new: str) -> Edit:
        """Return the edit that replaces these bytes; its lines are the whole lines that they touch."""
        first = self.data.rfind(b"\n", 0, start) + 1
        last = self.data.find(b"\n", max(start, stop - 1))
        last = len(self.data) if last < 0 else last + 1
        return Edit(
            file=self.file,
            line=self.data.count(b"\n", 0, first) + 1,
            operator=operator,
            old=self.data[first:last].decode(),
            new=self.data[first:start].decode() + new + self.data[stop:last].decode(),
        )

    def replace_node(self, operator: str, node: ast.AST, new: str) -> Edit:
        """Return the edit that replaces the node's text."""
        return self.replace(operator, *self.span(node), new)

    def indent_of(self, node: Any) -> str:
        """Return the blanks before the node, whose statement begins its line."""
        start = self.starts[node.lineno - 1]
        return self.data[start : start + node.col_offset].decode()

    def begins_line(self, node: ast.AST) -> bool:
        """Return whether only blanks are in front of the node."""
        return not self.indent_of(node).strip()

    def ends_line(self, node: Any) -> bool:
        """Return whether only a comment follows the node."""
        _, stop = self.span(node)
        rest = self.data[stop : self.starts[node.end_lineno] - 1].decode().strip()
        return not rest or rest.startswith("#")

    def insert_after(self, operator: str, node: Any, statement: str) -> Edit | None:
        """Return the edit that adds a line after a statement; None if the statement shares its line."""
        if not (self.begins_line(node) and self.ends_line(node)):
            return None
        _, stop = self.span(node)
        end = self.data.find(b"\n", stop)
        rest = "" if end < 0 else self.data[stop:end].decode()
        start = self.span(node)[0]
        new = f"{self.segment(node)}{rest}\n{self.indent_of(node)}{statement}"
        return self.replace(operator, start, stop + len(rest.encode()), new)

    def remove(self, operator: str, node: Any) -> Edit | None:
        """Return the edit that removes a statement, or replaces it by `pass` if its block has no other."""
        if not (self.begins_line(node) and self.ends_line(node)):
            return None
        if len(self.block_of(node)) == 1:
            return self.replace_node(operator, node, "pass")
        stop = self.data.find(b"\n", self.span(node)[1])
        stop = len(self.data) if stop < 0 else stop + 1
        return self.replace(operator, self.starts[node.lineno - 1], stop, "")

    def block_of(self, node: ast.AST) -> list[ast.stmt]:
        """Return the list of statements that the statement belongs to."""
        for _, value in ast.iter_fields(self.parents[node]):
            if isinstance(value, list) and node in value:
                return value
        return []


def misspell(word: str, rng: random.Random) -> str:
    """Return the word with two neighbouring letters exchanged, one left out or one doubled. It differs from `word`."""
    ways = []
    for at in range(1, len(word) - 1):
        if word[at] != word[at + 1] and word[at : at + 2].isalpha():
            ways.append(word[:at] + word[at + 1] + word[at] + word[at + 2 :])
        if word[at].isalpha() and word[at] != word[at - 1]:
            ways.append(word[:at] + word[at + 1 :])
            ways.append(word[:at] + word[at] + word[at:])
    return rng.choice(ways) if ways else f"{word}s"
