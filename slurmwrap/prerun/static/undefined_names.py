"""Names that are nowhere defined, and calls that their function cannot take: turns a program's trees into findings.

Silent where names may come from anywhere (star imports of packages, exec, globals). ERROR only for an undefined name in
lines that run whenever the program does.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static.call_signatures import CallSignature, find_misfit, list_signatures
from slurmwrap.prerun.static.imported_files import ProgramImports, Reached
from slurmwrap.prerun.static.module_scope import bound_names
from slurmwrap.prerun.static.name_uses import list_name_uses
from slurmwrap.prerun.static.suggestions import find_nearest, is_slip
from slurmwrap.prerun.static.word_tables import split_word_table

_BUILTINS = frozenset(dir(builtins)) | split_word_table(
    """WindowsError ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError aiter anext exit quit
    copyright credits license help get_ipython display profile reveal_type reveal_locals _ __IPYTHON__ __debug__
    __warningregistry__ __annotate__ __conditional_annotations__ __classdict__"""
)
_PYTHON_2 = split_word_table(
    """unicode xrange raw_input basestring long file reload unichr cmp execfile reduce buffer apply intern coerce"""
)
_FOLLOWS = {"xrange": "range", "raw_input": "input", "unicode": "str", "basestring": "str", "long": "int"}
_PER_FILE = 5  # findings of one kind; anyone who lost an import uses its name often


def name_faults(program: ProgramImports, go_on: Callable[[], bool] = lambda: True) -> Iterator[Finding]:
    """Undefined names and wrong calls of every file of the program, nearest file first, as long as `go_on`."""
    if program.entry.interpreter.endswith(("python2", "python2.7")):
        return
    for reached in program.files:
        if not go_on():
            return
        if reached.source.tree is not None and not _is_changing_builtins(reached.source.content):
            yield from _find_faults(reached, program)


# `builtins.print = quiet` is how a distributed program silences its other ranks: no name comes or goes.
_PLAIN = re.compile(
    rb"import\s+(?:builtins|__builtin__)(?:\s+as\s+__builtin__)?(?=\s*(?:$|[;#]))|\b(?:builtins|__builtin__)\.\w+", re.M
)
_ADDED = re.compile(rb"\b(?:builtins|__builtin__)\.(\w+)\s*=(?!=)")


def _is_changing_builtins(content: bytes) -> bool:
    """True when names may become builtins in a way that is not plain, or new ones do."""
    if b"global_enum" in content:
        return True
    if b"builtin" not in content:
        return False
    added = {name.decode() for name in _ADDED.findall(content)}
    rest = _PLAIN.sub(b"", content)
    return bool(added - _BUILTINS) or b"builtins" in rest or b"__builtin__" in rest


def _find_faults(reached: Reached, program: ProgramImports) -> Iterator[Finding]:
    tree = reached.source.tree
    assert tree is not None
    known = bound_names(tree, _list_star_imports(reached, program))
    if known is None:
        return
    table = {**_list_imported_signatures(reached, program), **list_signatures(tree)}
    told: set[str] = set()
    calls = 0
    for use in list_name_uses(tree):
        node, line = use.node, reached.source.line + use.node.lineno
        if isinstance(node, ast.Name):
            name = node.id
            if name in known or name in _BUILTINS or name in use.inner or name in told or len(told) >= _PER_FILE:
                continue
            if use.guarded and name in _PYTHON_2:
                continue
            told.add(name)
            certain = use.sure and reached.sure and program.entry.certain and not program.tricks
            yield _make_undefined_finding(name, line, reached.source.path, known | use.inner, certain)
        elif isinstance(node.func, ast.Name) and node.func.id not in use.inner and calls < _PER_FILE:
            wrong = find_misfit(node, table[node.func.id]) if node.func.id in table else ""
            if wrong:
                calls += 1
                yield Finding(
                    severity=Severity.WARNING,
                    message=f"TypeError: {node.func.id}() {wrong}",
                    file=reached.source.path,
                    line=line,
                    fix=f"see its definition at {table[node.func.id].where}",
                    category="semantic_error",
                )


def _make_undefined_finding(name: str, line: int, path: str, known: frozenset[str], certain: bool) -> Finding:
    return Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=f"NameError: name {name!r} is not defined",
        file=path,
        line=line,
        fix=_suggest_remedy(name, known),
        category="semantic_error",
    )


def _suggest_remedy(name: str, known: frozenset[str]) -> str:
    """A slip of the finger before a forgotten import, one's own names before Python's."""
    slips = sorted(k for k in known if len(k) > 2 and is_slip(name, k))
    if not slips and name in sys.stdlib_module_names and name not in _FOLLOWS:
        return f"import {name}"
    near = _FOLLOWS.get(name) or next(iter(slips), "")
    near = near or find_nearest(name, (k for k in known | _BUILTINS if len(k) > 1), cutoff=0.7)
    return f"did you mean {near}?" if near else f"define or import {name}"


def _list_star_imports(reached: Reached, program: ProgramImports) -> frozenset[str] | None:
    """What the module's star imports bring at most; None when one of them is not a plain local module."""
    names: set[str] = set()
    for one in reached.imports:
        if "*" not in one.names:
            continue
        found = program.find(one.module, reached.folder)
        target = next((f for f in program.files if f.source.path == found.path), None)
        if target is None or target.source.tree is None:
            return None
        brought = bound_names(target.source.tree)
        if brought is None:
            return None
        names |= brought
    return frozenset(names)


def _list_imported_signatures(reached: Reached, program: ProgramImports) -> Mapping[str, CallSignature]:
    """Functions of local modules that this file imports by name and binds nowhere else."""
    tree = reached.source.tree
    assert tree is not None
    found: dict[str, CallSignature] = {}
    times: dict[str, int] = {}
    from slurmwrap.prerun.static.module_scope import bound_by

    for statement in tree.body:
        for name in bound_by(statement):
            times[name] = times.get(name, 0) + 1
    for node in tree.body:
        if not isinstance(node, ast.ImportFrom):
            continue
        module = "." * node.level + (node.module or "")
        target = program.find(module, reached.folder)
        source = next((f.source for f in program.files if f.source.path == target.path and target.path), None)
        if source is None or source.tree is None or target.kind not in ("module", "package"):
            continue
        offered = list_signatures(source.tree, source.path)
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name in offered and times.get(name) == 1:
                found[name] = offered[alias.name]
    return found
