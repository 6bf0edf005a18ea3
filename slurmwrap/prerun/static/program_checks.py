"""Check one Python program: file, syntax, imports, names, attributes and options, the cheapest checks first."""

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
from slurmwrap.prerun.static.code_errors import find_code_errors
from slurmwrap.prerun.static.container_calls import RUNTIMES
from slurmwrap.prerun.static.imported_files import (
    ProgramFile,
    ProgramImports,
    find_module,
    list_search_roots,
    read_program,
)
from slurmwrap.prerun.static.missing_imports import (
    NeededPackage,
    find_local_faults,
    find_missing_packages,
    suggest_module,
)
from slurmwrap.prerun.static.program_options import find_misfitting_options
from slurmwrap.prerun.static.python_interpreter import Python, find_python
from slurmwrap.prerun.static.python_source import PythonSource, list_bound_names, read_source
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext

# Syntax: at most one finding per source, after the job's own Python was asked.

# This program reads source from standard input and compiles it with its own compile(). It runs nothing of it.
_COMPILE = "import sys; compile(getattr(sys.stdin, 'buffer', sys.stdin).read(), 'program', 'exec', 0, True)"


def check_syntax(
    source: PythonSource, python: str | None, context: StaticContext, *, may_err: bool = True
) -> Iterator[Finding]:
    """Yield at most one finding. `python`: path of the interpreter that will run the program, None if not known."""
    if source.error is None:
        return
    refused_by_job = ask_job_interpreter(source, python, context)
    if refused_by_job is False:
        # That Python is newer or older than this one and accepts the file.
        return
    error, line = source.error, source.line + (source.error.lineno or 0)
    certain = may_err and (refused_by_job or is_error_in_every_version(error))
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
    """Return True if the job's own interpreter refuses the text too, False if it accepts it, None if it is unknown."""
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
    """Return whether every Python version refuses the source.

    Later versions allow more inside f-strings, and print was once a statement, but a missing bracket is always wrong.
    """
    if isinstance(error, IndentationError):
        return True
    return bool(re.search(r"was never closed|^unmatched|does not match opening|^unterminated string", error.msg or ""))


# Attributes that the user's own modules do not have: `utils.trian()`.
#
# These are warnings only, because a module may get names while the program runs. Modules whose names are not all in
# their text are skipped.
_PER_FILE = 5


def find_attribute_faults(program: ProgramImports, go_on: Callable[[], bool] = lambda: True) -> Iterator[Finding]:
    """Yield at most five findings for each file, as long as `go_on` returns True."""
    if program.tricks or not program.whole:
        return
    for reached in program.files:
        if not go_on():
            return
        if reached.source.tree is not None and not reached.source.mentions(b"setattr", b"importlib"):
            yield from _find_faults(reached, program)


def _find_faults(reached: ProgramFile, program: ProgramImports) -> Iterator[Finding]:
    assert reached.source.tree is not None
    modules = dict(_list_modules(reached, program))
    reported: set[str] = set()
    if not modules:
        return
    for node in ast.walk(reached.source.tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules):
            continue
        path, dotted, names = modules[node.value.id]
        whole = f"{node.value.id}.{node.attr}"
        if not isinstance(node.ctx, ast.Load) or node.attr in names or node.attr.startswith("__") or whole in reported:
            continue
        submodule = program.find(f"{dotted}{'' if dotted.endswith('.') else '.'}{node.attr}", reached.folder)
        if len(reported) >= _PER_FILE or submodule.kind != "missing" or _is_set_or_tested(node.attr, program):
            continue
        reported.add(whole)
        near = find_nearest(node.attr, names)
        yield Finding(
            severity=Severity.WARNING,
            message=f"AttributeError: {whole}: {path} does not define it",
            file=reached.source.path,
            line=reached.source.line + node.lineno,
            fix=f"did you mean {node.value.id}.{near}?" if near else f"define {node.attr} in {path}",
            category="semantic_error",
        )


def _list_modules(
    reached: ProgramFile, program: ProgramImports
) -> Iterator[tuple[str, tuple[str, str, frozenset[str]]]]:
    """Yield (local name, (file, dotted name, its names)) of modules imported once, under a name bound only once."""
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
        names = list_bound_names(source.tree)
        if names is not None:
            yield name, (found.path, dotted, names)


def _has_module_getattr(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _list_imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (local name, dotted name of what may be a module)."""
    if isinstance(node, ast.Import):
        yield from ((a.asname or a.name, a.name) for a in node.names if a.asname or "." not in a.name)
    elif isinstance(node, ast.ImportFrom):
        base = "." * node.level + (node.module or "")
        joint = "" if base.endswith(".") or not base else "."
        yield from ((a.asname or a.name, f"{base}{joint}{a.name}") for a in node.names)


def _is_set_or_tested(name: str, program: ProgramImports) -> bool:
    """Return whether any file assigns to an attribute of this name, or has the name as a string to test for it."""
    word = name.encode()
    return any(
        isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
        for f in program.files
        if f.source.tree is not None and f.source.mentions(word)
        for node in ast.walk(f.source.tree)
    ) or any(f.source.mentions(b'"' + word + b'"', b"'" + word + b"'") for f in program.files)


# Seconds per byte of the program that reading the options takes at most.
_PARSER_S = 0.5 / (1 << 20)
# Seconds per byte of a file that checking its names takes: 99 of 100 files of libraries take less.
_NAMES_S = 3.3 / (1 << 20)
# If less time than this is left, no further check begins.
_MIN_TIME_S = 0.15


def check_program(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    """Check that the entry point exists, is readable, compiles, finds its imports and accepts its options."""
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
        exists_here = path.exists() and not (path.is_dir() and not (path / "__main__.py").exists())
    except OSError:
        exists_here = False
    if not exists_here:
        if not entry.contained or entry.bound or not _is_inside_container(entry):
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


# The images of these runtimes have a working directory of their own.
_OWN_DIRECTORY = ("docker", "podman", "podman-hpc", "nerdctl", "enroot", "sarus")


def _is_inside_container(entry: EntryPoint) -> bool:
    """Return whether the path may be the container's own.

    It is if it is absolute, in a working directory that the container's options set, or in a script that runs inside.
    """
    if not any(os.path.basename(w) in RUNTIMES or w.startswith("--container") for w in entry.whole):  # noqa: PTH119
        return True
    given = next((w for w in reversed(entry.whole) if entry.path.endswith(w.removeprefix("./")) and w), "")
    moved = ("-w", "--workdir", "--pwd", "--cwd", "--container-workdir", "--cd", *_OWN_DIRECTORY)
    return given.startswith("/") or any(w.split("=")[0] in moved for w in entry.whole)


def make_missing_program_finding(entry: EntryPoint, context: StaticContext) -> Finding:
    """Return the finding for a program that does not exist."""
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
    interpreter_path = python.path if python else None
    if source.error is not None:
        yield from check_syntax(source, interpreter_path, context, may_err=entry.certain)
        return
    if source.tree is None or context.left() < _MIN_TIME_S:
        return
    program = read_program(entry, source, context)
    for reached in program.files[1:]:
        if context.left() > _MIN_TIME_S:
            yield from check_syntax(reached.source, interpreter_path, context, may_err=reached.sure and entry.certain)
    yield from _check_imports_and_names(program, python, context)


def _check_imports_and_names(
    program: ProgramImports, python: Python | None, context: StaticContext
) -> Iterator[Finding]:
    entry = program.entry
    if context.left() > _MIN_TIME_S:
        yield from find_local_faults(program)
    if context.left() > _MIN_TIME_S:
        yield from find_code_errors(program, python, lambda size: context.left() > _MIN_TIME_S + size * _NAMES_S)
    if context.left() > _MIN_TIME_S:
        yield from find_attribute_faults(program, lambda: context.left() > _MIN_TIME_S)
    size = sum(len(one.source.content) for one in program.files)
    if context.left() > _MIN_TIME_S + size * _PARSER_S:
        parser = read_parser(program)
        if parser is not None:
            yield from find_misfitting_options(entry, parser, context.where(entry))
        else:
            yield from check_other_libraries(program, context.where(entry))
    # An inline program that may fail, such as `python -c "import x" || pip install x`, is not checked.
    if context.left() > _MIN_TIME_S and (entry.code is None or entry.certain):
        yield from find_missing_packages(program, python, context)


def _check_module(entry: EntryPoint, context: StaticContext) -> Iterator[Finding]:
    """Check `python -m name`, whose file need not be in the working directory."""
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
