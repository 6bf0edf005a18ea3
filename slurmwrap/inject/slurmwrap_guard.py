"""The write guard: redirect the file writes of the user's Python in a trial to a shadow tree that reads search first.

Opening for writing, mkdir, rename, remove, link, truncate, chmod and utime outside $SLURMWRAP_FREE act on
$SLURMWRAP_TRIAL_DIR/outputs/<absolute path>; a removed file is marked in .../gone/<absolute path>. So a script finds
the files that it wrote, and the originals do not change. For libraries that open paths in C, C++ or Rust, the Python
call that takes the path is patched (slurmwrap_library_patches). sitecustomize installs the guard only in a trial.
Python 3.6 syntax, standard library. The guard raises no errors of its own into the user's process: an operation that cannot be
mapped is done unchanged, except that a file too large to copy ends the trial.

The working directory may exist only in the shadow tree: then getcwd and readlink return the path that the script knows,
and relative paths start from there.

Not redirected are: C code without a patched call (the file systems of TensorFlow and TensorStore, RocksDB), io.FileIO
called with a path, child processes (the shims handle those), and descriptors that were opened before.

slurmwrap_shadow maps the paths, and slurmwrap_os_functions implements the replacements of the functions. This module
installs them, and maps paths for the patched libraries and for child processes.
"""

import builtins
import io
import os
import sys

import slurmwrap_children
import slurmwrap_opened_files
from slurmwrap_os_functions import CALLS, _Call, _opens, _reads, _text
from slurmwrap_shadow import _access, _busy, _end_the_trial, _open, _shadow, _there

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional


def written(path: "Any", keeps: bool = False) -> "Any":
    """Return the path to which a library that opens `path` itself must write; return non-paths unchanged."""
    return _mapped(path, lambda text: _shadow.target(text, keeps=keeps) or _shadow.seen(text))


def read(path: "Any") -> "Any":
    """Return the path from which a library that opens `path` itself must read; return non-paths unchanged."""
    if isinstance(path, (str, bytes)) or hasattr(path, "__fspath__"):
        slurmwrap_opened_files.note(path)
    return _mapped(path, lambda text: _shadow.seen(text))


def for_child(path: "Any") -> "Any":
    """Return the path under which a child process finds `path`.

    If the directory of a new file exists only in the shadow tree, return the path there.
    """

    def find(text: str) -> "Optional[str]":
        full = _shadow.resolved(text)
        folder = full.rpartition("/")[0] or "/"
        if _shadow.is_free(full):
            return None
        # If a directory exists in both trees, the child gets that of the user.
        shadowed = _there(_shadow.shadow(full)) and not _shadow.is_merged(full)
        # The child inherits a working directory in the shadow tree, so relative paths are found there.
        if not text.startswith("/") and _is_away():
            return full if not shadowed and _there(full) else None
        made = not _there(folder) and _there(_shadow.shadow(folder))
        return _shadow.shadow(full) if shadowed or made else None

    return _mapped(path, find)


def shadowed(folder: str) -> "Optional[str]":
    """Return the shadow of a directory; None if there is none. Used to import modules that the program wrote itself."""
    full = _shadow.resolved(folder or ".")
    found = _shadow.shadow(full)
    return found if not _shadow.is_free(full) and os.path.isdir(found) else None


def _mapped(path: "Any", find: "Callable[[str], Optional[str]]") -> "Any":
    if getattr(_busy, "on", False):
        return path
    if not isinstance(path, (str, bytes)) and not hasattr(path, "__fspath__"):
        return path
    _busy.on = True
    try:
        text = _text(path)
        mapped = None if text is None else find(text)
    except Exception:
        return path
    finally:
        _busy.on = False
    if mapped is None:
        return path
    return mapped if isinstance(path, (str, bytes)) else type(path)(mapped)


def ends_unless_free(what: str, folder: str) -> None:
    """End the trial if it must not write to `folder`."""
    folder = os.path.realpath(folder)
    if not _shadow.is_free(folder) and _access(folder, os.W_OK):
        _end_the_trial(what, folder)


def start() -> bool:
    """Replace open and the functions of os. Return False if the environment does not define where a trial may write."""
    trial = os.environ.get("SLURMWRAP_TRIAL_DIR")
    if not trial or "SLURMWRAP_FREE" not in os.environ:
        return False
    free = [f for f in os.environ["SLURMWRAP_FREE"].split(":") if f]
    held = [f for f in os.environ.get("SLURMWRAP_HELD", "").split(":") if f]
    _shadow.set_up(os.path.realpath(trial), free, held)
    _shadow.away = _is_away()
    replaced: "Dict[Any, _Call]" = {}
    for name, ours in CALLS.items():
        plain = getattr(os, name, None)
        if plain is not None:
            call = _Call(plain, ours)
            setattr(os, name, call)
            for known in (os.supports_follow_symlinks, os.supports_effective_ids, os.supports_fd):
                if plain in known and name not in ("listdir", "scandir"):
                    known.add(call)
            replaced[plain] = call
    builtins.open = io.open = replaced[_open] = _Call(_open, _opens)
    # Used by runpy; the import system has its own function.
    if hasattr(io, "open_code"):
        io.open_code = _Call(io.open_code, _reads)
    for module in ("tempfile", "pathlib", "shutil", "logging", "tarfile"):
        if module in sys.modules:
            _replace_kept(sys.modules[module], replaced)
    if slurmwrap_opened_files.recorder is not None and not hasattr(sys, "addaudithook"):
        slurmwrap_opened_files.watch_calls(_Call)
    os.system = slurmwrap_children.system(os.system, for_child)
    # shutil.rmtree by descriptors would list the original directory. A shutil that is imported later does not use
    # descriptors, because the replaced os.scandir is not in os.supports_fd.
    if "shutil" in sys.modules:
        sys.modules["shutil"]._use_fd_functions = False
    return True


def _is_away() -> bool:
    """Return whether the working directory is in the shadow tree; a child process may start there."""
    try:
        return os.getcwd().startswith(_shadow.inside)
    except OSError:
        return False


def _replace_kept(module: "Any", replaced: "Dict[Any, _Call]") -> None:
    """Replace the original functions in a module that was imported before the guard, for example by a .pth file.

    Such a module keeps them in its global names, classes and default arguments.
    """
    holders = [module] + [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    for holder in holders:
        for name, value in list(vars(holder).items()):
            try:
                if value in replaced:
                    setattr(holder, name, replaced[value])
                elif getattr(value, "__defaults__", None):
                    value.__defaults__ = tuple(_replacement(v, replaced) for v in value.__defaults__)
            except Exception:
                continue


def _replacement(value: "Any", replaced: "Dict[Any, _Call]") -> "Any":
    try:
        return replaced.get(value, value)
    except TypeError:
        return value


def install(library_patches: "Any") -> None:
    """Install the guard and the patches of libraries. sitecustomize calls this once per process in a trial."""
    started = start()
    library_patches.install(written if started else None, read if started else None)
