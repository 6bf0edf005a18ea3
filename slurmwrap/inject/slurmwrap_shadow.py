"""The shadow tree, to which a trial's Python writes instead of to the user's files, and the marks of removed files.

Used only by slurmwrap_guard and slurmwrap_os_functions. It also keeps the original functions of os and io, saved before
they are replaced. Python 3.6 syntax, standard library.
"""

import io
import os
from _thread import _local
from errno import EEXIST, ENOENT, ENOTDIR
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Set, Tuple

# Maximum size of a file that is copied before it is changed in place; a larger one ends the trial.
COPIED_BYTES = 256 << 20
_GONE = ".slurmwrap-gone"
# The original functions. slurmwrap's own code calls only these.
_open, _os_open, _stat, _lstat, _mkdir, _rename = io.open, os.open, os.stat, os.lstat, os.mkdir, os.rename
_unlink, _rmdir, _listdir, _scandir, _symlink = os.unlink, os.rmdir, os.listdir, os.scandir, os.symlink
_plain_access, _readlink, _fspath = os.access, os.readlink, os.fspath
_busy = _local()


def _access(path: str, mode: int) -> bool:
    """Return what os.access would return if the trial had bound no directory read-only into this container."""
    if _plain_access(path, mode) or mode != os.W_OK or not any(_below(path, f) for f in _shadow.closed):
        return _plain_access(path, mode)
    try:
        found, user = _stat(path), os.geteuid()
    except OSError:
        return False
    shift = 6 if found.st_uid == user else 3 if found.st_gid in [os.getegid()] + os.getgroups() else 0
    return user == 0 or bool(found.st_mode >> shift & 2)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


class ShadowTrees(object):
    """The two trees of one trial (written files, marks of removed files) and the mapping of paths into them."""

    def __init__(self, trial_dir: str, free: "List[str]", held: "List[str]") -> None:
        self.set_up(trial_dir, free, held)

    def set_up(self, trial_dir: str, free: "List[str]", held: "List[str]") -> None:
        """Set all attributes. The object is changed in place, because other modules have already imported it."""
        self.outputs = trial_dir + "/outputs"
        self.gone = trial_dir + "/gone"
        self.inside = self.outputs + "/"
        self.free = free + [trial_dir]
        self.held = held
        # Directories that are read-only only in the trial (prerun/trial/container_rewrite.py).
        self.closed = [f for f in os.environ.get("SLURMWRAP_CLOSED", "").split(":") if f]
        self.named = frozenset(self.free + held)
        # Cache of is_free() per directory, for the paths directly in it.
        self.frees: "Dict[str, bool]" = {}
        self.used, self.looked = False, 0.0
        self.folders: "Dict[str, str]" = {}
        # Whether the working directory is known to be in the shadow tree.
        self.away = False

    def is_used(self) -> bool:
        """Return whether any process of the trial has written or removed a file.

        A negative answer is cached for two milliseconds, because programs may call stat for a million files.
        """
        if not self.used:
            now = monotonic()
            if now - self.looked < 0.002:
                return False
            self.used = _there(self.outputs) or _there(self.gone)
            self.looked = now
        return self.used

    def is_free(self, path: str) -> bool:
        """Return whether the trial may write to `path` itself.

        The longest entry of both lists that contains the path decides. It is held if the entries are equally long or if
        no entry contains it.
        """
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
        """Return `path` as an absolute path with the links of its directories resolved."""
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
        """Return an absolute path as the user knows it: without the prefix of the shadow tree."""
        return path[len(self.outputs) :] if path.startswith(self.inside) else path

    def as_is(self, path: str) -> "Optional[str]":
        """Return the full path of a path that is not redirected, if the program addresses it through the shadow tree.

        Return None if `path` itself can be used.
        """
        inside = path.startswith(self.inside) or (self.away and not path.startswith("/"))
        return self.resolved(path) if inside else None

    def is_gone(self, path: str) -> bool:
        """Return whether the path, or a directory above it, was removed by the trial."""
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
        """Return the shadow of `path`, after creating the directories above it."""
        self.used = True
        _make_all(self.shadow(path).rpartition("/")[0])
        return self.shadow(path)

    def seen(self, path: str) -> "Optional[str]":
        """Return the path from which to read `path`; None if it is `path` itself."""
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
        """Return whether `path` is a directory of the user into which the trial has written."""
        return os.path.isdir(path) and os.path.isdir(self.shadow(path)) and not self.is_gone(path)

    def exists(self, path: str) -> bool:
        return _there(self.shadow(path)) or (_there(path) and not self.is_gone(path))

    def target(self, path: str, keeps: bool, new: bool = False) -> "Optional[str]":
        """Return the path to which to write `path`; None if it is `path` itself.

        The latter is the case for scratch, and if the operation must fail as it would in the real job. `keeps`: the
        existing content is kept, so the file is copied first. `new`: the file must not exist yet.
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
        """Mark `path` (resolved) as removed."""
        self.used = True
        if _there(path):
            _make_all(self.gone + path)
            with _open(self.gone + path + "/" + _GONE, "w"):
                pass

    def names(self, path: str) -> "Optional[Tuple[Set[str], Set[str]]]":
        """Return (names in the shadow of the directory, names in the original that still exist); None if unchanged."""
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


# The trees of this process. All paths are free until slurmwrap_guard sets it up.
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
    """Report the operation to the supervisor, which kills the process tree, and wait for that."""
    import time

    try:
        name = os.path.join(os.environ["SLURMWRAP_STEP_DIR"], "touched")
        with _open(name, "a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write("%s\t%s\n" % (what, path))
    except Exception:
        return
    while True:
        time.sleep(3600)
