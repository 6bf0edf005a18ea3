"""Where a trial's Python writes instead of to the user's files: the shadow tree and the marks of what was removed.

Used by slurmwrap_guard and its stand-ins only. Holds the operating system's own functions, taken before they are
replaced. Python 3.6 syntax, standard library.
"""

import io
import os
from _thread import _local
from errno import EEXIST, ENOENT, ENOTDIR
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

# A file that is changed in place is copied first; a larger one ends the trial.
COPIED_BYTES = 256 << 20
_GONE = ".slurmwrap-gone"
# The originals: ours call these only.
_open, _os_open, _stat, _lstat, _mkdir, _rename = io.open, os.open, os.stat, os.lstat, os.mkdir, os.rename
_unlink, _rmdir, _listdir, _scandir, _symlink = os.unlink, os.rmdir, os.listdir, os.scandir, os.symlink
_access, _readlink, _fspath = os.access, os.readlink, os.fspath
_busy = _local()


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


class ShadowTrees(object):
    """The two trees of one trial and what lies outside of them."""

    def __init__(self, trial_dir: str, free: "List[str]", held: "List[str]") -> None:
        self.set_up(trial_dir, free, held)

    def set_up(self, trial_dir: str, free: "List[str]", held: "List[str]") -> None:
        """In place, since all that asks for this process's one holds it already."""
        self.outputs = trial_dir + "/outputs"
        self.gone = trial_dir + "/gone"
        self.inside = self.outputs + "/"
        self.free = free + [trial_dir]
        self.held = held
        self.named = frozenset(self.free + held)
        # Of what lies directly in a directory.
        self.frees: "Dict[str, bool]" = {}
        self.used, self.looked = False, 0.0
        self.folders: "Dict[str, str]" = {}
        # The working directory is one of the shadow tree, as far as we know.
        self.away = False

    def is_used(self) -> bool:
        """Anything was written or removed by any process of the trial. A no holds for two milliseconds: programs ask
        for the state of a million files."""
        if not self.used:
            now = monotonic()
            if now - self.looked < 0.002:
                return False
            self.used = _there(self.outputs) or _there(self.gone)
            self.looked = now
        return self.used

    def is_free(self, path: str) -> bool:
        """The longest of both lists that holds `path` decides; a tie, and what no list names, is held."""
        folder = path.rpartition("/")[0]
        if folder not in self.frees or path in self.named:
            if len(self.frees) > 4096:
                self.frees.clear()
            answer = self._is_free(path)
            if path in self.named:
                return answer
            self.frees[folder] = answer
        return self.frees[folder]

    def _is_free(self, path: str) -> bool:
        if path.startswith(("/dev/", "/proc/")):
            return True
        best = 0
        for folder in self.free:
            if len(folder) > best and _below(path, folder):
                best = len(folder)
        return best > 0 and not any(len(f) >= best and _below(path, f) for f in self.held)

    def resolved(self, path: str) -> str:
        """Absolute, links of the directories resolved."""
        if not path.startswith("/") or "/." in path or "//" in path or path.endswith("/"):
            path = os.path.abspath(path)
        path = self.users(path)
        folder, _, name = path.rpartition("/")
        if folder not in self.folders:
            if len(self.folders) > 4096:
                self.folders.clear()
            self.folders[folder] = os.path.realpath(folder or "/")
        return self.folders[folder].rstrip("/") + "/" + name

    def users(self, path: str) -> str:
        """An absolute path as the user knows it, where it is one of the shadow tree."""
        return path[len(self.outputs) :] if path.startswith(self.inside) else path

    def as_is(self, path: str) -> "Optional[str]":
        """For what is not led: its full path where only that leads to it, since we are in the shadow tree."""
        inside = path.startswith(self.inside) or (self.away and not path.startswith("/"))
        return self.resolved(path) if inside else None

    def is_gone(self, path: str) -> bool:
        """It was removed, or a directory above it."""
        if not _there(self.gone):
            return False
        at = path
        while at != "/":
            if _there(self.gone + at + "/" + _GONE):
                return True
            at = at.rpartition("/")[0] or "/"
        return False

    def shadow(self, path: str) -> str:
        return self.outputs + path

    def made(self, path: str) -> str:
        """Its shadow, with the directories above it."""
        self.used = True
        _make_all(self.shadow(path).rpartition("/")[0])
        return self.shadow(path)

    def seen(self, path: str) -> "Optional[str]":
        """Where to read `path`; None: where it says."""
        if not self.is_used():
            return None
        asked, path = path, self.resolved(path)
        if self.is_free(path):
            return self.as_is(asked)
        shadow = self.shadow(path)
        if _there(shadow):
            return self.as_is(asked) if self.is_merged(path) else shadow
        return shadow if self.is_gone(path) else self.as_is(asked)

    def is_merged(self, path: str) -> bool:
        """A directory of the user's with something of the trial's in it."""
        return os.path.isdir(path) and os.path.isdir(self.shadow(path)) and not self.is_gone(path)

    def exists(self, path: str) -> bool:
        return _there(self.shadow(path)) or (_there(path) and not self.is_gone(path))

    def target(self, path: str, keeps: bool, new: bool = False) -> "Optional[str]":
        """Where to write `path`; None: where it says, because it is scratch or because that will fail as it should.

        `keeps`: what is there already stays in it, so it is copied. `new`: it must not be there yet.
        """
        asked, path = path, self.resolved(path)
        if self.is_free(path):
            return self.as_is(asked)
        shadow = self.shadow(path)
        if _there(shadow):
            return shadow
        real = _there(path) and not self.is_gone(path)
        folder = path.rpartition("/")[0] or "/"
        if real and (new or os.path.isdir(path) or not _access(path, os.W_OK)):
            return self.as_is(asked)
        if not real and not _there(self.shadow(folder)) and not (os.path.isdir(folder) and _access(folder, os.W_OK)):
            return self.as_is(asked)
        self.made(path)
        if real and keeps:
            self.copy(path, shadow)
        return shadow

    def copy(self, path: str, shadow: str) -> None:
        found = _stat(path)
        if found.st_size > COPIED_BYTES:
            _end_the_trial("changing a file of %d MiB" % (found.st_size >> 20), path)
        with _open(path, "rb") as source, _open(shadow, "wb") as sink:
            while True:
                piece = source.read(1 << 20)
                if not piece:
                    break
                sink.write(piece)
        os.chmod(shadow, (found.st_mode & 0o777) | 0o600)

    def forget(self, path: str) -> None:
        """`path` (resolved) is not there any more."""
        self.used = True
        if _there(path):
            _make_all(self.gone + path)
            with _open(self.gone + path + "/" + _GONE, "w"):
                pass

    def names(self, path: str) -> "Optional[Tuple[Set[str], Set[str]]]":
        """(names in the shadow of directory `path`, names under it that still hold); None where nothing changed."""
        if not self.is_used():
            return None
        path = self.resolved(path)
        if os.path.islink(path):
            path = os.path.realpath(path)
        shadow = self.shadow(path)
        if self.is_free(path) or not (_there(shadow) or _there(self.gone + path) or self.is_gone(path)):
            return None
        if _there(shadow) and not os.path.isdir(shadow):
            raise OSError(ENOTDIR, os.strerror(ENOTDIR), path)
        over = set(_listdir(shadow)) if os.path.isdir(shadow) else set()
        if not over and not _there(shadow) and self.is_gone(path):
            raise OSError(ENOENT, os.strerror(ENOENT), path)
        under = set(_listdir(path)) if os.path.isdir(path) and not self.is_gone(path) else set()
        return over, set(n for n in under - over if not _there(self.gone + path + "/" + n + "/" + _GONE))


# Of this process; all is free until slurmwrap_guard sets it up.
_shadow = ShadowTrees("/nonexistent", ["/"], [])


def _there(path: str) -> bool:
    try:
        _lstat(path)
    except (OSError, ValueError):
        return False
    return True


def _make_all(folder: str) -> None:
    if _there(folder):
        return
    _make_all(folder.rpartition("/")[0])
    try:
        _mkdir(folder, 0o700)
    except OSError as error:
        if error.errno != EEXIST:
            raise


def _end_the_trial(what: str, path: str) -> None:
    """The supervisor reads this and ends the tree; until then nothing goes on."""
    import time

    try:
        name = os.path.join(os.environ["SLURMWRAP_STEP_DIR"], "touched")
        with _open(name, "a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write("%s\t%s\n" % (what, path))
    except Exception:
        return
    while True:
        time.sleep(3600)
