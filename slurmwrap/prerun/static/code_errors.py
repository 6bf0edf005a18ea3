"""Find lines of Python that raise when they run: undefined names, pyflakes' findings, wrong calls, bad formats."""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyflakes import checker, messages

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest, is_typo
from slurmwrap.prerun.static.call_signatures import find_misfit, list_imported_signatures, list_signatures
from slurmwrap.prerun.static.certain_lines import Place, find_exiting, find_places
from slurmwrap.prerun.static.imported_files import ProgramFile, ProgramImports
from slurmwrap.prerun.static.python_interpreter import Python
from slurmwrap.prerun.static.python_source import ALWAYS, list_bound_names
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.word_tables import split_word_table

# A width or precision of this many digits would make a text of megabytes.
_FIVE_DIGITS = re.compile(r"\d{5}")
# A value that is valid for %d, %f, %c and %s, and for the width of %*.
_NUMBER = 65


class _AnyKey(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return _NUMBER


class _AnyValue:
    """A value that has every attribute and item and accepts every format. Its text "1" is also a valid width."""

    def __getattribute__(self, name: str) -> _AnyValue:
        return self

    def __getitem__(self, key: object) -> _AnyValue:
        return self

    def __format__(self, spec: str) -> str:
        return "1"


def find_format_error(node: ast.AST) -> Exception | None:
    """Return the error of `"literal" % values` or `"literal".format(values)`; None if values of this shape can fit."""
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
        return _try_percent(node.left.value, node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        literal = node.func.value
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            return _try_format(literal.value, node)
    return None


def _try_percent(text: str, right: ast.expr) -> Exception | None:
    error: Exception | None = None
    if _FIVE_DIGITS.search(text):
        return None
    for values in _list_percent_values(text, right):
        try:
            text % values
        except (TypeError, ValueError, KeyError) as raised:
            error = error or raised
        else:
            return None
    return error


def _list_percent_values(text: str, right: ast.expr) -> Iterator[object]:
    """Yield values that the right side may have, one for each possible shape."""
    elements = right.elts if isinstance(right, (ast.Tuple, ast.List)) else []
    if isinstance(right, (ast.Tuple, ast.List)) and not any(isinstance(e, ast.Starred) for e in elements):
        shape = tuple if isinstance(right, ast.Tuple) else list
        yield shape([_NUMBER] * len(elements))
    elif isinstance(right, ast.Dict) and all(isinstance(key, ast.Constant) for key in right.keys):
        yield {key.value: _NUMBER for key in right.keys if isinstance(key, ast.Constant)}
    else:
        yield _NUMBER
        yield _AnyKey()
        yield from ((_NUMBER,) * count for count in range(2 * text.count("%") + text.count("*") + 1))


def _try_format(text: str, call: ast.Call) -> Exception | None:
    if _FIVE_DIGITS.search(text):
        return None
    many = any(isinstance(argument, ast.Starred) for argument in call.args)
    count = len(text) if many else len(call.args)
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    if any(keyword.arg is None for keyword in call.keywords):
        names.update(re.findall(r"\w+", text))
    try:
        text.format(*[_AnyValue()] * count, **dict.fromkeys(names, _AnyValue()))
    except (IndexError, KeyError, ValueError) as raised:
        return raised
    return None


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
    """One message of pyflakes. `kind`: "name" | "print" | "raise" | "format".

    For kind "name": `bound` is the scope that has the name although the line cannot see it ("local" | "module", "" if
    none has it), and `inner` holds the names of the functions around the line.
    """

    kind: str
    node: ast.expr | ast.stmt
    bound: str = ""
    inner: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleReport:
    """The defects of a module in the order of its text, and its calls of functions that its own top level defines."""

    defects: tuple[Defect, ...]
    calls: tuple[ast.Call, ...]


class _RecordingChecker(checker.Checker):  # type: ignore[misc]
    """A pyflakes checker that records the node and scopes of each message, which otherwise has only line and column."""

    def __init__(self, tree: ast.Module, builtins: Iterable[str]) -> None:
        self.global_calls: list[ast.Call] = []
        # Do not let the environment variable PYFLAKES_DOCTEST decide.
        super().__init__(tree, builtins=builtins, withDoctest=False)

    def report(self, kind: type, node: ast.AST, *details: object) -> None:
        super().report(kind, node, *details)
        self.messages[-1].origin = (node, tuple(self.scopeStack))

    def CALL(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and not any(node.func.id in scope for scope in self.scopeStack[1:]):
            self.global_calls.append(node)
        super().CALL(node)


def check_module(tree: ast.Module, builtins: Iterable[str]) -> ModuleReport:
    """Check names, `print >>`, `raise NotImplemented` and formats. `builtins`: names that are always defined.

    Names that a star import may define are among the defects. The report is empty if pyflakes itself fails. Raises
    RecursionError for a tree that is too deep.
    """
    try:
        checked = _RecordingChecker(tree, builtins)
    except AttributeError:
        # Happens for `__all__ += [...]` after `from module import __all__` (pyflakes 3.4).
        return ModuleReport(defects=(), calls=())
    found = (_read_message(message) for message in checked.messages)
    defects = sorted((d for d in found if d), key=lambda d: (d.node.lineno, d.node.col_offset))
    return ModuleReport(defects=tuple(defects), calls=tuple(checked.global_calls))


def _read_message(message: Any) -> Defect | None:
    """Return the defect; None for messages about code that does not raise, such as unused imports and variables."""
    node, scopes = message.origin
    kind = "format" if type(message).__name__.startswith(_FORMATS) else _KINDS.get(type(message), "")
    if kind == "name" and isinstance(node, ast.Name):
        inner = (scope for scope in scopes[1:] if not isinstance(scope, checker.ClassScope))
        names = frozenset(name for scope in inner for name in scope)
        return Defect(kind=kind, node=node, bound=_find_scope(node.id, scopes), inner=names)
    if kind == "raise" and _find_scope("NotImplemented", scopes):
        # The name is a class of the program's own.
        return None
    return Defect(kind=kind, node=node) if kind and kind != "name" else None


def _find_scope(name: str, scopes: tuple[checker.Scope, ...]) -> str:
    """Return the kind of the innermost scope that has `name` at its end; "" for a builtin and for an unknown name."""
    for scope in reversed(scopes):
        if name not in scope or (isinstance(scope, checker.ClassScope) and scope is not scopes[-1]):
            continue
        if isinstance(scope[name], checker.Builtin):
            return ""
        return "local" if isinstance(scope, (checker.FunctionScope, checker.GeneratorScope)) else "module"
    return ""


_BUILTINS = frozenset(dir(builtins)) | split_word_table(
    """WindowsError ExceptionGroup BaseExceptionGroup EncodingWarning PythonFinalizationError aiter anext exit quit
    copyright credits license help get_ipython display profile reveal_type reveal_locals _ __IPYTHON__ __debug__
    __warningregistry__ __annotate__ __conditional_annotations__ __classdict__"""
)
_PYTHON_2 = split_word_table(
    """unicode xrange raw_input basestring long file reload unichr cmp execfile reduce buffer apply intern coerce"""
)
_PYTHON_3_NAMES = {"xrange": "range", "raw_input": "input", "unicode": "str", "basestring": "str", "long": "int"}
# Findings of one kind per file: a name whose import is missing is often used many times.
_PER_FILE = 5


def find_code_errors(
    program: ProgramImports, python: Python | None = None, has_time: Callable[[int], bool] = lambda size: True
) -> Iterator[Finding]:
    """Yield undefined names, wrong calls and similar errors of every file of the program, the nearest file first.

    `python`: the interpreter that runs it, if known. `has_time`: whether there is time to check that many bytes.
    """
    if program.entry.interpreter.endswith(("python2", "python2.7")):
        return
    contents = [reached.source.content for reached in program.files]
    injected = any(_is_changing_builtins(content) for content in contents)
    # install() of icecream and gettext adds builtins, and a file that was not followed may do anything.
    known = program.whole and not program.tricks and not any(b"install(" in content for content in contents)
    for reached in program.files:
        if not has_time(len(reached.source.content)):
            return
        check = _FileCheck(
            reached=reached,
            program=program,
            injected=injected,
            certain=known and program.entry.certain and reached.sure,
            python_3=_is_python_3(program.entry, python),
        )
        try:
            yield from check.find_faults()
        except RecursionError:
            # The tree is deeper than this Python can check.
            continue


def _is_python_3(entry: EntryPoint, python: Python | None) -> bool:
    """Return False for a `python` that may be the Python 2 of an old system."""
    names = [entry.interpreter, os.path.realpath(python.path) if python else ""]
    return entry.kind not in ("python", "module") or any("python3" in os.path.basename(name) for name in names)  # noqa: PTH119


# Distributed programs silence their other ranks with `builtins.print = quiet`; that neither adds nor removes a name.
_PLAIN_BUILTINS = re.compile(
    rb"import\s+(?:builtins|__builtin__)(?:\s+as\s+__builtin__)?(?=\s*(?:$|[;#]))|\b(?:builtins|__builtin__)\.\w+", re.M
)
_ADDED_BUILTINS = re.compile(rb"\b(?:builtins|__builtin__)\.(\w+)\s*=(?!=)")


def _is_changing_builtins(content: bytes) -> bool:
    """Return whether names may become builtins in an unusual way, or new builtins are assigned."""
    if b"global_enum" in content:
        return True
    if b"builtin" not in content:
        return False
    added = {name.decode() for name in _ADDED_BUILTINS.findall(content)}
    rest = _PLAIN_BUILTINS.sub(b"", content)
    return bool(added - _BUILTINS) or b"builtins" in rest or b"__builtin__" in rest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """An error at one node. `always`: it raises whenever the node is evaluated."""

    kind: str
    node: ast.expr | ast.stmt
    place: Place
    error: type[BaseException]
    message: str
    fix: str
    always: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileCheck:
    """One file of a program. `injected`: builtins may be added. `certain`: the file is certain to run as it is."""

    reached: ProgramFile
    program: ProgramImports
    injected: bool
    certain: bool
    python_3: bool

    def find_faults(self) -> Iterator[Finding]:
        """Yield at most five findings of each kind, the certain ones first."""

        tree = self.reached.source.tree
        if tree is None:
            return
        stars = _list_star_imports(self.reached, self.program)
        names = None if self.injected else list_bound_names(tree, stars)
        report = check_module(tree, _BUILTINS | ALWAYS | (stars or frozenset()))
        defects = [d for d in report.defects if names is not None or d.kind == "format" or d.bound == "local"]
        misfits = list(self.list_misfits(tree, report.calls)) if names is not None else []
        if not defects and not misfits:
            return
        places = self.find_places(tree, [*(d.node for d in defects), *(call for call, _, _ in misfits)])
        deleted = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}
        known = names or frozenset()
        judged = [
            self.judge_defect(defect, places[defect.node], known, deleted)
            for defect in defects
            if defect.node in places
        ]
        judged += [_describe_misfit(*misfit, places[misfit[0]]) for misfit in misfits if misfit[0] in places]
        faults = [fault for fault in judged if fault and not fault.place.expects(fault.error)]
        # Certain errors come before uncertain ones. Each name, or node, is reported only once.
        faults.sort(key=lambda fault: not (fault.always and fault.place.sure))
        reported: dict[str, set[object]] = {}
        for fault in faults:
            seen = reported.setdefault(fault.kind, set())
            key = fault.message if fault.kind == "name" else fault.node
            if key not in seen and len(seen) < _PER_FILE:
                seen.add(key)
                yield self.make_finding(fault)

    def list_misfits(self, tree: ast.Module, calls: Sequence[ast.Call]) -> Iterator[tuple[ast.Call, str, str]]:
        """Yield (call, what is wrong with it, where its function is defined)."""
        table = {**list_imported_signatures(self.reached, self.program), **list_signatures(tree)}
        for call in calls:
            takes = table.get(call.func.id) if isinstance(call.func, ast.Name) else None
            if takes and (wrong := find_misfit(call, takes)):
                yield call, wrong, takes.where

    def find_places(self, tree: ast.Module, nodes: Sequence[ast.AST]) -> Mapping[ast.AST, Place]:
        others = (f.source for f in self.program.files if f is not self.reached)
        trees = [s.tree for s in others if s.tree is not None and s.mentions(b"exit", b"Exit", b"quit", b"abort")]
        is_program = self.reached is self.program.files[0]
        return find_places(tree, nodes, is_program=is_program, exiting=find_exiting([tree, *trees]))

    def judge_defect(self, defect: Defect, place: Place, known: frozenset[str], deleted: set[str]) -> _Fault | None:
        """Return the error that Python will raise; None if it raises none."""
        node = defect.node
        if isinstance(node, ast.Name) and defect.kind == "name":
            return self.judge_name(node, defect, place, known, deleted)
        if isinstance(node, ast.Name):
            return self.judge_print(node, place)
        if isinstance(node, ast.Raise):
            what = "exceptions must derive from BaseException"
            what = "'NotImplementedType' object is not callable" if isinstance(node.exc, ast.Call) else what
            fix = "write raise NotImplementedError"
            return _Fault(kind="raise", node=node, place=place, error=TypeError, message=what, fix=fix)
        error = find_format_error(node)
        if error is None:
            return None
        fix = "give one value for each placeholder, and write a percent sign as %% and a brace as {{ or }}"
        return _Fault(kind="format", node=node, place=place, error=type(error), message=str(error), fix=fix)

    def judge_name(
        self, node: ast.Name, defect: Defect, place: Place, known: frozenset[str], deleted: set[str]
    ) -> _Fault | None:
        name = node.id
        bound = defect.bound or ("module" if name in known else "")
        if name in place.rebound or name in deleted:
            return None
        if bound == "module" and (place.scope == "function" or (place.guarded and not place.sure) or place.caught):
            # The name is bound only for a time (`except E as name`), or the code tests whether it exists.
            return None
        if bound == "local":
            message = f"cannot access local variable {name!r} where it is not associated with a value"
            fix = f"assign {name} before this line" + (f", or declare it `global {name}`" if name in known else "")
            return _Fault(kind="name", node=node, place=place, error=UnboundLocalError, message=message, fix=fix)
        if name in _PYTHON_2 and place.guarded:
            return None
        return _Fault(
            kind="name",
            node=node,
            place=place,
            error=NameError,
            message=f"name {name!r} is not defined",
            fix=f"define {name} before this line" if bound else _suggest_remedy(name, known | defect.inner),
            always=self.python_3 or name not in _PYTHON_2,
        )

    def judge_print(self, node: ast.Name, place: Place) -> _Fault | None:
        """Return the error of Python 2's `print >> file`; a warning if the operand may define >> itself."""
        assert self.reached.source.tree is not None
        used = (n for n in ast.walk(self.reached.source.tree) if isinstance(n, ast.BinOp) and n.left is node)
        shift = next((n for n in used if isinstance(n.op, ast.RShift)), None)
        if shift is None or place.guarded:
            return None
        into = ast.unparse(shift.right)
        return _Fault(
            kind="print",
            node=node,
            place=place,
            error=TypeError,
            message=f"unsupported operand type(s) for >>: 'builtin_function_or_method' and {into}",
            fix=f"write print(..., file={into})",
            always=self.python_3 and into in ("sys.stderr", "sys.stdout"),
        )

    def make_finding(self, fault: _Fault) -> Finding:
        return Finding(
            severity=Severity.ERROR if fault.always and fault.place.sure and self.certain else Severity.WARNING,
            message=f"{fault.error.__name__}: {fault.message}",
            file=self.reached.source.path,
            line=self.reached.source.line + fault.node.lineno,
            fix=fault.fix,
            category="semantic_error",
        )


def _describe_misfit(call: ast.Call, wrong: str, where: str, place: Place) -> _Fault:
    message = f"{ast.unparse(call.func)}() {wrong}"
    fix = f"see its definition at {where}"
    return _Fault(kind="call", node=call, place=place, error=TypeError, message=message, fix=fix, always=False)


def _suggest_remedy(name: str, known: frozenset[str]) -> str:
    """Suggest a fix: a typing error before a missing import, the program's own names before Python's."""
    slips = sorted(k for k in known if len(k) > 2 and is_typo(name, k))
    if not slips and name in sys.stdlib_module_names and name not in _PYTHON_3_NAMES:
        return f"import {name}"
    near = _PYTHON_3_NAMES.get(name) or next(iter(slips), "")
    near = near or find_nearest(name, (k for k in known | _BUILTINS if len(k) > 1), cutoff=0.7)
    return f"did you mean {near}?" if near else f"define or import {name}"


def _list_star_imports(reached: ProgramFile, program: ProgramImports) -> frozenset[str] | None:
    """Return all names that the star imports may define; None if one of them is not a plain local module."""
    names: set[str] = set()
    for one in reached.imports:
        if "*" not in one.names:
            continue
        found = program.find(one.module, reached.folder)
        target = next((f for f in program.files if f.source.path == found.path), None)
        if target is None or target.source.tree is None:
            return None
        brought = list_bound_names(target.source.tree)
        if brought is None:
            return None
        names |= brought
    return frozenset(names)
