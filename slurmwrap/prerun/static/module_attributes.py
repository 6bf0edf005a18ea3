"""Attributes of the user's own modules that these do not have: `utils.trian()`. Turns a program's trees into findings.

Warnings only: a module may get names while the program runs. Silent where the module's names are not all in its text.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.imported_files import ProgramImports, Reached
from slurmwrap.prerun.static.module_scope import bound_names
from slurmwrap.prerun.static.suggestions import find_nearest

_PER_FILE = 5


def find_attribute_faults(program: ProgramImports, go_on: Callable[[], bool] = lambda: True) -> Iterator[Finding]:
    """At most five of each file, as long as `go_on`."""
    if program.tricks or not program.whole:
        return
    for reached in program.files:
        if not go_on():
            return
        if reached.source.tree is not None and not reached.source.mentions(b"setattr", b"importlib"):
            yield from _find_faults(reached, program)


def _find_faults(reached: Reached, program: ProgramImports) -> Iterator[Finding]:
    assert reached.source.tree is not None
    modules = dict(_list_modules(reached, program))
    told: set[str] = set()
    if not modules:
        return
    for node in ast.walk(reached.source.tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules):
            continue
        path, dotted, names = modules[node.value.id]
        whole = f"{node.value.id}.{node.attr}"
        if not isinstance(node.ctx, ast.Load) or node.attr in names or node.attr.startswith("__") or whole in told:
            continue
        submodule = program.find(f"{dotted}{'' if dotted.endswith('.') else '.'}{node.attr}", reached.folder)
        if len(told) >= _PER_FILE or submodule.kind != "missing" or _set_somewhere(node.attr, program):
            continue
        told.add(whole)
        near = find_nearest(node.attr, names)
        yield Finding(
            severity=Severity.WARNING,
            message=f"AttributeError: {whole}: {path} does not define it",
            file=reached.source.path,
            line=reached.source.line + node.lineno,
            fix=f"did you mean {node.value.id}.{near}?" if near else f"define {node.attr} in {path}",
            category="semantic_error",
        )


def _list_modules(reached: Reached, program: ProgramImports) -> Iterator[tuple[str, tuple[str, str, frozenset[str]]]]:
    """name here -> (file, dotted name, its names) of local modules that are imported once under a name bound once."""
    tree = reached.source.tree
    assert tree is not None
    bound = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
    bound += [n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)]
    bound += [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    imported = [pair for node in ast.walk(tree) for pair in _list_imported(node)]
    for name, dotted in imported:
        if name in bound or sum(other == name for other, _ in imported) > 1:
            continue
        found = program.find(dotted, reached.folder)
        source = next((f.source for f in program.files if f.source.path == found.path and found.path), None)
        if source is None or source.tree is None or found.kind != "module" or _has_module_getattr(source.tree):
            continue
        names = bound_names(source.tree)
        if names is not None:
            yield name, (found.path, dotted, names)


def _has_module_getattr(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _list_imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(name here, dotted name of what may be a module)."""
    if isinstance(node, ast.Import):
        yield from ((a.asname or a.name, a.name) for a in node.names if a.asname or "." not in a.name)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        joint = "" if base.endswith(".") or not base else "."
        yield from ((a.asname or a.name, f"{base}{joint}{a.name}") for a in node.names)


def _set_somewhere(name: str, program: ProgramImports) -> bool:
    """True when any file assigns to an attribute of this name, or looks whether it is there."""
    word = name.encode()
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        for f in program.files
        if f.source.tree is not None and f.source.mentions(word)
        for node in ast.walk(f.source.tree)
    ) or any(f.source.mentions(b'"' + word + b'"', b"'" + word + b"'") for f in program.files)
