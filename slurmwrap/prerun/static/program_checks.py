"""Everything that is looked at in one Python program: turns an entry point into findings, cheapest checks first."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest, suggest_path
from slurmwrap.prerun.static.argparse_model import read_parser
from slurmwrap.prerun.static.cli_libraries import check_other_libraries
from slurmwrap.prerun.static.code_errors import name_faults
from slurmwrap.prerun.static.imported_files import ProgramImports, Reached, find_module, list_search_roots, read_program
from slurmwrap.prerun.static.missing_imports import (
    NeededPackage,
    find_local_faults,
    find_missing_packages,
    suggest_module,
)
from slurmwrap.prerun.static.program_options import find_misfitting_options
from slurmwrap.prerun.static.python_interpreter import Python, find_python
from slurmwrap.prerun.static.python_source import PythonSource, bound_names, read_source
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext

# Does a Python program compile: turns a Source into at most one finding, after asking the job's own Python.

# Reads a program from standard input and says what its own compile() does; runs nothing of it.
_COMPILE = "import sys; compile(getattr(sys.stdin, 'buffer', sys.stdin).read(), 'program', 'exec', 0, True)"


def check_syntax(
    source: PythonSource, python: str | None, context: StaticContext, *, may_err: bool = True
) -> Iterator[Finding]:
    """`python`: path of the interpreter that will run it, None when that is not known."""
    if source.error is None:
        return
    second = ask_job_interpreter(source, python, context)
    if second is False:
        # A newer or older Python than ours, and it takes the file.
        return
    error, line = source.error, source.line + (source.error.lineno or 0)
    certain = may_err and (second or is_error_in_every_version(error))
    shown = f": {error.text.strip()}" if error.text else ""
    yield Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=f"{type(error).__name__}: {error.msg}{shown}",
        file=source.path,
        line=line,
        fix=f"fix line {line}",
        category="syntax_error",
    )


def ask_job_interpreter(source: PythonSource, python: str | None, context: StaticContext) -> bool | None:
    """True: the job's own interpreter refuses the text as well; False: it takes it; None: it cannot be asked."""
    if python is None or context.left() <= 0.1:
        return None
    if Path(python).resolve() == Path(sys.executable).resolve():
        return True
    argv = [python, "-I", "-S", "-W", "ignore", "-c", _COMPILE]
    answer = context.run(argv, timeout_s=min(1.0, context.left()), stdin=source.content)
    if answer.exit_code == 0:
        return False
    return True if b"Error" in answer.stderr and answer.exit_code == 1 else None


def is_error_in_every_version(error: SyntaxError) -> bool:
    """Later Pythons allow more inside f-strings, and print was a statement once; a lost bracket is lost everywhere."""
    if isinstance(error, IndentationError):
        return True
    return bool(re.search(r"was never closed|^unmatched|does not match opening|^unterminated string", error.msg or ""))


# Attributes of the user's own modules that these do not have: `utils.trian()`. Turns a program's trees into findings.
#
# Warnings only: a module may get names while the program runs. Silent where the module's names are not all in its text.
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


# Seconds that reading the options takes for each byte of the program, at most.
_PARSER_S = 0.5 / (1 << 20)
# The same for the names of one file: 99 of 100 files of libraries take less.
_NAMES_S = 3.3 / (1 << 20)
# Less time left than this: nothing more is begun.
_ENOUGH_S = 0.15


def check_program(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    """The entry point is there, can be read, compiles, finds its imports, defines its names and takes its options."""
    if entry.code is not None:
        yield from _check_source(
            entry, read_source(_encode_code(entry.code), context.where(entry), entry.code_line - 1), context
        )
    elif entry.path:
        yield from _check_file(entry, context)
    elif entry.module:
        yield from _check_module(entry, context)


def _encode_code(code: str) -> bytes:
    return code.encode("utf-8", "surrogateescape")


def _check_file(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    path = Path(entry.path)
    try:
        there = path.exists() and not (path.is_dir() and not (path / "__main__.py").exists())
    except OSError:
        there = False
    if not there:
        if not (entry.contained and _is_inside_container(entry)):
            yield make_missing_program_finding(entry, context)
    elif not os.access(path, os.R_OK):
        yield Finding(
            severity=context.severity(entry),
            message=f"{path} cannot be read by you",
            file=context.where(entry),
            line=entry.line,
            fix=f"chmod u+r {path}, or ask its owner",
            category="permission_error",
        )
    elif path.is_file():
        yield from _check_source(entry, context.source(entry.path), context)


def _is_inside_container(entry: EntryPoint) -> bool:
    """A path of the container's own: absolute, or below a working directory that its options set."""
    given = next((w for w in reversed(entry.whole) if entry.path.endswith(w.removeprefix("./")) and w), "")
    moved = ("-w", "--workdir", "--pwd", "--cwd", "--container-workdir", "--cd", "docker", "podman")
    return given.startswith("/") or any(w.split("=")[0] in moved for w in entry.whole)


def make_missing_program_finding(entry: EntryPoint, context: StaticContext) -> Finding:
    """The program does not exist."""
    return Finding(
        severity=context.severity(entry),
        message=f"{entry.path}: no such file (started by {entry.kind})",
        file=context.where(entry),
        line=entry.line,
        fix=f"correct the path{suggest_path(entry.path)}",
        category="incorrect_inputs",
    )


def _check_source(entry: EntryPoint, source: PythonSource, context: StaticContext) -> Iterator[Finding]:
    python = find_python(entry, context)
    asked = python.path if python else None
    if source.error is not None:
        yield from check_syntax(source, asked, context, may_err=entry.certain)
        return
    if source.tree is None or context.left() < _ENOUGH_S:
        return
    program = read_program(entry, source, context)
    for reached in program.files[1:]:
        if context.left() > _ENOUGH_S:
            yield from check_syntax(reached.source, asked, context, may_err=reached.sure and entry.certain)
    yield from _check_imports_and_names(program, python, context)


def _check_imports_and_names(
    program: ProgramImports, python: Python | None, context: StaticContext
) -> Iterator[Finding]:
    entry = program.entry
    if context.left() > _ENOUGH_S:
        yield from find_local_faults(program)
    if context.left() > _ENOUGH_S:
        yield from name_faults(program, python, lambda size: context.left() > _ENOUGH_S + size * _NAMES_S)
    if context.left() > _ENOUGH_S:
        yield from find_attribute_faults(program, lambda: context.left() > _ENOUGH_S)
    size = sum(len(one.source.content) for one in program.files)
    if context.left() > _ENOUGH_S + size * _PARSER_S:
        parser = read_parser(program)
        if parser is not None:
            yield from find_misfitting_options(entry, parser, context.where(entry))
        else:
            yield from check_other_libraries(program, context.where(entry))
    # `python -c "import x" || pip install x`
    if context.left() > _ENOUGH_S and (entry.code is None or entry.certain):
        yield from find_missing_packages(program, python, context)


def _check_module(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    """`python -m name` where no file of that name lies in the working directory."""
    roots, _ = list_search_roots(entry)
    found = find_module(entry.module, roots, "")
    if found.kind in ("module", "package"):
        path = found.path if found.kind == "module" else str(Path(found.path).with_name("__main__.py"))
        if Path(path).is_file():
            yield from _check_source(replace(entry, path=path), context.source(path), context)
        return
    where = context.where(entry)
    if found.kind == "missing":
        yield Finding(
            severity=context.severity(entry, entry.cwd),
            message=f"No module named {entry.module!r} below {entry.cwd or 'the working directory'}",
            file=where,
            line=entry.line,
            fix=suggest_module(entry.module, roots),
            category="import_error",
        )
        return
    bare = ProgramImports(entry=entry, files=(), roots=roots, roots_known=bool(roots))
    top = entry.module.split(".")[0]
    wanted = (NeededPackage(name=top, file=where, line=entry.line, sure=True),)
    yield from find_missing_packages(bare, find_python(entry, context), context, wanted)
