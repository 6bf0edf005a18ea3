"""Keeps what the user's Python writes in a trial away from their files: it goes to a shadow tree, where reads look first.

Opening for writing, mkdir, rename, remove, link, truncate, chmod and utime outside $SLURMWRAP_FREE act on
$SLURMWRAP_TRIAL_DIR/outputs/<absolute path>; a removed file is marked in .../gone/<absolute path>. So a script finds
again what it wrote, and the original stays as it was. Libraries that open paths in C, C++ or Rust are led there by
the Python call that takes the path (slurmwrap_entries). Installed by sitecustomize only in a trial. Python 3.6 syntax,
standard library; none of its own errors is raised into the user's process: what cannot be mapped is done as asked, except
that a file too large to copy ends the trial.

A script may be in a directory that only the shadow tree has: getcwd and readlink give what the script knows, and
relative paths lead from there.

Not held: C code that opens files without such an entry (TensorFlow's and TensorStore's own file systems, RocksDB),
io.FileIO called with a path, programs started as children (those have the shims), and descriptors opened before.

Where a path leads is slurmwrap_shadow's to say, what each function does instead slurmwrap_standins'. Here they are put
in, and here the other ways out of this process ask: the entries of libraries, and programs that are started.
"""

import builtins
import io
import os
import sys

import slurmwrap_children
from slurmwrap_calls import _Call, _text
from slurmwrap_shadow import _access, _busy, _end_the_trial, _open, _shadow, _there
from slurmwrap_standins import CALLS, _opens, _reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional


def written(path: "Any", keeps: bool = False) -> "Any":
    """Where a library that opens `path` itself shall write; anything but a path is given back as it is."""
    return _mapped(path, lambda text: _shadow.target(text, keeps=keeps) or _shadow.seen(text))


def read(path: "Any") -> "Any":
    """Where it shall read."""
    return _mapped(path, lambda text: _shadow.seen(text))


def for_child(path: "Any") -> "Any":
    """Where a program started by this one finds `path`, or makes it in a directory that only the shadow has."""

    def find(text: str) -> "Optional[str]":
        full = _shadow.resolved(text)
        folder = full.rpartition("/")[0] or "/"
        if _shadow.is_free(full):
            return None
        # Of a merged one it sees the user's.
        shadowed = _there(_shadow.shadow(full)) and not _shadow.is_merged(full)
        # It will be in the shadow tree as we do.
        if not text.startswith("/") and _is_away():
            return full if not shadowed and _there(full) else None
        made = not _there(folder) and _there(_shadow.shadow(folder))
        return _shadow.shadow(full) if shadowed or made else None

    return _mapped(path, find)


def shadowed(folder: str) -> "Optional[str]":
    """The shadow of a directory, where it has one; for modules that the program wrote itself."""
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
    """Ends the trial when `folder` is not one in which it may write."""
    folder = os.path.realpath(folder)
    if not _shadow.is_free(folder) and _access(folder, os.W_OK):
        _end_the_trial(what, folder)


def start() -> bool:
    """Replaces open and os's functions. False where the trial says nothing of places."""
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
    # runpy's; import itself has its own
    if hasattr(io, "open_code"):
        io.open_code = _Call(io.open_code, _reads)
    for module in ("tempfile", "pathlib", "shutil", "logging", "tarfile"):
        if module in sys.modules:
            _replace_kept(sys.modules[module], replaced)
    os.system = slurmwrap_children.system(os.system, for_child)
    # rmtree by descriptors would list what is underneath. One that is imported later finds out by itself.
    if "shutil" in sys.modules:
        sys.modules["shutil"]._use_fd_functions = False
    return True


def _is_away() -> bool:
    """We are in the shadow tree, perhaps since our start."""
    try:
        return os.getcwd().startswith(_shadow.inside)
    except OSError:
        return False


def _replace_kept(module: "Any", replaced: "Dict[Any, _Call]") -> None:
    """A module that a .pth file imported before us keeps the originals in its names, classes and default arguments."""
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


def install(entries: "Any") -> None:
    """Called once per process by sitecustomize, in a trial only. `entries`: the module slurmwrap_entries."""
    started = start()
    entries.install(written if started else None, read if started else None)
