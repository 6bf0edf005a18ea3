"""Find what a failed statement of a Python file depends on: the values it uses and the conditions around it. Pure.

This is a backward slice by names of one file, without running it. It is coarse on purpose, because it only serves to
see whether a number of processes or GPUs is involved: equal names anywhere in the file count as the same variable.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from slurmwrap.fast_dataclasses import dataclass, field

# How many assignments are followed backwards from a name.
_DEPTH = 4
_PIECES = 200
# Calls whose result consists of the numbers in their arguments.
_TRANSPARENT = re.compile(
    r"int|float|str|bool|len|max|min|abs|sum|round|range|list|tuple|set|sorted|divmod|zip|enumerate|reversed|ceil|floor"
    r"|prod|gcd|getattr|getenv|get"
)
# Calls that spread a model over processes; their result is still the model.
_WRAPPERS = re.compile(r"DistributedDataParallel|DDP|FullyShardedDataParallel|FSDP|DataParallel|fully_shard|prepare")
_SHAPES = frozenset(("shape", "ndim", "dtype", "size", "dim", "suffix", "name"))
_OPTIONS = frozenset(("args", "opt", "opts", "cfg", "conf", "config", "hparams", "hps", "options", "flags", "FLAGS"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Source text of what one statement depends on. Explicit means: a raise, an assert or an exit."""

    # The statement; if it is explicit, also the conditions that lead to it.
    statement: str
    # The values from which the names in it come.
    behind: str
    explicit: bool
    # It is an explicit check that compares numbers, at least one of which comes from outside the file.
    open: bool


def make_slice_at(text: str, line: int) -> Slice | None:
    """Return the slice of the innermost statement at `line` (from 1); None if this Python version cannot parse it."""
    file = _parse(text)
    found = _find_statement(file, line) if file else None
    try:
        return _make_slice(file, found) if file is not None and found is not None else None
    except RecursionError:
        return None


def _make_slice(file: _File, found: ast.stmt) -> Slice:
    explicit = _is_explicit(found)
    tests = _list_leading_tests(file, found) if explicit else []
    roots = [*_list_own_parts(found), *tests]
    asked = [*tests, *([found.test] if isinstance(found, ast.Assert) else [])]
    return Slice(
        statement=_format_all(roots),
        behind="\n".join(_list_origins(file, roots)),
        explicit=explicit,
        open=explicit and (not asked or any(_is_open(file, test) for test in asked)),
    )


def find_conditions_of_name(text: str, name: str) -> str | None:
    """Return the tests under which `name` is assigned in the file; None if it is never assigned or this is unknown."""
    file = _parse(text)
    if file is None:
        return None
    made = file.values.get(name, ())
    return "\n".join(_format_all(_list_enclosing_tests(file, node)) for node in made) if made else None


def calls_function_without_return(text: str, line: int) -> bool:
    """Return whether the statement at `line` (from 1) calls a function of this file that returns None on every path."""
    file = _parse(text)
    found = _find_statement(file, line) if file else None
    if file is None or found is None:
        return False
    called = {_last_name(node.func) for node in ast.walk(found) if isinstance(node, ast.Call)}
    return any(name in file.functions and not _returns_value(file.functions[name]) for name in called)


def _returns_value(function: _Function) -> bool:
    inside = list(ast.walk(function))
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in inside) or function.decorator_list:
        return True
    return any(isinstance(node, ast.Return) and node.value is not None for node in inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    tree: ast.Module
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    # Name or attribute -> the values that are assigned to it.
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    functions: dict[str, _Function] = field(default_factory=dict)


@lru_cache(maxsize=4)
def _parse(text: str) -> _File | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    file = _File(tree=tree)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            file.parents[child] = node
        if isinstance(node, _Function):
            file.functions[node.name] = node
    for node in ast.walk(tree):
        for target, value in _iterate_bindings(node, file):
            file.values.setdefault(target, []).append(value)
    return file


def _iterate_bindings(node: ast.AST, file: _File) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) for all bindings, including parameters that get values from calls in the same file."""
    if isinstance(node, ast.Assign):
        yield from (pair for target in node.targets for pair in _pair_assignments(target, node.value, file))
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from ((name, node.value) for name in _iterate_target_names(node.target))
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from ((name, node.iter) for name in _iterate_target_names(node.target))
    elif isinstance(node, ast.Call):
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg)
        called = file.functions.get(_last_name(node.func))
        if called is not None:
            names = [argument.arg for argument in called.args.args]
            names = names[1:] if names[:1] == ["self"] else names
            yield from zip(names, node.args, strict=False)


def _pair_assignments(target: ast.expr, value: ast.expr, file: _File) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value), element by element if both sides, or what a function of the file returns, are tuples."""
    if isinstance(value, ast.Call) and not _is_wrapper_call(target, value):
        given = _list_returned_values(file, _last_name(value.func))
        values = given if isinstance(target, ast.Tuple) and given else [value]
    else:
        values = [] if isinstance(value, ast.Call) else [value]
    for each in values:
        if isinstance(target, ast.Tuple) and isinstance(each, ast.Tuple) and len(target.elts) == len(each.elts):
            for part, part_value in zip(target.elts, each.elts, strict=True):
                yield from _pair_assignments(part, part_value, file)
        else:
            yield from ((name, each) for name in _iterate_target_names(target))


def _is_wrapper_call(target: ast.expr, value: ast.Call) -> bool:
    """Return whether the call only wraps its argument, as in `model = DDP(model)`."""
    name = _last_name(target)
    called = _last_name(value.func)
    again = bool(name) and name in map(_last_name, value.args)
    return bool(_WRAPPERS.fullmatch(called)) or (again and not _TRANSPARENT.fullmatch(called))


def _list_returned_values(file: _File, function: str) -> list[ast.expr]:
    body = file.functions.get(function)
    return [n.value for n in ast.walk(body) if isinstance(n, ast.Return) and n.value] if body is not None else []


def _iterate_target_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _iterate_target_names(part)
    elif name := _last_name(target):
        yield name


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return _last_name(node.value) if isinstance(node, ast.Subscript | ast.Starred) else ""


def _find_statement(file: _File, line: int) -> ast.stmt | None:
    holding = [
        node
        for node in ast.walk(file.tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(holding, key=lambda node: (node.lineno, -(node.end_lineno or 0)), default=None)


def _is_explicit(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise | ast.Assert):
        return True
    called = node.value if isinstance(node, ast.Expr) else None
    name = _last_name(called.func) if isinstance(called, ast.Call) else ""
    return name in ("exit", "_exit", "abort", "error", "fail", "fatal", "check") or name.startswith("_log_and")


def _list_own_parts(node: ast.stmt) -> list[ast.AST]:
    """Return the statement, or the parts of a compound statement that are in its first line."""
    if isinstance(node, ast.If | ast.While):
        return [node.test]
    if isinstance(node, ast.For | ast.AsyncFor):
        return [node.target, node.iter]
    if isinstance(node, ast.With | ast.AsyncWith):
        return [item.context_expr for item in node.items]
    return [] if isinstance(node, _Function | ast.ClassDef | ast.Try) else [node]


def _list_leading_tests(file: _File, node: ast.AST) -> list[ast.AST]:
    """Return what decides whether a raise is reached: tests around it, returns before it, and the try it handles."""
    found: list[ast.AST] = [*_list_enclosing_tests(file, node)]
    here: ast.AST | None = node
    while here is not None and not isinstance(here, _Function | ast.Module):
        above = file.parents.get(here)
        if isinstance(here, ast.ExceptHandler) and isinstance(above, ast.Try):
            found.extend(above.body)
        body = getattr(above, "body", None)
        if isinstance(body, list) and here in body:
            found.extend(test for earlier in body[: body.index(here)] for test in _list_exit_tests(earlier))
        if isinstance(above, ast.For | ast.AsyncFor | ast.While) and here in above.orelse:
            found.extend(_list_exit_tests(above))
        here = above
    return found


def _list_exit_tests(node: ast.AST) -> list[ast.AST]:
    """Return the tests and iterables of a statement that may return or end a loop before the next statement."""
    inside = list(ast.walk(node))
    if isinstance(node, _Function | ast.ClassDef) or not any(isinstance(n, ast.Return | ast.Break) for n in inside):
        return []
    tests: list[ast.AST] = [n.test for n in inside if isinstance(n, ast.If | ast.While)]
    return [*tests, *(n.iter for n in inside if isinstance(n, ast.For | ast.AsyncFor))]


def _is_open(file: _File, test: ast.AST) -> bool:
    """Return whether a test compares a number from outside this file; options and tensor shapes do not count."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot):
            continue
        if not isinstance(node, ast.Compare | ast.BinOp):
            continue
        sides = [node.left, *(node.comparators if isinstance(node, ast.Compare) else [node.right])]
        if not any(_is_not_a_count(file, side) for side in sides) and any(
            _is_from_elsewhere(file, side) for side in sides
        ):
            return True
    return False


def _is_not_a_count(file: _File, side: ast.AST) -> bool:
    """Return whether the side is a shape, a type, a text, zero or a fraction: no process count is compared to it."""
    if isinstance(side, ast.Constant):
        return not isinstance(side.value, int) or isinstance(side.value, bool) or side.value == 0
    behind = [side, *(value for name in _iterate_names(side, everything=False) for value in file.values.get(name, ()))]
    return any(isinstance(n, ast.Attribute) and n.attr in _SHAPES for b in behind for n in ast.walk(b))


def _is_from_elsewhere(file: _File, side: ast.AST) -> bool:
    if isinstance(side, ast.Call):
        return any(_is_from_elsewhere(file, argument) for argument in side.args)
    if isinstance(side, ast.Attribute):
        return side.attr not in file.values and _last_name(side.value) not in _OPTIONS
    if isinstance(side, ast.Name):
        return side.id not in file.values
    return any(_is_from_elsewhere(file, child) for child in ast.iter_child_nodes(side))


def _list_enclosing_tests(file: _File, node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    here = file.parents.get(node)
    while here is not None and not isinstance(here, _Function | ast.ClassDef | ast.Module):
        if isinstance(here, ast.If | ast.While | ast.IfExp):
            found.append(here.test)
        here = file.parents.get(here)
    return found


def _list_origins(file: _File, roots: list[ast.AST]) -> list[str]:
    """Return the texts of the values behind every name in `roots`, of the values behind those, and so on."""
    names = [name for root in roots for name in _iterate_names(root, everything=True)]
    seen: set[str] = set()
    pieces: list[str] = []
    for _ in range(_DEPTH):
        fresh = [name for name in dict.fromkeys(names) if name not in seen]
        seen.update(fresh)
        values = [value for name in fresh for value in _list_values(file, name)]
        pieces.extend(_format_expression(value) for value in values[:_PIECES])
        pieces.extend(_format_all(_list_enclosing_tests(file, value)) for value in values[:_PIECES])
        names = [name for value in values for name in _iterate_names(value, everything=False)]
    return pieces[: 4 * _PIECES]


def _list_values(file: _File, name: str) -> list[ast.expr]:
    return [*file.values.get(name, ()), *_list_returned_values(file, name)]


def _iterate_names(node: ast.AST, *, everything: bool) -> Iterator[str]:
    """Yield names and attributes in an expression; of calls that make something new only the called name."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
        yield from _iterate_names(node.value, everything=everything)
    elif isinstance(node, ast.Call) and not everything and not _TRANSPARENT.fullmatch(_last_name(node.func)):
        yield from _iterate_names(node.func, everything=everything)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _iterate_names(child, everything=everything)


def _format_expression(node: ast.AST) -> str:
    """Return the source of an expression without the arguments of calls that make something new (constants stay)."""
    if isinstance(node, ast.Call) and not _TRANSPARENT.fullmatch(_last_name(node.func)):
        constants = ", ".join(ast.unparse(a) for a in node.args if isinstance(a, ast.Constant))
        return f"{_format_expression(node.func)}({constants})"
    if isinstance(node, ast.Attribute):
        return f"{_format_expression(node.value)}.{node.attr}"
    if isinstance(node, ast.Name | ast.Constant):
        return ast.unparse(node)
    return " ".join(_format_expression(child) for child in ast.iter_child_nodes(node))


def _format_all(nodes: list[ast.AST]) -> str:
    return "\n".join(ast.unparse(node) for node in nodes)[:20_000]
