"""Parse Python source of the user: its syntax tree or its syntax error, and the names that it binds. Pure."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.word_tables import split_word_table

# Bytes. Parsing and compiling takes two to three seconds per MiB and cannot be interrupted, so longer files are not
# parsed.
_MAX_PARSED_BYTES = 400_000


# Bytes. A longer file was not written by hand.
CODE_CAP = 4 << 20


def read_head(path: Path) -> bytes:
    """Return the file's content up to the limit; b"" if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(CODE_CAP + 1)
    except (OSError, ValueError):
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """One program text. `line` is added to the tree's line numbers, for a text inside a batch script."""

    path: str
    content: bytes = b""
    # None if the text is too long or does not compile.
    tree: ast.Module | None = None
    error: SyntaxError | None = None
    line: int = 0

    def mentions(self, *words: bytes) -> bool:
        """Return whether any of `words` occurs anywhere in the text."""
        return any(word in self.content for word in words)


def read_source(content: bytes, path: str, line: int = 0) -> PythonSource:
    """Compile `content` as py_compile would; nothing is written or run."""
    if len(content) > _MAX_PARSED_BYTES:
        return PythonSource(path=path, content=content if len(content) <= CODE_CAP else b"", line=line)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(content, path)
            compile(tree, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            return PythonSource(path=path, content=content, error=error, line=line)
        except (ValueError, RecursionError, MemoryError, OverflowError):
            # The text has a NUL byte, or is nested deeper than this Python can parse.
            return PythonSource(path=path, line=line)
    return PythonSource(path=path, content=content, tree=tree, line=line)


_NAME_MAKING_CALLS = frozenset({"globals", "exec", "execfile"})
_PRINTING_CALLS = frozenset({"print", "debug", "info", "warning", "error", "log"})
_NAMESPACES = frozenset({"f_globals", "__globals__"})
ALWAYS = split_word_table(
    """__name__ __file__ __doc__ __package__ __spec__ __loader__ __builtins__ __cached__ __dict__ __path__
    __annotations__"""
)


def list_bound_names(tree: ast.Module, stars: frozenset[str] | None = None) -> frozenset[str] | None:
    """Return every name that the module may bind at its top level.

    None for a module with __getattr__, exec and the like, and with star imports unless `stars` gives their names.
    """
    names: set[str] = set(ALWAYS)
    for node in ast.walk(tree):
        if _is_making_names(node):
            return None
        if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
            if stars is None:
                return None
            names |= stars
        if isinstance(node, ast.Global):
            names.update(node.names)
        if isinstance(node, ast.Import) and any(a.name == "__main__" for a in node.names):
            return None
    names.update(_iterate_bound_names(tree.body))
    return None if "__getattr__" in names else frozenset(names)


def _is_making_names(node: ast.AST) -> bool:
    """Return whether the node may bind names that are not in the text.

    Such nodes are globals(), exec(), vars() without an argument, sys.modules, and writes to locals().
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in _NAME_MAKING_CALLS or (node.func.id == "vars" and not node.args)
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_namespace(node.value)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # A call for its effect on the module, such as ssl's IntEnum._convert_("Method", __name__, ...).
        given = any(isinstance(one, ast.Name) and one.id == "__name__" for one in node.value.args)
        return given and getattr(node.value.func, "attr", getattr(node.value.func, "id", "")) not in _PRINTING_CALLS
    if isinstance(node, ast.Attribute):
        if node.attr in ("update", "setdefault"):
            return _is_namespace(node.value)
        return node.attr in _NAMESPACES or (node.attr == "modules" and _is_sys(node.value))
    return False


def _is_namespace(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "locals"
    return isinstance(node, ast.Attribute) and node.attr in ("f_locals", "f_builtins")


def _is_sys(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("sys", "_sys")


def count_bindings(tree: ast.Module) -> Counter[str]:
    """Return how often each name is bound at the top level. A `global` statement for it adds two."""
    times = Counter(_iterate_bound_names(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            times.update(node.names * 2)
    return times


def _iterate_bound_names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        yield from list_names_bound_by(node)


def list_names_bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its own scope."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
        for part in (*node.decorator_list, *getattr(node, "bases", ())):
            yield from list_names_bound_by(part)
        return
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        yield from (n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name.split(".")[0]) for a in node.names)
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif (isinstance(node, ast.ExceptHandler) and node.name) or (
        isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
    ):
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    elif type(node).__name__ == "TypeAlias":  # Python 3.12
        yield node.name.id  # type: ignore[attr-defined]
    for child in ast.iter_child_nodes(node):
        yield from list_names_bound_by(child)
