"""What pyflakes finds in a module: turns its tree into the defects that raise when their line runs. Pure.

The one module that imports pyflakes; it is imported when a Python program is checked, not by every gsub.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from pyflakes import checker, messages

from slurmwrap.fast_dataclasses import dataclass

_KINDS = {
    messages.UndefinedName: "name",
    messages.ImportStarUsage: "name",
    messages.UndefinedLocal: "name",
    messages.InvalidPrintSyntax: "print",
    messages.RaiseNotImplemented: "raise",
}
_FORMATS = ("Percent", "StringDotFormat")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One message of pyflakes. kind: "name" | "print" | "raise" | "format".

    Of a name: `bound`, the scope that has it although the line does not see it ("local" | "module", "" when none has
    it); `inner`, the names of the functions around it.
    """

    kind: str
    node: ast.expr | ast.stmt
    bound: str = ""
    inner: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    """The defects of a module in order of its text, and its calls of what its own top level defines."""

    defects: tuple[Defect, ...]
    calls: tuple[ast.Call, ...]


class _RecordingChecker(checker.Checker):  # type: ignore[misc]
    """pyflakes' messages have a line and a column only: this keeps the node and the scopes too."""

    def __init__(self, tree: ast.Module, builtins: Iterable[str]) -> None:
        self.global_calls: list[ast.Call] = []
        # The environment variable PYFLAKES_DOCTEST must not decide.
        super().__init__(tree, builtins=builtins, withDoctest=False)

    def report(self, kind: type, node: ast.AST, *details: object) -> None:
        super().report(kind, node, *details)
        self.messages[-1].origin = (node, tuple(self.scopeStack))

    def CALL(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and not any(node.func.id in scope for scope in self.scopeStack[1:]):
            self.global_calls.append(node)
        super().CALL(node)


def check_module(tree: ast.Module, builtins: Iterable[str]) -> ModuleReport:
    """Names, `print >>`, `raise NotImplemented` and formats. `builtins`: names that are defined in any case.

    Names that a star import may bring are among the defects. Empty where pyflakes itself fails. Raises RecursionError
    for a tree that is too deep.
    """
    try:
        checked = _RecordingChecker(tree, builtins)
    except AttributeError:
        # `__all__ += [...]` behind `from module import __all__` (pyflakes 3.4).
        return ModuleReport(defects=(), calls=())
    found = (_read_message(message) for message in checked.messages)
    defects = sorted((d for d in found if d), key=lambda d: (d.node.lineno, d.node.col_offset))
    return ModuleReport(defects=tuple(defects), calls=tuple(checked.global_calls))


def _read_message(message: Any) -> Defect | None:
    """None for what does not raise: imports and variables that are not used, and the like."""
    node, scopes = message.origin
    kind = "format" if type(message).__name__.startswith(_FORMATS) else _KINDS.get(type(message), "")
    if kind == "name" and isinstance(node, ast.Name):
        inner = (scope for scope in scopes[1:] if not isinstance(scope, checker.ClassScope))
        names = frozenset(name for scope in inner for name in scope)
        return Defect(kind=kind, node=node, bound=_find_scope(node.id, scopes), inner=names)
    if kind == "raise" and _find_scope("NotImplemented", scopes):
        # A class of the program's own.
        return None
    return Defect(kind=kind, node=node) if kind and kind != "name" else None


def _find_scope(name: str, scopes: tuple[checker.Scope, ...]) -> str:
    """Where the innermost of `scopes` that has `name` in the end stands; "" for a builtin and where none has it."""
    for scope in reversed(scopes):
        if name not in scope or (isinstance(scope, checker.ClassScope) and scope is not scopes[-1]):
            continue
        if isinstance(scope[name], checker.Builtin):
            return ""
        return "local" if isinstance(scope, (checker.FunctionScope, checker.GeneratorScope)) else "module"
    return ""
