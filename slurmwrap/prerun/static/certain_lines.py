"""Find which lines of a program are certain to run, by walking a module's tree as Python would run it. Pure.

Code that cannot run (`if TYPE_CHECKING`, `if False`, after `return`) and annotations that are never evaluated (of a
function's variables) get no Place at all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.prerun.static.imported_files import is_block_end, is_main_test
from slurmwrap.prerun.static.python_source import count_bindings, list_names_bound_by
from slurmwrap.prerun.static.word_tables import split_word_table

_LAZY = (ast.BoolOp, ast.IfExp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Calls that may end the program or may not return (`unittest.main()`, `app.run(main)`): code after them is not certain.
_EXITS = frozenset({"exit", "quit", "_exit", "abort", "SystemExit"})
_LEAVING_CALLS = _EXITS | split_word_table(
    """execl execle execlp execv execve execvp execvpe main run Fire cli app serve serve_forever run_forever quickstart
    mainloop"""
)
_ENDLESS = frozenset({"count", "cycle", "repeat"})
# Context managers that let every exception pass, by the first name of their call.
_TRANSPARENT = split_word_table("open torch tempfile warnings jax tf tensorflow np numpy h5py gzip zipfile tarfile")
_EXPECTING_CALLS = frozenset({"suppress", "raises", "assertRaises", "assertRaisesRegex", "ignored"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The circumstances in which a node runs."""

    # It runs whenever the module does, and an exception in it ends the program.
    sure: bool = True
    # It is inside an `if` or `try`, where programs try names that only an old Python has.
    guarded: bool = False
    # Exceptions that are caught around it; "BaseException" for all.
    caught: frozenset[str] = frozenset()
    # Names that an earlier iteration of a loop around it, or the exception handler around it, may have bound.
    rebound: frozenset[str] = frozenset()
    # "module" | "class" | "function"
    scope: str = "module"

    def expects(self, error: type[BaseException]) -> bool:
        """Return whether this exception, or one of its own base classes, is caught by name."""
        names = {base.__name__ for base in error.__mro__} - {"Exception", "BaseException", "object"}
        return bool(names & self.caught)


def find_places(
    tree: ast.Module, nodes: Iterable[ast.AST], *, is_program: bool, exiting: frozenset[str] = frozenset()
) -> dict[ast.AST, Place]:
    """Return the Place of each of `nodes` that can run.

    `is_program`: the module is `__main__`. `exiting`: the result of `find_exiting`.
    """
    walker = _Walker(tree, frozenset(nodes), is_program, exiting)
    walker.visit_block(tree.body, Place())
    return walker.places


def find_exiting(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of functions and methods in which the program may end, directly or in what they call."""
    called: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                called.setdefault(node.name, set()).update(_list_called(node))
    found = _EXITS
    while more := {name for name, calls in called.items() if calls & found} - found:
        found |= more
    return found - _EXITS


def _list_called(node: ast.AST) -> Iterator[str]:
    """Yield the last name of each call, and of each raised exception."""
    for child in ast.walk(node):
        if isinstance(child, (ast.Call, ast.Raise)):
            yield _get_last_name(child.func if isinstance(child, ast.Call) else child.exc)


def _get_last_name(node: ast.AST | None) -> str:
    """Return `c` for the expressions `c` and `a.b.c`; "" for any other."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class _Walker:
    """Visits the nodes that can run, and records the Place of each wanted one. A Place is passed down and refined."""

    def __init__(self, tree: ast.Module, wanted: frozenset[ast.AST], is_program: bool, exiting: frozenset[str]) -> None:
        self.places: dict[ast.AST, Place] = {}
        self.wanted = wanted
        self.is_program = is_program
        self.exiting = exiting
        times = count_bindings(tree)
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and times[n.name] == 1]
        self.plain = {n.name: n.body for n in functions if _is_run_at_once(n)}
        self.decorated = frozenset(n.name for n in functions if n.decorator_list)
        # From Python 3.14 on annotations are evaluated only on access, so no annotation is certain to run.
        self.annotations = not any(
            isinstance(n, ast.ImportFrom) and n.module == "__future__" and any(a.name == "annotations" for a in n.names)
            for n in tree.body
        )
        self.called = self.find_certain_calls(tree)

    def find_certain_calls(self, tree: ast.Module) -> frozenset[str]:
        """Return the functions that run whenever the module does: called in its straight-line code, or in theirs."""
        called, pending = set[str](), [tree.body]
        while pending:
            for statement in self.list_straight(pending.pop()):
                call = getattr(statement, "value", None)
                name = (
                    _get_last_name(call.func) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
                )
                if name in self.plain and name not in called:
                    called.add(name)
                    pending.append(self.plain[name])
        return frozenset(called)

    def list_straight(self, body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if (isinstance(node, ast.If) and self.decide(node.test)) or _is_transparent(node):
                yield from self.list_straight(node.body)  # type: ignore[attr-defined]
            else:
                yield node
            if self.may_leave(node):
                return

    def decide(self, test: ast.expr) -> bool | None:
        """Return the constant truth value of a condition; None if it depends on the run."""
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decide(test.operand)
            return None if inner is None else not inner
        if _get_last_name(test) == "TYPE_CHECKING":
            return False
        return True if self.is_program and is_main_test(test) else None

    def may_leave(self, node: ast.stmt) -> bool:
        """Return whether the code after it may never run: something in it returns, raises, or ends the program."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False
        return any(
            isinstance(child, (ast.Return, ast.Raise, ast.Break, ast.Continue))
            or (isinstance(child, ast.While) and isinstance(child.test, ast.Constant))
            or (isinstance(child, ast.For) and _is_endless(child.iter))
            or (isinstance(child, ast.Call) and self.may_end(child.func))
            for child in ast.walk(node)
        )

    def may_end(self, called: ast.expr) -> bool:
        name = _get_last_name(called)
        if name in self.exiting:
            return True
        if isinstance(called, ast.Name) and name in self.plain:
            return False
        return name in self.decorated or (name in _LEAVING_CALLS and ast.unparse(called) != "subprocess.run")

    def visit_block(self, body: Sequence[ast.stmt], place: Place) -> None:
        for node in body:
            self.visit(node, place)
            if is_block_end(node) or isinstance(node, (ast.Break, ast.Continue)):
                return
            # After a statement that may leave the block, the rest still can run but is not certain to.
            if place.sure and self.may_leave(node):
                place = replace(place, sure=False)

    def visit_all(self, nodes: Iterable[ast.AST | None], place: Place) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node, place)

    def visit(self, node: ast.AST, place: Place) -> None:
        if node in self.wanted:
            self.places[node] = place
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            self.visit_function(node, place)
        elif isinstance(node, ast.ClassDef):
            self.visit_all([*node.decorator_list, *node.bases, *node.keywords], place)
            self.visit_block(node.body, replace(place, scope="class"))
        elif isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor, ast.Match)):
            self.visit_branches(node, place)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.visit_all(node.items, place)
            inner = (
                place
                if _is_transparent(node)
                else replace(place, sure=False, caught=place.caught | _list_expected_exceptions(node))
            )
            self.visit_block(node.body, inner)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            self.visit_try(node, place)
        elif isinstance(node, ast.AnnAssign):
            self.visit_all([node.value, node.target], place)
            if self.annotations and place.scope != "function":
                self.visit(node.annotation, replace(place, sure=False))
        elif type(node).__name__ != "TypeAlias":
            # A type alias is evaluated only on access, so it is left out.
            self.visit_expression(node, place)

    def visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, place: Place) -> None:
        arguments = node.args
        self.visit_all([*arguments.defaults, *arguments.kw_defaults], place)
        inner = Place(sure=False, guarded=place.guarded, rebound=place.rebound, scope="function")
        if isinstance(node, ast.Lambda):
            self.visit(node.body, inner)
            return
        self.visit_all(node.decorator_list, place)
        if self.annotations:
            annotated = [
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ]
            self.visit_all([*(a.annotation for a in annotated if a), node.returns], replace(place, sure=False))
        certain = place.sure and place.scope == "module" and self.plain.get(node.name) is node.body
        self.visit_block(node.body, replace(inner, sure=certain and node.name in self.called))

    def visit_branches(self, node: ast.If | ast.While | ast.For | ast.AsyncFor | ast.Match, place: Place) -> None:
        inner = replace(place, sure=False)
        if isinstance(node, ast.Match):
            self.visit(node.subject, place)
            for case in node.cases:
                self.visit_all([case.pattern, case.guard], inner)
                self.visit_block(case.body, replace(inner, guarded=True))
            return
        if isinstance(node, (ast.For, ast.AsyncFor)):
            always = None
            self.visit(node.iter, place)
            self.visit(node.target, inner)
        else:
            always = self.decide(node.test)
            self.visit(node.test, place)
        if isinstance(node, ast.If):
            inner = replace(inner, guarded=True)
        else:
            inner = replace(inner, rebound=place.rebound | frozenset(list_names_bound_by(node)))
        whole = place if isinstance(node, ast.If) else inner
        if always is not False:
            self.visit_block(node.body, whole if always else inner)
        if always is not True:
            self.visit_block(node.orelse, whole if always is False else inner)

    def visit_try(self, node: ast.Try | ast.TryStar, place: Place) -> None:
        unsure = replace(place, sure=False, guarded=True)
        caught = frozenset(name for handler in node.handlers for name in _list_caught(handler))
        # A correct line in the try block may raise first, so nothing after it is certain.
        self.visit_block(node.body, replace(unsure, caught=place.caught | caught) if caught else place)
        for handler in node.handlers:
            self.visit_all([handler.type], unsure)
            # pyflakes checks functions last, when the handler's name is no longer bound.
            names = unsure.rebound | {handler.name} if handler.name else unsure.rebound
            self.visit_block(handler.body, replace(unsure, rebound=names))
        self.visit_block(node.orelse, unsure)
        self.visit_block(node.finalbody, place)

    def visit_expression(self, node: ast.AST, place: Place) -> None:
        if isinstance(node, _COMPREHENSIONS):
            place = replace(place, sure=False, rebound=place.rebound | frozenset(list_names_bound_by(node)))
        elif isinstance(node, _LAZY):
            place = replace(place, sure=False, guarded=True)
        elif isinstance(node, ast.Assert):
            # `python -O` leaves asserts out.
            place = replace(place, sure=False)
        elif isinstance(node, ast.Compare):
            self.visit_all(node.comparators[1:], replace(place, sure=False))
            self.visit_all([node.left, node.comparators[0]], place)
            return
        self.visit_all(ast.iter_child_nodes(node), place)


def _is_run_at_once(node: ast.FunctionDef) -> bool:
    """Return whether the body runs when the function is called: it is neither decorated nor a generator."""
    return not node.decorator_list and not any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node))


def _is_endless(iterated: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) and _get_last_name(n.func) in _ENDLESS for n in ast.walk(iterated))


def _is_transparent(node: ast.AST) -> bool:
    """Return whether the node is a `with` statement that lets every exception pass."""
    return isinstance(node, ast.With) and all(
        isinstance(item.context_expr, ast.Call) and re.match(r"\w*", ast.unparse(item.context_expr))[0] in _TRANSPARENT  # type: ignore[index]
        for item in node.items
    )


def _list_expected_exceptions(node: ast.With | ast.AsyncWith) -> frozenset[str]:
    """Return the exceptions in `with pytest.raises(NameError)` and the like."""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    named = (call.args for call in calls if _get_last_name(call.func) in _EXPECTING_CALLS)
    return frozenset(_get_last_name(n) for arguments in named for one in arguments for n in ast.walk(one)) - {""}


def _list_caught(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "BaseException"
    else:
        parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        yield from (_get_last_name(part) or "BaseException" for part in parts)
