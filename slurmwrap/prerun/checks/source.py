"""Python source → its tree, or the error that our own Python finds in it. Pure."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

from slurmwrap.prerun.checks.desk import CODE_CAP

_TREE_CAP = 1 << 20  # bytes; above this a tree takes longer than all the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One program text. `line` is added to the line numbers of the tree (text inside a batch script)."""

    path: str
    content: bytes = b""
    tree: ast.Module | None = None  # None: too long, or it does not compile
    error: SyntaxError | None = None
    line: int = 0

    def mentions(self, *words: bytes) -> bool:
        """True when any of `words` stands anywhere in the text."""
        return any(word in self.content for word in words)


def read_source(content: bytes, path: str, line: int = 0) -> Source:
    """Compiles `content` as py_compile would; nothing is written or run."""
    if len(content) > CODE_CAP:
        return Source(path=path, line=line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if len(content) > _TREE_CAP:
                compile(content, path, "exec", dont_inherit=True)
                return Source(path=path, content=content, line=line)
            tree = ast.parse(content, path)
            compile(tree, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return Source(path=path, content=content, error=error, line=line)
        except (ValueError, RecursionError, MemoryError, OverflowError):
            return Source(path=path, line=line)  # a NUL byte, or deeper than our own Python goes
    return Source(path=path, content=content, tree=tree, line=line)
