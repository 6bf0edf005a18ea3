"""Find the user's files that a program imports: follow import statements from the entry point without running any.

A module is local if its file is in a directory that Python searches before the installed packages: the program's own
directory and those in PYTHONPATH.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.prerun.static.python_source import PythonSource
from slurmwrap.prerun.static.shell_words import UNKNOWN
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

# Files of one program that are followed at most, and the bytes of all of them together.
_MAX_FILES = 150
_MAX_BYTES = 2 << 20
# Seconds that are left for the checks of the files that were read.
_CHECKS_S = 0.9
_GUARDS = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
# Modules that are loaded before the program starts: a file of this name next to the program changes nothing.
_LOADED_EARLY = frozenset(sys.builtin_module_names) | split_word_table(
    """abc codecs encodings genericpath io os posixpath site stat zipimport importlib _collections_abc"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement. `sure`: it runs whenever its module is imported."""

    # With leading dots if it is relative.
    module: str
    # The names of `from module import names`; empty for `import module`.
    names: tuple[str, ...]
    line: int
    sure: bool
    # An ImportError of this statement is caught, or it is for type checkers only.
    guarded: bool = False
    # It is at module level.
    top: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedImport:
    """What a dotted name refers to. kind: "module" | "package" | "namespace" | "opaque" | "missing" | "elsewhere".

    "elsewhere": there is no local top-level module of this name, so it must be installed. "opaque": compiled, or
    otherwise not readable.
    """

    kind: str
    # The .py file, or the directory of a namespace package.
    path: str = ""
    # For "missing": the part of the name that does not exist.
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """One file of the program. `sure`: it is imported whenever the program runs."""

    source: PythonSource
    # The directory of its package, for relative imports; "" for a program that is not run as a module.
    folder: str
    sure: bool
    imports: tuple[Import, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramImports:
    """An entry point and the local files that it imports."""

    entry: EntryPoint
    # The file of the entry point comes first.
    files: tuple[ProgramFile, ...]
    roots: tuple[str, ...]
    # All directories that are searched before the installed packages are known.
    roots_known: bool
    # Every file was followed; False if the time or a limit ended the search.
    whole: bool = True
    # sys.path, sys.modules or similar are changed, so a module that seems to be missing may still be found.
    tricks: bool = False
    found: dict[str, ResolvedImport] = field(default_factory=dict)

    def find(self, name: str, folder: str) -> ResolvedImport:
        """Return what the module `name` refers to; `folder` is the package directory for relative names."""
        key = f"{folder}|{name}" if name.startswith(".") else name
        if key not in self.found:
            self.found[key] = find_module(name, self.roots, folder)
        return self.found[key]


_TRICKS = (b"sys.path", b"sys.modules", b"sys.meta_path", b"addsitedir", b"pyximport", b"__path__", b"pip install")
_MORE_TRICKS = (
    b'"pip"',
    b"'pip'",
    b"path_hooks",
    b"__package__",
    b"pyrootutils",
    b"rootutils",
    b"chdir",
    b"install_import_hook",
)


def read_program(entry: EntryPoint, source: PythonSource, context: StaticContext) -> ProgramImports:
    """Follow the imports of `source`, breadth first, within the limits of files, bytes and the context's time."""
    key = (entry.path, entry.cwd, entry.modules, entry.kind, entry.module)
    if source.path and (kept := context.programs.get(key)) is not None:
        program: ProgramImports = replace(kept, entry=entry)
        return program
    roots, known = list_search_roots(entry)
    is_module = bool(entry.path) and roots[:1] == (entry.cwd,) and Path(entry.path).parent != Path(entry.cwd)
    folder = str(Path(entry.path).parent) if is_module else ""
    start = ProgramFile(source=source, folder=folder, sure=True, imports=list_imports(source, is_program=True))
    program = ProgramImports(entry=entry, files=(start,), roots=roots, roots_known=known)
    files, at, whole = {source.path: start}, 0, True
    # `files` grows during the loop. An optional file that turns out to be certain to run is replaced in its position;
    # its own imports are not followed a second time.
    while at < len(files) and whole:
        reached = list(files.values())[at]
        at += 1
        for path, opened, sure in _list_reached_files(reached, program):
            if path in files and (files[path].sure or not sure):
                continue
            whole = len(files) < _MAX_FILES and context.left() > _CHECKS_S and _count_bytes(files) < _MAX_BYTES
            if not whole:
                break
            fresh = context.source(path)
            files[path] = ProgramFile(source=fresh, folder=opened, sure=sure, imports=list_imports(fresh))
    tricks = any(f.source.mentions(*_TRICKS, *_MORE_TRICKS) for f in files.values())
    read = ProgramImports(
        entry=entry,
        files=tuple(files.values()),
        roots=roots,
        roots_known=known,
        whole=whole,
        tricks=tricks,
        found=program.found,
    )
    if entry.code is None:
        context.programs[key] = read
    return read


def _list_reached_files(reached: ProgramFile, program: ProgramImports) -> Iterator[tuple[str, str, bool]]:
    """Yield (file, its package directory, whether it is certain to run) for all files that one file imports."""
    for one in reached.imports:
        for path, opened in _list_import_targets(one, reached, program):
            yield path, opened, reached.sure and one.sure


def _count_bytes(files: Mapping[str, ProgramFile]) -> int:
    """Return the bytes of all files together."""
    return sum(len(one.source.content) for one in files.values())


def list_search_roots(entry: EntryPoint) -> tuple[tuple[str, ...], bool]:
    """Return the directories on sys.path before the installation's own, and whether all of them are known."""
    by_file = bool(entry.path) and entry.code is None and not _is_run_as_module(entry)
    first = os.path.dirname(os.path.realpath(entry.path)) if by_file else entry.cwd  # noqa: PTH120
    known = bool(first) and UNKNOWN not in entry.modules
    parts = [p for p in entry.modules.split(":") if UNKNOWN not in p] if entry.modules else []
    joined = [os.path.normpath(os.path.join(entry.cwd, p)) for p in parts if p.startswith("/") or entry.cwd]  # noqa: PTH118
    known = known and not any(_is_adding_paths(folder) for folder in joined)
    return tuple(dict.fromkeys(p for p in (first, *joined) if p)), known


def _is_adding_paths(folder: str) -> bool:
    """Return whether the folder has a sitecustomize or usercustomize, which may change sys.path in unknown ways.

    Python runs these modules from PYTHONPATH when it starts (site).
    """
    return any(
        Path(folder, name).is_dir() or Path(folder, f"{name}.py").exists()
        for name in ("sitecustomize", "usercustomize")
    )


def _is_run_as_module(entry: EntryPoint) -> bool:
    if entry.kind == "module" or entry.module:
        return True
    return entry.kind in ("torchrun", "accelerate", "deepspeed") and bool(
        {"-m", "--module"} & set(_list_launcher_options(entry))
    )


def _list_launcher_options(entry: EntryPoint) -> Sequence[str]:
    """Return the launcher's own words, which come before those of the program."""
    count = len(entry.whole) - len(entry.argv)
    launch = next((i for i, w in enumerate(entry.whole) if os.path.basename(w) in _LAUNCHERS), 0)  # noqa: PTH119
    return entry.whole[launch:count]


_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch")


def _list_import_targets(one: Import, reached: ProgramFile, program: ProgramImports) -> Iterator[tuple[str, str]]:
    """Yield (file, its package directory) of each local file that this statement runs."""
    parts = one.module.lstrip(".").split(".")
    dots = one.module[: len(one.module) - len(one.module.lstrip("."))]
    names = [dots + ".".join(parts[: i + 1]) for i in range(len(parts))] if parts != [""] else [dots]
    names += [f"{one.module}{'' if one.module.endswith('.') else '.'}{name}" for name in one.names if name != "*"]
    for name in names:
        found = program.find(name, reached.folder)
        if found.kind in ("module", "package"):
            yield found.path, os.path.dirname(found.path)  # noqa: PTH120


def find_module(name: str, roots: Sequence[str], folder: str) -> ResolvedImport:
    """Return what the dotted `name` refers to; relative names start from `folder`."""
    dots = len(name) - len(name.lstrip("."))
    parts = [p for p in name[dots:].split(".") if p]
    if dots:
        base = Path(folder).joinpath(*[".."] * (dots - 1))
        return _resolve_below(str(Path(os.path.normpath(base))), parts) if folder else ResolvedImport(kind="opaque")
    if not parts or parts[0] in _LOADED_EARLY or parts[0] == "slurmwrap_step":
        return ResolvedImport(kind="elsewhere")
    spaces = []
    for root in roots:
        top = _resolve_in_directory(root, parts[0])
        if top.kind == "namespace":
            spaces.append(top)
        elif top.kind != "missing":
            return _resolve_deeper(top, parts[1:])
    if not spaces or parts[0] in sys.stdlib_module_names:
        return ResolvedImport(kind="elsewhere")
    # An installed package of this name takes precedence over directories without __init__.py.
    found = next((f for f in (_resolve_deeper(s, parts[1:]) for s in spaces) if f.kind != "missing"), None)
    return found or ResolvedImport(kind="elsewhere")


def _resolve_below(base: str, parts: Sequence[str]) -> ResolvedImport:
    if not parts:
        init = f"{base}/__init__.py"
        return (
            ResolvedImport(kind="package", path=init)
            if Path(init).is_file()
            else ResolvedImport(kind="namespace", path=base)
        )
    return _resolve_deeper(_resolve_in_directory(base, parts[0]), parts[1:])


def _resolve_deeper(found: ResolvedImport, parts: Sequence[str]) -> ResolvedImport:
    for part in parts:
        if found.kind == "package":
            found = _resolve_in_directory(os.path.dirname(found.path), part)  # noqa: PTH120
        elif found.kind == "namespace":
            found = _resolve_in_directory(found.path, part)
        elif found.kind == "module":
            return ResolvedImport(kind="missing", name=part)
        else:
            return found
    return found


# Suffixes of compiled modules, and of sources that are compiled before or while the program runs.
_COMPILED = (".so", ".pyd", ".pyc", ".pyx", ".c", ".cc", ".cpp", ".cu")


def _resolve_in_directory(folder: str, name: str) -> ResolvedImport:
    """Look `name` up in the order of importlib's FileFinder: package, compiled module, source, bare directory."""
    base = f"{folder}/{name}"
    is_directory = Path(base).is_dir()
    if is_directory and Path(f"{base}/__init__.py").is_file():
        return ResolvedImport(kind="package", path=f"{base}/__init__.py")
    if is_directory and list(Path(base).glob("__init__.*")):
        return ResolvedImport(kind="opaque")
    if Path(f"{base}.py").is_file():
        compiled = any(Path(folder).glob(f"{name}*.so"))
        return ResolvedImport(kind="opaque") if compiled else ResolvedImport(kind="module", path=f"{base}.py")
    if is_directory:
        return ResolvedImport(kind="namespace", path=base)
    if any(e.suffix in _COMPILED for e in Path(folder).glob(f"{name}.*")):
        return ResolvedImport(kind="opaque")
    return ResolvedImport(kind="missing", name=name)


def list_imports(source: PythonSource, *, is_program: bool = False) -> tuple[Import, ...]:
    """Return all import statements of a source in order. `is_program`: it runs as `__main__`."""
    if source.tree is None:
        return ()
    return tuple(_list_import_statements(source.tree.body, source.line, sure=True, is_program=is_program))


def _list_import_statements(
    body: Sequence[ast.stmt], base: int, *, is_program: bool, sure: bool, guarded: bool = False, top: bool = True
) -> Iterator[Import]:
    """Yield the import statements of a block and the blocks in it, with the conditions under which they run."""
    read = partial(_list_import_statements, base=base, is_program=is_program)
    for node in body:
        line = base + node.lineno
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module=alias.name, names=(), line=line, sure=sure, guarded=guarded, top=top)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            module = "." * node.level + (node.module or "")
            yield Import(module=module, names=names, line=line, sure=sure, guarded=guarded, top=top)
        elif isinstance(node, ast.If):
            main = is_program and is_main_test(node.test)
            yield from read(node.body, sure=sure and main, guarded=guarded or not main, top=top)
            yield from read(node.orelse, sure=False, guarded=True, top=top)
        elif isinstance(node, ast.Try):
            caught = guarded or any(_is_catching(h) for h in node.handlers)
            yield from read(node.body, sure=sure and not caught, guarded=caught, top=top)
            for part in (*(h.body for h in node.handlers), node.orelse):
                yield from read(part, sure=False, guarded=True, top=top)
            yield from read(node.finalbody, sure=sure, guarded=guarded, top=top)
        else:
            for part in _list_blocks(node):
                inner = top and isinstance(node, (ast.With, ast.ClassDef))
                yield from read(part, sure=False, guarded=guarded or isinstance(node, ast.With), top=inner)
        if sure and is_block_end(node):
            return


def _list_blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        part = getattr(node, name, None)
        if isinstance(part, list) and part and isinstance(part[0], ast.stmt):
            yield part
    for case in getattr(node, "cases", ()):
        yield case.body


def is_main_test(test: ast.expr) -> bool:
    """Return whether the test is `__name__ == "__main__"`."""
    return isinstance(test, ast.Compare) and ast.unparse(test).replace('"', "'") in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def _is_catching(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(name in ast.unparse(handler.type) for name in _GUARDS)


def is_block_end(node: ast.stmt) -> bool:
    """Return whether no statement after this one runs in the same block."""
    if isinstance(node, (ast.Raise, ast.Return)):
        return True
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return call is not None and ast.unparse(call.func) in (
        "sys.exit",
        "exit",
        "quit",
        "os._exit",
        "os.execv",
        "os.execvp",
    )
