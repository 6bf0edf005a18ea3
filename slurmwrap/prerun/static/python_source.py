"""Python source → its tree, or the error that our own Python finds in it. Pure."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass

# Bytes. Parsing and compiling takes two to three seconds a MiB and cannot be interrupted: longer ones are not read.
_TREE_CAP = 400_000


# bytes; no one wrote a longer file by hand
CODE_CAP = 4 << 20


def read_head(path: Path) -> bytes:
    """The file's content up to the cap; b"" when it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(CODE_CAP + 1)
    except (OSError, ValueError):
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """One program text. `line` is added to the line numbers of the tree (text inside a batch script)."""

    path: str
    content: bytes = b""
    # None: too long, or it does not compile.
    tree: ast.Module | None = None
    error: SyntaxError | None = None
    line: int = 0

    def mentions(self, *words: bytes) -> bool:
        """True when any of `words` stands anywhere in the text."""
        return any(word in self.content for word in words)


def read_source(content: bytes, path: str, line: int = 0) -> PythonSource:
    """Compiles `content` as py_compile would; nothing is written or run."""
    if len(content) > _TREE_CAP:
        return PythonSource(path=path, content=content if len(content) <= CODE_CAP else b"", line=line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(content, path)
            compile(tree, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return PythonSource(path=path, content=content, error=error, line=line)
        except (ValueError, RecursionError, MemoryError, OverflowError):
            # A NUL byte, or deeper than our own Python goes.
            return PythonSource(path=path, line=line)
    return PythonSource(path=path, content=content, tree=tree, line=line)
