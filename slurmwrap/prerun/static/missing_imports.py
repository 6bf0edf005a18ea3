"""Check whether a program's imports will succeed: compare them with the user's files and the installed packages.

A finding is an ERROR only for a statement that is certain to run, in a module whose search path is fully known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest, is_typo
from slurmwrap.prerun.static.imported_files import Import, ProgramFile, ProgramImports
from slurmwrap.prerun.static.python_interpreter import Python, find_missing_modules
from slurmwrap.prerun.static.python_source import list_bound_names
from slurmwrap.prerun.static.static_context import StaticContext
from slurmwrap.prerun.static.word_tables import split_word_table

# Import name -> the name of the package for pip, if the two differ.
DISTRIBUTIONS = {
    "PIL": "Pillow",
    "cv2": "opencv-python-headless",
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "bs4": "beautifulsoup4",
    "attr": "attrs",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "pytorch_lightning": "pytorch-lightning",
    "lightning": "lightning",
    "pl_bolts": "lightning-bolts",
    "flash_attn": "flash-attn",
    "apex": "apex (from its repository; not the package of that name on PyPI)",
    "MinkowskiEngine": "MinkowskiEngine (built from source)",
    "torch_geometric": "torch-geometric",
    "torch_scatter": "torch-scatter",
    "pycocotools": "pycocotools",
    "fire": "fire",
    "absl": "absl-py",
    "tensorboardX": "tensorboardX",
    "wandb": "wandb",
    "faiss": "faiss-cpu",
    "Bio": "biopython",
    "Levenshtein": "python-Levenshtein",
    "jose": "python-jose",
    "mpi4py": "mpi4py",
    "serial": "pyserial",
    "usb": "pyusb",
    "zmq": "pyzmq",
    "OpenSSL": "pyOpenSSL",
    "Crypto": "pycryptodome",
    "docx": "python-docx",
    "fitz": "PyMuPDF",
    "magic": "python-magic",
    "slugify": "python-slugify",
    "ruamel": "ruamel.yaml",
    "pkg_resources": "setuptools",
    "distutils": "setuptools (distutils left Python in 3.12)",
    "imp": "nothing: imp left Python in 3.12, use importlib",
}
# Modules that are in the standard library of some Python versions only.
_VERSION_DEPENDENT = split_word_table(
    """distutils imp asyncore asynchat smtpd tomllib zoneinfo graphlib cgi cgitb pipes telnetlib nntplib crypt imghdr
    sndhdr audioop chunk aifc sunau uu xdrlib msilib nis ossaudiodev spwd mailcap lib2to3 parser symbol formatter
    binhex macpath dataclasses contextvars compression annotationlib"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPackage:
    """An installed package that a program needs."""

    # The top-level name.
    name: str
    file: str
    line: int
    sure: bool


def find_local_faults(program: ProgramImports) -> Iterator[Finding]:
    """Yield findings for modules and names that the user's files lack, and for relative imports in a program."""
    for reached in program.files:
        for one in reached.imports:
            if not one.guarded:
                yield from _check_local_import(one, reached, program)


def _check_local_import(one: Import, reached: ProgramFile, program: ProgramImports) -> Iterator[Finding]:
    sure = one.sure and reached.sure
    if one.module.startswith(".") and not reached.folder:
        if program.files[0] is reached and not program.entry.module and one.top and not program.tricks:
            yield _make_finding(
                one,
                reached,
                "attempted relative import with no known parent package",
                "start it with `python -m package.module` from the directory above, or import by the full name",
                program.entry.kind != "module" and sure and program.entry.certain,
            )
        return
    found = program.find(one.module, reached.folder)
    if found.kind == "missing":
        if program.tricks or _is_changed_at_run_time(one.module, reached, program):
            return
        yield _make_finding(
            one,
            reached,
            f"No module named {one.module.lstrip('.')!r}",
            _suggest_near_module(one, reached, program),
            sure and program.entry.certain and program.roots_known,
        )
    elif found.kind in ("module", "package"):
        yield from _check_imported_names(one, reached, program, found.path, sure)


def _check_imported_names(
    one: Import, reached: ProgramFile, program: ProgramImports, path: str, sure: bool
) -> Iterator[Finding]:
    source = next((f.source for f in program.files if f.source.path == path), None)
    if source is None or source.tree is None:
        return
    names = list_bound_names(source.tree)
    if names is None:
        return
    for name in one.names:
        dotted = f"{one.module}{'' if one.module.endswith('.') else '.'}{name}"
        if name == "*" or name in names or program.find(dotted, reached.folder).kind != "missing":
            continue
        if path.endswith("__init__.py") and list(Path(path).parent.glob(f"{name}*")):
            continue
        near = find_nearest(name, names)
        yield _make_finding(
            one,
            reached,
            f"cannot import name {name!r}: {path} does not define it",
            f"did you mean {near}?" if near else f"define {name} in {path}, or import it from where it is",
            sure and program.entry.certain and not program.tricks and program.roots_known,
        )


def _suggest_near_module(one: Import, reached: ProgramFile, program: ProgramImports) -> str:
    own_folders = [reached.folder] if one.module.startswith(".") and reached.folder else []
    return suggest_module(one.module, program.roots, own_folders)


def suggest_module(module: str, roots: Sequence[str], own_folders: Sequence[str] = ()) -> str:
    """Return a fix for a dotted name that does not exist below `roots`."""
    *parents, last = module.split(".")
    folders = [Path(root, *parents) for root in roots] if parents and parents[0] else []
    folders += [Path(folder) for folder in own_folders]
    near = find_nearest(last, {p.name.split(".")[0] for folder in folders if folder.is_dir() for p in folder.iterdir()})
    return f"did you mean {'.'.join([*parents, near])}?" if near else "correct the name, or add the file"


def _is_changed_at_run_time(module: str, reached: ProgramFile, program: ProgramImports) -> bool:
    """Return whether a package in the dotted name changes itself at run time (`__getattr__`, lazy loading)."""
    parts = module.split(".")
    inits = (program.find(".".join(parts[: i + 1]), reached.folder) for i in range(len(parts)) if parts[0])
    paths = {found.path for found in inits if found.kind == "package"}
    return any(f.source.mentions(b"__getattr__", b"lazy") for f in program.files if f.source.path in paths)


def _make_finding(one: Import, reached: ProgramFile, message: str, fix: str, certain: bool) -> Finding:
    return Finding(
        severity=Severity.ERROR if certain else Severity.WARNING,
        message=message,
        file=reached.source.path,
        line=one.line,
        fix=fix,
        category="import_error",
    )


def list_needed_packages(program: ProgramImports) -> tuple[NeededPackage, ...]:
    """Return the installed packages that the program imports at module level, however its files are reached."""
    import sys

    found: dict[str, NeededPackage] = {}
    for reached in program.files:
        for one in reached.imports:
            name = one.module.split(".")[0]
            if one.guarded or not one.top or not name or name == "slurmwrap_step":
                continue
            if name in sys.stdlib_module_names and name not in _VERSION_DEPENDENT:
                continue
            if program.find(name, reached.folder).kind not in ("elsewhere", "namespace"):
                continue
            sure = reached.sure and one.sure
            if name not in found or (sure and not found[name].sure):
                found[name] = NeededPackage(name=name, file=reached.source.path, line=one.line, sure=sure)
    return tuple(found.values())


def find_missing_packages(
    program: ProgramImports, python: Python | None, context: StaticContext, modules: Sequence[NeededPackage] = ()
) -> Iterator[Finding]:
    """Yield findings for packages that the program's own interpreter does not find. `modules`: those of `python -m`."""
    entry = program.entry
    if python is None or program.tricks or not program.roots_known or entry.installs:
        return
    wanted = [*modules, *list_needed_packages(program)]
    answer = find_missing_modules([w.name for w in wanted], program.roots, python.path, context)
    if answer is None:
        return
    missing = [w for w in wanted if w.name in answer.missing]
    foreign = [w for w in wanted if w.name not in _VERSION_DEPENDENT]
    none_there = len(missing) >= len(foreign)
    if not python.certain and none_there:
        # This interpreter has none of the packages, so the node probably uses another one.
        return
    certain = python.certain and entry.certain and (python.chosen or not none_there)
    for one in missing:
        yield Finding(
            severity=Severity.ERROR if certain and one.sure else Severity.WARNING,
            message=f"No module named {one.name!r} in {python.path}",
            file=one.file,
            line=one.line,
            fix=_format_advice(one.name, answer.near.get(one.name, ""), python.path),
            category="import_error",
        )


def _format_advice(name: str, near: str, python: str) -> str:
    if is_typo(name, near):
        return f"did you mean {near}?"
    what = DISTRIBUTIONS.get(name, name)
    return f"{python} -m pip install {what}, or activate the environment that has it"
