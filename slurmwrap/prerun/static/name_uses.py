"""Where a module uses names: walks a tree as Python would run it, and says which uses run for sure. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.imported_files import is_block_end, is_main_test
from slurmwrap.prerun.static.module_scope import bound_by

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LAZY = (ast.BoolOp, ast.IfExp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CATCHES = ("NameError", "Exception", "BaseException", "TypeError")


@dataclass(frozen=True, slots=True)
class Use:
    """A name that is read, or a call. `sure`: it runs whenever the module does; `inner`: enclosing functions' names."""

    node: ast.Name | ast.Call
    sure: bool
    inner: frozenset[str]
    guarded: bool  # behind `if`, or where an error is caught: names that an old Python had are tried so


@dataclass(frozen=True, slots=True)
class _Place:
    inner: frozenset[str] = frozenset()  # visible names of enclosing functions
    own: frozenset[str] = frozenset()  # of a class body: not seen by its methods
    sure: bool = True
    guarded: bool = False

    def at(self, *, sure: bool | None = None, guarded: bool | None = None) -> _Place:
        sure = self.sure if sure is None else sure
        return _Place(self.inner, self.own, sure, self.guarded if guarded is None else guarded)


def list_name_uses(tree: ast.Module) -> Iterator[Use]:
    """All uses in order of the text."""
    lazy = any(
        isinstance(n, ast.ImportFrom) and n.module == "__future__" and "annotations" in _list_names(n)
        for n in tree.body
    )
    yield from _Walker(_list_certain_calls(tree), annotations=not lazy).block(tree.body, _Place())


def _list_names(node: ast.ImportFrom) -> list[str]:
    return [alias.name for alias in node.names]


class _Walker:
    def __init__(self, called: frozenset[str], *, annotations: bool) -> None:
        self.called = called
        self.annotations = annotations

    def block(self, body: Sequence[ast.stmt], place: _Place) -> Iterator[Use]:
        sure = place.sure
        for node in body:
            yield from self.statement(node, place.at(sure=sure))
            sure = sure and not _may_leave(node)

    def statement(self, node: ast.AST, place: _Place) -> Iterator[Use]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from self.function(node, place)
        elif isinstance(node, ast.ClassDef):
            yield from self.class_(node, place)
        elif isinstance(node, (ast.If, ast.While)):
            always = isinstance(node, ast.If) and is_main_test(node.test)
            yield from self.expression(node.test, place)
            yield from self.block(
                node.body, place if always else place.at(sure=False, guarded=isinstance(node, ast.If) or None)
            )
            yield from self.block(node.orelse, place.at(sure=False, guarded=True))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield from self.expression(node.iter, place)
            yield from self.expression(node.target, place)
            yield from self.block([*node.body, *node.orelse], place.at(sure=False))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                yield from self.expression(item, place)
            yield from self.block(node.body, place)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            yield from self.try_(node, place)  # type: ignore[arg-type]
        elif isinstance(node, ast.Match):
            yield from self.expression(node.subject, place)
            for case in node.cases:
                yield from self.expression(case.pattern, place.at(sure=False))
                yield from self.block(case.body, place.at(sure=False, guarded=True))
        elif isinstance(node, ast.AnnAssign):
            parts = (
                [node.target, node.value]
                if place.inner or not self.annotations
                else [node.target, node.annotation, node.value]
            )
            for part in parts:
                if part is not None:
                    yield from self.expression(part, place.at(sure=False) if part is node.annotation else place)
        elif type(node).__name__ == "TypeAlias":
            return
        else:
            yield from self.expression(node, place)

    def try_(self, node: ast.Try, place: _Place) -> Iterator[Use]:
        caught = any(h.type is None or any(n in ast.unparse(h.type) for n in _CATCHES) for h in node.handlers)
        yield from self.block(node.body, place.at(sure=place.sure and not caught, guarded=place.guarded or caught))
        for handler in node.handlers:
            if handler.type is not None:
                yield from self.expression(handler.type, place.at(sure=False))
            yield from self.block(handler.body, place.at(sure=False, guarded=True))
        yield from self.block(node.orelse, place.at(sure=False))
        yield from self.block(node.finalbody, place)

    def function(self, node: _Function, place: _Place) -> Iterator[Use]:
        arguments = node.args
        for default in (*node.decorator_list, *arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                yield from self.expression(default, place)
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        given += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        generic = {p.name for p in getattr(node, "type_params", ())}
        if self.annotations and not generic:
            for part in (*(a.annotation for a in given), node.returns):
                if part is not None:
                    yield from self.expression(part, place.at(sure=False))
        bound = {name for statement in node.body for name in bound_by(statement)}
        inner = place.inner | generic | {a.arg for a in given} | bound
        if place.own:  # inside a class
            inner = inner | {"__class__"}
        sure = place.sure and not place.inner and not place.own and node.name in self.called and _is_run_at_once(node)
        yield from self.block(node.body, _Place(frozenset(inner or {""}), frozenset(), sure, place.guarded))

    def class_(self, node: ast.ClassDef, place: _Place) -> Iterator[Use]:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            yield from self.expression(part, place)
        bound = {name for statement in node.body for name in bound_by(statement)}
        generic = {p.name for p in getattr(node, "type_params", ())}
        own = frozenset(bound | {"__module__", "__qualname__", "__class__"})
        yield from self.block(node.body, _Place(place.inner | generic, own, place.sure, place.guarded))

    def expression(self, node: ast.AST, place: _Place) -> Iterator[Use]:
        if isinstance(node, ast.Lambda):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            given += [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
            for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
                yield from self.expression(part, place)
            names = place.inner | {a.arg for a in given} | set(bound_by(node))
            yield from self.expression(node.body, _Place(names, frozenset(), False, place.guarded))
            return
        if isinstance(node, _COMPREHENSIONS):
            bound = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            place = _Place(place.inner | bound | set(bound_by(node)), place.own, False, place.guarded)
        elif isinstance(node, _LAZY):
            place = place.at(sure=False, guarded=True)
        if isinstance(node, ast.Call) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            yield Use(node, place.sure, place.inner | place.own, place.guarded)
        for child in ast.iter_child_nodes(node):
            yield from self.expression(child, place)


def _list_certain_calls(tree: ast.Module) -> frozenset[str]:
    """Functions of the module that run whenever it does: called in its straight lines, or in theirs."""
    functions: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = [] if node.name in functions or node.decorator_list else node.body
    called, pending = set[str](), [list(tree.body)]
    while pending:
        for statement in _list_straight_statements(pending.pop()):
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                name = call.func.id
                if functions.get(name) and name not in called:
                    called.add(name)
                    pending.append(functions[name])
    return frozenset(called)


def _list_straight_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if (isinstance(node, ast.If) and is_main_test(node.test)) or isinstance(node, ast.With):
            yield from _list_straight_statements(node.body)
        else:
            yield node
        if _may_leave(node):
            return


def _may_leave(node: ast.stmt) -> bool:
    """True when what follows may never be reached: something inside returns, raises, or ends the program."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    if is_block_end(node) or isinstance(node, (ast.Break, ast.Continue)):
        return True
    return any(
        isinstance(child, (ast.Return, ast.Raise)) or (isinstance(child, ast.Expr) and is_block_end(child))
        for child in ast.walk(node)
    ) or (isinstance(node, ast.While) and isinstance(node.test, ast.Constant))


def _is_run_at_once(node: _Function) -> bool:
    """Not a generator and not a coroutine: its body runs when it is called."""
    if isinstance(node, ast.AsyncFunctionDef) or node.decorator_list:
        return False
    return not any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in ast.walk(node))
