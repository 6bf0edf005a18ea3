"""Everything that is looked at in one Python program: turns an entry point into findings, cheapest checks first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.finding import Finding
from slurmwrap.prerun.static.argparse_model import read_parser
from slurmwrap.prerun.static.cli_libraries import check_other_libraries
from slurmwrap.prerun.static.imported_files import ProgramImports, find_module, list_search_roots, read_program
from slurmwrap.prerun.static.missing_imports import (
    NeededPackage,
    find_local_faults,
    find_missing_packages,
    suggest_module,
)
from slurmwrap.prerun.static.module_attributes import find_attribute_faults
from slurmwrap.prerun.static.program_options import find_misfitting_options
from slurmwrap.prerun.static.python_interpreter import Python, find_python
from slurmwrap.prerun.static.python_source import PythonSource, read_source
from slurmwrap.prerun.static.python_syntax import check_syntax
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.suggestions import suggest_path
from slurmwrap.prerun.static.undefined_names import name_faults

_PARSER_S = 0.5 / (1 << 20)  # seconds that reading the options takes for each byte of the program, at most
_ENOUGH_S = 0.15  # less time left than this: nothing more is begun


def check_program(entry: EntryPoint, desk: StaticContext) -> Iterator[Finding]:
    """The entry point is there, can be read, compiles, finds its imports, defines its names and takes its options."""
    if entry.code is not None:
        yield from _check_source(
            entry, read_source(_encode_code(entry.code), desk.where(entry), entry.code_line - 1), desk
        )
    elif entry.path:
        yield from _check_file(entry, desk)
    elif entry.module:
        yield from _check_module(entry, desk)


def _encode_code(code: str) -> bytes:
    return code.encode("utf-8", "surrogateescape")


def _check_file(entry: EntryPoint, desk: StaticContext) -> Iterator[Finding]:
    path = Path(entry.path)
    try:
        there = path.exists() and not (path.is_dir() and not (path / "__main__.py").exists())
    except OSError:
        there = False
    if not there:
        if not (entry.contained and _is_inside_container(entry)):
            yield make_missing_program_finding(entry, desk)
    elif not os.access(path, os.R_OK):
        yield Finding(
            severity=desk.severity(entry),
            message=f"{path} cannot be read by you",
            file=desk.where(entry),
            line=entry.line,
            fix=f"chmod u+r {path}, or ask its owner",
            category="permission_error",
        )
    elif path.is_file():
        yield from _check_source(entry, desk.source(entry.path), desk)


def _is_inside_container(entry: EntryPoint) -> bool:
    """A path of the container's own: absolute, or below a working directory that its options set."""
    given = next((w for w in reversed(entry.whole) if entry.path.endswith(w.removeprefix("./")) and w), "")
    moved = ("-w", "--workdir", "--pwd", "--cwd", "--container-workdir", "--cd", "docker", "podman")
    return given.startswith("/") or any(w.split("=")[0] in moved for w in entry.whole)


def make_missing_program_finding(entry: EntryPoint, desk: StaticContext) -> Finding:
    """The program does not exist."""
    return Finding(
        severity=desk.severity(entry),
        message=f"{entry.path}: no such file (started by {entry.kind})",
        file=desk.where(entry),
        line=entry.line,
        fix=f"correct the path{suggest_path(entry.path)}",
        category="incorrect_inputs",
    )


def _check_source(entry: EntryPoint, source: PythonSource, desk: StaticContext) -> Iterator[Finding]:
    python = find_python(entry, desk)
    asked = python.path if python else None
    if source.error is not None:
        yield from check_syntax(source, asked, desk, may_err=entry.certain)
        return
    if source.tree is None or desk.left() < _ENOUGH_S:
        return
    program = read_program(entry, source, desk)
    for reached in program.files[1:]:
        if desk.left() > _ENOUGH_S:
            yield from check_syntax(reached.source, asked, desk, may_err=reached.sure and entry.certain)
    yield from _check_imports_and_names(program, python, desk)


def _check_imports_and_names(program: ProgramImports, python: Python | None, desk: StaticContext) -> Iterator[Finding]:
    entry = program.entry
    if desk.left() > _ENOUGH_S:
        yield from find_local_faults(program)
    if desk.left() > _ENOUGH_S:
        yield from name_faults(program, lambda: desk.left() > _ENOUGH_S)
    if desk.left() > _ENOUGH_S:
        yield from find_attribute_faults(program, lambda: desk.left() > _ENOUGH_S)
    size = sum(len(one.source.content) for one in program.files)
    if desk.left() > _ENOUGH_S + size * _PARSER_S:
        parser = read_parser(program)
        if parser is not None:
            yield from find_misfitting_options(entry, parser, desk.where(entry))
        else:
            yield from check_other_libraries(program, desk.where(entry))
    if desk.left() > _ENOUGH_S and (entry.code is None or entry.certain):  # `python -c "import x" || pip install x`
        yield from find_missing_packages(program, python, desk)


def _check_module(entry: EntryPoint, desk: StaticContext) -> Iterator[Finding]:
    """`python -m name` where no file of that name lies in the working directory."""
    roots, _ = list_search_roots(entry)
    found = find_module(entry.module, roots, "")
    if found.kind in ("module", "package"):
        path = found.path if found.kind == "module" else str(Path(found.path).with_name("__main__.py"))
        if Path(path).is_file():
            yield from _check_source(replace(entry, path=path), desk.source(path), desk)
        return
    where = desk.where(entry)
    if found.kind == "missing":
        yield Finding(
            severity=desk.severity(entry, entry.cwd),
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
    yield from find_missing_packages(bare, find_python(entry, desk), desk, wanted)
