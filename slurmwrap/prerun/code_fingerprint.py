"""Read the local code that a script runs, for the fingerprint under which a passed pre-run is remembered. (adapter)

It starts from the programs that the batch script runs, and follows the shell scripts among them and the local modules
that they import, transitively. Modules are looked up in the program's directory, the job's directory and PYTHONPATH.
Installed packages are represented by the times of their environment (`list_installation_marks`). Files, bytes and time
are limited: beyond a limit the remaining files are left out, and a change in them is not seen.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.entry_points import list_entry_points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.static.started_program import EntryPoint

# Settings files, which an argument may name.
SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
MAX_FILES, MAX_BYTES, MAX_S = 500, 16 << 20, 0.3
_FILE_BYTES = 2 << 20
_SHELL_DEPTH = 3
_IMPORT = (
    rb"(?m)^[ \t]*(?:from[ \t]+(?P<where>\.*[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]{0,20000}\)|[^\n#;]+)"
    rb"|import[ \t]+(?P<modules>[^\n#;]+))"
)
_NAME = rb"[A-Za-z_][\w.]*"
# Values of hydra's config_path in its own examples.
_HYDRA = ("conf", "config", "configs")


def read_code_files(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], inputs: Iterable[str] = ()
) -> dict[str, bytes]:
    """Return path -> content: the entry programs first, in the script's order; b"" for one that cannot be read.

    `environ`: as in `list_entry_points`, with PYTHONPATH. `inputs`: files that the job names; small settings files
    among them are included.
    """
    budget = _Budget()
    entries = list(_list_entries(script, chdir, args, environ, 0))
    found = {entry.path: budget.read(entry.path) or b"" for entry in entries if entry.path}
    roots = [root for root in environ.get("PYTHONPATH", "").split(":") if root]
    program_folders = [os.path.dirname(entry.path) for entry in entries if entry.path]
    places = list(dict.fromkeys([*program_folders, *(e.cwd for e in entries if e.cwd), chdir, *roots]))
    found |= _read_imports(found, places, budget)
    if any(b"hydra" in content for content in found.values()):
        found |= _read_hydra_settings(program_folders, budget)
    for path in inputs:
        if path.endswith(SETTINGS) and path not in found and (content := budget.read(path)) is not None:
            found[path] = content
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCode:
    """A Python program with its local modules. `whole`: all of it was read within the limits."""

    code: bytes
    # Top-level names of all modules that it imports.
    imports: frozenset[str]
    # Those of them that are local.
    local: frozenset[str]
    whole: bool


def read_program_code(
    path: str, cwd: str, search: str, *, text: bytes | None = None, seconds: float = MAX_S
) -> ProgramCode:
    """Return the program at `path`, or with the code `text`, and its imports from its directory, `cwd` and `search`.

    `search` is the PYTHONPATH. `seconds` limits the time for reading.
    """
    budget = _Budget(seconds)
    content = budget.read(path) if text is None else text
    if content is None:
        return ProgramCode(code=b"", imports=frozenset(), local=frozenset(), whole=False)
    places = list(dict.fromkeys(place for place in (os.path.dirname(path), cwd, *search.split(":")) if place))
    files = {path: content, **_read_imports({path: content}, places, budget)}
    code = b"\n".join(files.values())
    imports = frozenset(_find_imported_names(code))
    local = frozenset(name for name in imports if any(_has_module(budget.listing(place), name) for place in places))
    whole = budget.files > 0 and budget.bytes > 0 and time.monotonic() < budget.until
    return ProgramCode(code=code, imports=imports, local=local, whole=whole)


def _has_module(listing: frozenset[str], name: str) -> bool:
    return not {name, f"{name}.py"}.isdisjoint(listing)


def _find_imported_names(code: bytes) -> set[str]:
    """Return the top-level names of the modules that `code` imports absolutely."""
    names = set()
    for match in re.finditer(_IMPORT, code):
        parts = match["modules"].split(b",") if match["modules"] is not None else [match["where"]]
        names |= {_decode(found[0]).split(".")[0] for part in parts if (found := re.match(_NAME, part.strip()))}
    return names


def list_installation_marks(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return marks that change when a package is installed into the active environment.

    They are the modification times of its site-packages.
    """
    marks = []
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := environ.get(name):
            places = (f"{prefix}/lib/{name}/site-packages" for name in _list_python_folders(f"{prefix}/lib"))
            marks += [f"{place} {os.stat(place).st_mtime_ns}" for place in places if os.path.isdir(place)]
    return tuple(marks)


def _list_python_folders(lib: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(lib) if name.startswith("python3"))[:4]
    except OSError:
        return []


Listing = Callable[[str], frozenset[str]]


class _Budget:
    """The files, bytes and time that may still be used."""

    def __init__(self, seconds: float = MAX_S) -> None:
        self.files, self.bytes, self.until = MAX_FILES, MAX_BYTES, time.monotonic() + seconds
        self._listed: dict[str, frozenset[str]] = {}

    def listing(self, directory: str) -> frozenset[str]:
        """Return the names in a directory. It is read once, instead of two lookups for each module of every import."""
        if directory not in self._listed:
            try:
                self._listed[directory] = frozenset(entry.name for entry in os.scandir(directory or "."))
            except OSError:
                self._listed[directory] = frozenset()
        return self._listed[directory]

    def read(self, path: str) -> bytes | None:
        """Return a regular file's content; None if there is none or a limit is reached."""
        if self.files <= 0 or self.bytes <= 0 or time.monotonic() > self.until:
            return None
        try:
            # The file type is checked before opening, because opening a FIFO would block.
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode) or info.st_size > _FILE_BYTES:
                return None
            with open(path, "rb") as file:
                content = file.read()
        except (OSError, ValueError):
            return None
        self.files, self.bytes = self.files - 1, self.bytes - len(content)
        return content


def _list_entries(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], depth: int
) -> Iterator[EntryPoint]:
    """Yield the entry points of the script, of `bash -c` in it, and of the shell scripts that it starts."""
    for entry in list_entry_points(script, chdir, args, environ, _read_nothing):
        yield entry
        if entry.kind == "shell" and depth < _SHELL_DEPTH and entry.path:
            content = _Budget().read(entry.path)
            if content is not None:
                text = content.decode("utf-8", "surrogateescape")
                yield from _list_entries(text, entry.cwd or chdir, entry.argv, environ, depth + 1)


def _read_nothing(path: str) -> str | None:
    """Read nothing: `_list_entries` follows scripts itself, within the limits."""
    del path
    return None


def _read_imports(known: Mapping[str, bytes], places: Sequence[str], budget: _Budget) -> dict[str, bytes]:
    """Return the local modules that the `known` files import, and those that these import in turn."""
    found: dict[str, bytes] = {}
    tried: set[str] = set()
    todo = [(path, content) for path, content in known.items() if content]
    while todo:
        path, content = todo.pop()
        own_folder = os.path.dirname(path)
        for base in _list_module_paths(content, own_folder, places, budget.listing):
            if base in tried:
                continue
            tried.add(base)
            for file in (f"{base}.py", f"{base}/__init__.py"):
                if file not in found and file not in known and (text := budget.read(file)) is not None:
                    found[file] = text
                    todo.append((file, text))
    return found


def _list_module_paths(content: bytes, own_folder: str, places: Sequence[str], listing: Listing) -> Iterator[str]:
    """Yield the possible paths, without suffix, of the modules that `content` imports."""
    for match in re.finditer(_IMPORT, content):
        if match["modules"] is not None:
            for part in match["modules"].split(b","):
                if module := re.match(_NAME, part.strip()):
                    yield from _list_paths_below(_decode(module[0]), places, listing)
            continue
        where = _decode(match["where"])
        dots = len(where) - len(where.lstrip("."))
        roots = [os.path.normpath(os.path.join(own_folder, *[".."] * (dots - 1)))] if dots else places
        names = [_decode(name) for name in re.findall(_NAME, match["names"])]
        package = where[dots:]
        yield from _list_paths_below(package, roots, listing)
        for name in names:
            yield from _list_paths_below(f"{package}.{name}" if package else name, roots, listing)


def _list_paths_below(module: str, roots: Sequence[str], listing: Listing) -> Iterator[str]:
    """Yield the paths of the module and its parent packages, below each root that has the first of them."""
    parts = [part for part in module.split(".") if part]
    for root in roots:
        if parts and not {parts[0], f"{parts[0]}.py"}.isdisjoint(listing(root)):
            for count in range(1, len(parts) + 1):
                yield "/".join((root, *parts[:count]))


def _read_hydra_settings(places: Sequence[str], budget: _Budget) -> dict[str, bytes]:
    from pathlib import Path

    found = {}
    for place in dict.fromkeys(places):
        for name in _HYDRA:
            for path in sorted(Path(place, name).rglob("*.yaml"))[:200]:
                if (content := budget.read(str(path))) is not None:
                    found[str(path)] = content
    return found


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "replace")
