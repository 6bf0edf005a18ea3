"""Find the Python interpreter that will run a program, and ask it which modules it can import.

The interpreter runs a fixed program that looks up top-level names with importlib.util.find_spec. Nothing is imported
for that, so neither torch nor the user's code runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.prerun.static.search_path import CONDA
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext

# A node has its own system Python, perhaps with other packages than the login node's Python.
_SYSTEM = ("/usr/", "/bin/", "/sbin/", "/opt/")
_QUESTION = r"""
import sys, json
roots, names = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.path[:1] = roots
from importlib.util import find_spec
missing, near = [], {}
for name in names:
    try:
        if find_spec(name) is None:
            missing.append(name)
    except Exception:
        pass
if missing:
    import os, difflib
    known = set()
    for place in sys.path:
        try:
            known.update(entry.split(".")[0] for entry in os.listdir(place or "."))
        except OSError:
            pass
    for name in missing:
        near[name] = difflib.get_close_matches(name, known, 1, 0.75)
print(json.dumps({"missing": missing, "near": near, "version": list(sys.version_info[:2])}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An interpreter. `certain`: the nodes run this same interpreter with the same packages."""

    path: str
    certain: bool
    # Chosen by the script, or by an environment that was active when gsub was called; not just the first on PATH.
    chosen: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The answer of an interpreter about some module names."""

    missing: tuple[str, ...]
    # Missing name -> an installed name that is similar.
    near: Mapping[str, str]
    version: tuple[int, int]


def find_python(entry: EntryPoint, context: StaticContext) -> Python | None:
    """Return the interpreter of `entry`; None if it cannot be known on this machine."""
    if entry.contained:
        return None
    named = entry.interpreter or _find_launcher(entry)
    if UNKNOWN in named:
        return None
    if "/" in named:
        base = entry.cwd if not named.startswith("/") else "/"
        found = os.path.normpath(os.path.join(base, named)) if base else ""  # noqa: PTH118
    else:
        found = _find_on_path(named, entry.search, context.environ) or ""
    if found and not entry.interpreter:
        found = _read_shebang(found)
    if not found or not os.access(found, os.X_OK) or Path(found).is_dir():
        return None
    shared = not found.startswith((*_SYSTEM, *context.node_local)) and not _is_script(found)
    return Python(
        path=found,
        certain=shared and not isinstance(named, Guess),
        chosen="/" in named or _is_chosen(found, entry.search, context.environ),
    )


def _is_chosen(found: str, search: str, environ: Mapping[str, str]) -> bool:
    folder = os.path.dirname(found)  # noqa: PTH120
    active = {f"{environ[name]}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name)}
    return folder in active or search != environ.get("PATH", "")


def _is_script(path: str) -> bool:
    """Return whether the file is a script, such as a pyenv shim: then more than PATH decides which Python it starts."""
    try:
        with Path(path).open("rb") as stream:
            return stream.read(2) == b"#!"
    except OSError:
        return True


def _find_launcher(entry: EntryPoint) -> str:
    """Return the program that chooses the Python: torchrun, accelerate, or the script itself by its first line."""
    if entry.kind in ("torchrun", "accelerate", "deepspeed"):
        return next((w for w in entry.whole if os.path.basename(w) in _LAUNCHERS), entry.kind)  # noqa: PTH119
    return entry.path or UNKNOWN


_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds")


def _read_shebang(path: str) -> str:
    """Return the Python in the first line of `path`; "" if that uses env to search for it."""
    try:
        with Path(path).open("rb") as stream:
            first = stream.readline(256).decode("utf-8", "replace")
    except OSError:
        return ""
    found = re.match(r"#!\s*(/\S*python[\d.]*)\s*$", first)
    return found[1] if found else ""


def _find_on_path(name: str, search: str, environ: Mapping[str, str]) -> str | None:
    for folder in search.split(":"):
        if folder.startswith(CONDA):
            prefix = find_conda_prefix(folder.removeprefix(CONDA), environ)
            if prefix is None:
                return None
            folder = f"{prefix}/bin"
        if UNKNOWN in folder:
            return None
        if folder.startswith("/") and os.access(found := f"{folder}/{name}", os.X_OK) and not Path(found).is_dir():
            return found
    return None


def find_conda_prefix(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the directory of the conda environment `name`; None if no place or more than one place has it."""
    if "/" in name:
        return name if name.startswith("/") and Path(name).is_dir() else None
    home = environ.get("HOME", "")
    roots = [environ.get("MAMBA_ROOT_PREFIX", ""), environ.get("CONDA_ROOT", "")]
    roots += [
        str(Path(exe).parent.parent) for exe in (environ.get("CONDA_EXE", ""), environ.get("MAMBA_EXE", "")) if exe
    ]
    roots += [f"{home}/{folder}" for folder in _CONDA_HOMES] if home else []
    env_folders = [*environ.get("CONDA_ENVS_PATH", "").split(":"), *(f"{root}/envs" for root in roots if root)]
    tried = [f"{place}/{name}" for place in env_folders if place]
    tried += [root for root in roots if root and name == "base"]
    tried += [line for line in _read_listed_environments(home) if os.path.basename(line) == name]  # noqa: PTH119
    found = {str(Path(p).resolve()) for p in tried if Path(p, "conda-meta").is_dir()}
    return found.pop() if len(found) == 1 else None


_CONDA_HOMES = (".conda", "miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", "miniconda", "anaconda")


def _read_listed_environments(home: str) -> list[str]:
    try:
        return Path(home, ".conda/environments.txt").read_text(encoding="utf-8", errors="replace").split("\n")[:200]
    except OSError:
        return []


def find_missing_modules(
    names: Sequence[str], roots: Sequence[str], python: str, context: StaticContext
) -> Lookup | None:
    """Find which of `names` (without dots) `python` cannot import with `roots` before its own path.

    None if the interpreter gives no answer in time.
    """
    left = context.left()
    if not names or left <= 0.1:
        return None
    argv = [python, "-W", "ignore", "-c", _QUESTION, json.dumps(list(roots)), json.dumps(list(names))]
    environ = {k: v for k, v in context.environ.items() if k not in _REMOVED_VARIABLES}
    answer = context.run(argv, timeout_s=left, environ={**environ, "PYTHONDONTWRITEBYTECODE": "1"})
    if answer.exit_code != 0:
        return None
    try:
        reply = json.loads(answer.stdout)
        near = {name: found[0] for name, found in reply["near"].items() if found}
        return Lookup(missing=tuple(reply["missing"]), near=near, version=(reply["version"][0], reply["version"][1]))
    except (ValueError, KeyError, TypeError, IndexError):
        return None


# Variables that are removed before the interpreter is asked, so that no sitecustomize of the user or hook of slurmwrap
# runs. The roots take the place of PYTHONPATH.
_REMOVED_VARIABLES = (
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONHOME",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONVERBOSE",
)
