"""Names that are nowhere defined, and calls that their function cannot take: turns a program's trees into findings.

Silent where names may come from anywhere (star imports of packages, exec, globals). ERROR only for an undefined name in
lines that run whenever the program does.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest, is_slip
from slurmwrap.prerun.static.imported_files import ProgramImports, Reached, is_block_end, is_main_test
from slurmwrap.prerun.static.module_scope import bound_by, bound_names
from slurmwrap.prerun.static.word_tables import split_word_table

# Where a module uses names: walks a tree as Python would run it, and says which uses run for sure.
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
    # Behind `if`, or where an error is caught: names that an old Python had are tried so.
    guarded: bool


@dataclass(frozen=True, slots=True)
class _Place:
    # Visible names of enclosing functions.
    inner: frozenset[str] = frozenset()
    # Of a class body: not seen by its methods.
    own: frozenset[str] = frozenset()
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


# Can this function take this call: compares calls with definitions in the user's own files.

# Bases that call __init__ with the arguments they are given.
_PLAIN_BASES = split_word_table(
    """object nn.Module torch.nn.Module Module Dataset torch.utils.data.Dataset data.Dataset IterableDataset
    torch.utils.data.IterableDataset pl.LightningModule L.LightningModule LightningModule"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSignature:
    """What a definition takes; without `self`."""

    # By position, names of those that may also be given by name.
    positional: tuple[str, ...]
    only_positional: int
    required: int  # of the positional ones
    keywords: frozenset[str]  # keyword-only
    required_keywords: frozenset[str]
    any_positional: bool
    any_keyword: bool
    where: str


def list_signatures(tree: ast.Module, path: str = "") -> Mapping[str, CallSignature]:
    """Functions and plain classes of the module that are bound once and not decorated."""
    times: dict[str, int] = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Global):
            times.update(dict.fromkeys(statement.names, 2))
    for node in tree.body:
        for name in bound_by(node):
            times[name] = times.get(name, 0) + 1
    found: dict[str, CallSignature] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and times[node.name] == 1 and not node.decorator_list:
            found[node.name] = _make_signature(
                node.args, f"{path or 'line'}{':' if path else ' '}{node.lineno}", bound=False
            )
        elif isinstance(node, ast.ClassDef) and times[node.name] == 1 and (init := _find_constructor(node)):
            found[node.name] = _make_signature(
                init.args, f"{path or 'line'}{':' if path else ' '}{init.lineno}", bound=True
            )
    return found


def _find_constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    """__init__, when instances are made by it alone."""
    if node.decorator_list or node.keywords or not all(ast.unparse(base) in _PLAIN_BASES for base in node.bases):
        return None
    names = [name for statement in node.body for name in bound_by(statement)]
    if "__new__" in names or names.count("__init__") != 1:
        return None
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    return init if init is not None and not init.decorator_list and init.args.args else None


def _make_signature(arguments: ast.arguments, where: str, *, bound: bool) -> CallSignature:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1 if bound else 0 :]
    defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return CallSignature(
        positional=tuple(names),
        only_positional=max(0, len(arguments.posonlyargs) - bound),
        required=max(0, len(names) - len(arguments.defaults)),
        keywords=frozenset(a.arg for a in arguments.kwonlyargs),
        required_keywords=frozenset(a.arg for a, default in defaults if default is None),
        any_positional=arguments.vararg is not None,
        any_keyword=arguments.kwarg is not None,
        where=where,
    )


def find_misfit(call: ast.Call, takes: CallSignature) -> str:
    """What is wrong with the call, in Python's own words; "" when nothing is, or when it cannot be known."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return ""
    given = {k.arg for k in call.keywords if k.arg}
    named = set(takes.positional[takes.only_positional :])
    if not takes.any_keyword and (unknown := sorted(given - named - takes.keywords)):
        return f"got an unexpected keyword argument {unknown[0]!r}"
    if len(call.args) > len(takes.positional) and not takes.any_positional:
        count = len(takes.positional)
        return f"takes {count} positional argument{'s' * (count != 1)} but {len(call.args)} are given"
    if twice := sorted(given & set(takes.positional[takes.only_positional : len(call.args)])):
        return f"got multiple values for argument {twice[0]!r}"
    left_out = [n for n in takes.positional[len(call.args) : takes.required] if n not in given]
    left_out += sorted(takes.required_keywords - given)
    return f"missing required argument {left_out[0]!r}" if left_out else ""


_BUILTINS = frozenset(dir(builtins)) | split_word_table(
    """WindowsError ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError aiter anext exit quit
    copyright credits license help get_ipython display profile reveal_type reveal_locals _ __IPYTHON__ __debug__
    __warningregistry__ __annotate__ __conditional_annotations__ __classdict__"""
)
_PYTHON_2 = split_word_table(
    """unicode xrange raw_input basestring long file reload unichr cmp execfile reduce buffer apply intern coerce"""
)
_FOLLOWS = {"xrange": "range", "raw_input": "input", "unicode": "str", "basestring": "str", "long": "int"}
# Findings of one kind; anyone who lost an import uses its name often.
_PER_FILE = 5


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
