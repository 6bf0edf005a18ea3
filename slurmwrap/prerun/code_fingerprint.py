"""The code that a script runs, as far as it lies next to it: what a passed pre-run is remembered by.

From the programs that the batch script starts, through the shell scripts among them and the local modules that they
import, transitively: looked for in the program's directory, the job's directory and PYTHONPATH. Installed packages
are in for themselves by the environment's own marks (`installed_marks`). Everything is bounded: beyond a bound the
rest is left out, and a change there is not seen.
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

# What an argument may name next to code.
SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf")
MAX_FILES, MAX_BYTES, MAX_S = 500, 16 << 20, 0.3
_FILE_BYTES = 2 << 20
_SHELL_DEPTH = 3
_IMPORT = (
    rb"(?m)^[ \t]*(?:from[ \t]+(?P<where>\.*[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]{0,20000}\)|[^\n#;]+)"
    rb"|import[ \t]+(?P<modules>[^\n#;]+))"
)
_NAME = rb"[A-Za-z_][\w.]*"
# hydra's config_path, as its own examples call it
_HYDRA = ("conf", "config", "configs")


def code_files(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], inputs: Iterable[str] = ()
) -> dict[str, bytes]:
    """path → content: the entry programs first, in the script's order; b"" for one that cannot be read.

    `environ`: as of `list_entry_points`, with PYTHONPATH. `inputs`: files that the job names; small settings count.
    """
    budget = _Budget()
    entries = list(_entries(script, chdir, args, environ, 0))
    found = {entry.path: budget.read(entry.path) or b"" for entry in entries if entry.path}
    roots = [root for root in environ.get("PYTHONPATH", "").split(":") if root]
    beside = [os.path.dirname(entry.path) for entry in entries if entry.path]
    places = list(dict.fromkeys([*beside, *(e.cwd for e in entries if e.cwd), chdir, *roots]))
    found |= _imported(found, places, budget)
    if any(b"hydra" in content for content in found.values()):
        found |= _hydra(beside, budget)
    for path in inputs:
        if path.endswith(SETTINGS) and path not in found and (content := budget.read(path)) is not None:
            found[path] = content
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCode:
    """A Python program with its local modules. `whole`: all of it was read."""

    code: bytes
    # top-level names of all modules that it imports
    imports: frozenset[str]
    # Those of them that were read.
    local: frozenset[str]
    whole: bool


def program_of(path: str, cwd: str, search: str, *, text: bytes | None = None, seconds: float = MAX_S) -> ProgramCode:
    """The program at `path`, or `text` itself, with all that it imports from its own folder, `cwd` and `search`
    (PYTHONPATH)."""
    budget = _Budget(seconds)
    content = budget.read(path) if text is None else text
    if content is None:
        return ProgramCode(code=b"", imports=frozenset(), local=frozenset(), whole=False)
    places = list(dict.fromkeys(place for place in (os.path.dirname(path), cwd, *search.split(":")) if place))
    files = {path: content, **_imported({path: content}, places, budget)}
    code = b"\n".join(files.values())
    imports = frozenset(_top_names(code))
    local = frozenset(name for name in imports if any(_has(budget.listing(place), name) for place in places))
    whole = budget.files > 0 and budget.bytes > 0 and time.monotonic() < budget.until
    return ProgramCode(code=code, imports=imports, local=local, whole=whole)


def _has(listing: frozenset[str], name: str) -> bool:
    return not {name, f"{name}.py"}.isdisjoint(listing)


def _top_names(code: bytes) -> set[str]:
    """Top-level names of the modules that `code` imports absolutely."""
    names = set()
    for match in re.finditer(_IMPORT, code):
        said = match["modules"].split(b",") if match["modules"] is not None else [match["where"]]
        names |= {_text(found[0]).split(".")[0] for part in said if (found := re.match(_NAME, part.strip()))}
    return names


def installed_marks(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What changes when a package is installed into the environment that is active: its site-packages' own times."""
    marks = []
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := environ.get(name):
            places = (f"{prefix}/lib/{name}/site-packages" for name in _pythons(f"{prefix}/lib"))
            marks += [f"{place} {os.stat(place).st_mtime_ns}" for place in places if os.path.isdir(place)]
    return tuple(marks)


def _pythons(lib: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(lib) if name.startswith("python3"))[:4]
    except OSError:
        return []


Listing = Callable[[str], frozenset[str]]


class _Budget:
    """How much may still be read."""

    def __init__(self, seconds: float = MAX_S) -> None:
        self.files, self.bytes, self.until = MAX_FILES, MAX_BYTES, time.monotonic() + seconds
        self._listed: dict[str, frozenset[str]] = {}

    def listing(self, directory: str) -> frozenset[str]:
        """The names in a directory: one question instead of two for each module of every import."""
        if directory not in self._listed:
            try:
                self._listed[directory] = frozenset(entry.name for entry in os.scandir(directory or "."))
            except OSError:
                self._listed[directory] = frozenset()
        return self._listed[directory]

    def read(self, path: str) -> bytes | None:
        """A regular file's content; None when there is none, or the budget is used up."""
        if self.files <= 0 or self.bytes <= 0 or time.monotonic() > self.until:
            return None
        try:
            # Before opening: a FIFO would hang.
            info = os.stat(path)
            if not stat.S_ISREG(info.st_mode) or info.st_size > _FILE_BYTES:
                return None
            with open(path, "rb") as file:
                content = file.read()
        except (OSError, ValueError):
            return None
        self.files, self.bytes = self.files - 1, self.bytes - len(content)
        return content


def _entries(
    script: str, chdir: str, args: Sequence[str], environ: Mapping[str, str], depth: int
) -> Iterator[EntryPoint]:
    """Entry points of the script, of `bash -c` in it, and of the shell scripts that it starts."""
    for entry in list_entry_points(script, chdir, args, environ, _not_here):
        yield entry
        if entry.kind == "shell" and depth < _SHELL_DEPTH and entry.path:
            content = _Budget().read(entry.path)
            if content is not None:
                text = content.decode("utf-8", "surrogateescape")
                yield from _entries(text, entry.cwd or chdir, entry.argv, environ, depth + 1)


def _not_here(path: str) -> str | None:
    """Scripts are followed above, within the budget; the walk itself follows only what is in the text."""
    del path
    return None


def _imported(known: Mapping[str, bytes], places: Sequence[str], budget: _Budget) -> dict[str, bytes]:
    """The local modules that `known` import, and those that these import."""
    found: dict[str, bytes] = {}
    tried: set[str] = set()
    todo = [(path, content) for path, content in known.items() if content]
    while todo:
        path, content = todo.pop()
        here = os.path.dirname(path)
        for base in _modules(content, here, places, budget.listing):
            if base in tried:
                continue
            tried.add(base)
            for file in (f"{base}.py", f"{base}/__init__.py"):
                if file not in found and file not in known and (text := budget.read(file)) is not None:
                    found[file] = text
                    todo.append((file, text))
    return found


def _modules(content: bytes, here: str, places: Sequence[str], listing: Listing) -> Iterator[str]:
    """Paths without ending where the modules may lie that `content` imports."""
    for match in re.finditer(_IMPORT, content):
        if match["modules"] is not None:
            for part in match["modules"].split(b","):
                if module := re.match(_NAME, part.strip()):
                    yield from _below(_text(module[0]), places, listing)
            continue
        where = _text(match["where"])
        dots = len(where) - len(where.lstrip("."))
        roots = [os.path.normpath(os.path.join(here, *[".."] * (dots - 1)))] if dots else places
        names = [_text(name) for name in re.findall(_NAME, match["names"])]
        package = where[dots:]
        yield from _below(package, roots, listing)
        for name in names:
            yield from _below(f"{package}.{name}" if package else name, roots, listing)


def _below(module: str, roots: Sequence[str], listing: Listing) -> Iterator[str]:
    """The module and the packages that hold it, below each root that has the first of them."""
    parts = [part for part in module.split(".") if part]
    for root in roots:
        if parts and not {parts[0], f"{parts[0]}.py"}.isdisjoint(listing(root)):
            for count in range(1, len(parts) + 1):
                yield "/".join((root, *parts[:count]))


def _hydra(places: Sequence[str], budget: _Budget) -> dict[str, bytes]:
    from pathlib import Path

    found = {}
    for place in dict.fromkeys(places):
        for name in _HYDRA:
            for path in sorted(Path(place, name).rglob("*.yaml"))[:200]:
                if (content := budget.read(str(path))) is not None:
                    found[str(path)] = content
    return found


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
