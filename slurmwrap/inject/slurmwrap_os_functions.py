"""Stand-ins for open and the functions of os in a trial, and the objects that replace the originals.

A stand-in decides with which arguments the original is called. It returns None to call the original unchanged, or
(args, kwargs) to call it with another path. It raises _Done with the result if it has done the whole operation itself.
slurmwrap_guard installs each one inside a _Call. Used only by slurmwrap_guard. Python 3.6 syntax, standard library.
"""

import os
from errno import EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY

from slurmwrap_shadow import (
    _access,
    _busy,
    _listdir,
    _make_all,
    _open,
    _readlink,
    _rename,
    _rmdir,
    _scandir,
    _shadow,
    _symlink,
    _there,
    _unlink,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple


class _Done(Exception):
    """Raised by a stand-in that has done the operation in the shadow tree; its argument is the result."""


class _Call(object):
    """A callable that replaces a function of os or io.

    It is not a Python function, because pathlib < 3.10 stores these functions in a class body, where a Python function
    would become a bound method.
    """

    def __init__(self, plain: "Any", ours: "Any") -> None:
        self.plain, self.ours, self.opens = plain, ours, plain is _open
        self.__name__ = getattr(plain, "__name__", "call")
        self.__qualname__ = self.__name__
        self.__doc__ = getattr(plain, "__doc__", None)
        # The module in which pickle finds the function.
        self.__module__ = "os" if hasattr(os, self.__name__) and plain is not _open else "io"
        self.__wrapped__ = plain

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
        # `_busy.on` is set while a stand-in runs, so that its own calls reach the original functions.
        if getattr(_busy, "on", False):
            return self.plain(*args, **kwargs)
        _busy.on = True
        try:
            change = self.ours(*args, **kwargs)
        except (OSError, _Done) as error:
            if isinstance(error, _Done):
                return error.args[0]
            raise
        except Exception:
            change = None
        finally:
            _busy.on = False
        if change is None:
            return self.plain(*args, **kwargs)
        found = self.plain(*change[0], **change[1])
        if self.opens:
            _name(found, _first(args, kwargs, "file"))
        return found

    def __repr__(self) -> str:
        return repr(self.plain)

    def __reduce__(self) -> "Any":
        # Pickled as the global name that it replaces, so that any process can unpickle it.
        return self.__name__


def _name(opened: "Any", path: "Any") -> None:
    """Set the name of an opened file to the path that the program passed."""
    try:
        raw = getattr(opened, "buffer", opened)
        getattr(raw, "raw", raw).name = os.fspath(path)
    except Exception:
        pass


def _text(path: "Any", dir_fd: "Optional[int]" = None) -> "Optional[str]":
    """Return the path as str; None for descriptors and for objects that are no paths."""
    if isinstance(path, int) or path is None:
        return None
    try:
        text = os.fsdecode(path)
    except TypeError:
        return None
    if "\0" in text:
        return None
    if dir_fd is not None and not text.startswith("/"):
        text = os.path.join(_readlink("/proc/self/fd/%d" % dir_fd), text)
    return text or None


def _like(path: "Any", mapped: str) -> "Any":
    return os.fsencode(mapped) if isinstance(path, bytes) else mapped


def _first(args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]", *names: str) -> "Any":
    if args:
        return args[0]
    return next((kwargs[name] for name in names if name in kwargs), None)


def _with_first(
    args: "Tuple[Any, ...]", kwargs: "Dict[str, Any]", value: "Any", *names: str
) -> "Tuple[Tuple[Any, ...], Dict[str, Any]]":
    if args:
        return (value,) + tuple(args[1:]), kwargs
    kwargs = dict(kwargs)
    kwargs[next(name for name in names if name in kwargs)] = value
    return args, kwargs


def _raise(number: int, path: str) -> "Any":
    raise OSError(number, os.strerror(number), path)


class _Entry(object):
    """A replacement of os.DirEntry for a file in the shadow tree, with the path that the script knows."""

    def __init__(self, entry: "Any", folder: str) -> None:
        self._entry, self.name = entry, entry.name
        self.path = os.path.join(folder, entry.name)
        self.is_dir, self.is_file, self.is_symlink = entry.is_dir, entry.is_file, entry.is_symlink
        self.stat, self.inode = entry.stat, entry.inode

    def is_junction(self) -> bool:
        return False

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return "<DirEntry %r>" % self.name


class _Scan(object):
    """A replacement of the iterator that os.scandir returns."""

    def __init__(self, entries: "List[Any]") -> None:
        self._entries = iter(entries)

    def __iter__(self) -> "Iterator[Any]":
        return self

    def __next__(self) -> "Any":
        return next(self._entries)

    def __enter__(self) -> "_Scan":
        return self

    def __exit__(self, *_: "Any") -> None:
        pass

    def close(self) -> None:
        self._entries = iter(())


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _opens(*args: "Any", **kwargs: "Any") -> "Any":
    path = _first(args, kwargs, "file")
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    text = _text(path)
    if text is None or not isinstance(mode, str):
        return None
    if set("wax+") & set(mode):
        mapped = _shadow.target(text, keeps="w" not in mode, new="x" in mode)
        if mapped is None:
            mapped = _shadow.seen(text)
    else:
        mapped = _shadow.seen(text)
    return None if mapped is None else _with_first(args, kwargs, _like(path, mapped), "file")


def _opens_fd(path: "Any", flags: int, *args: "Any", **kwargs: "Any") -> "Any":
    text = _text(path, kwargs.get("dir_fd"))
    if text is None:
        return None
    if flags & _WRITING:
        if not flags & os.O_CREAT and not _shadow.exists(_shadow.resolved(text)):
            return None
        mapped = _shadow.target(text, keeps=not flags & os.O_TRUNC, new=bool(flags & os.O_EXCL))
        if mapped is None:
            mapped = _shadow.seen(text)
    else:
        mapped = _shadow.seen(text)
    if mapped is None:
        return None
    kwargs.pop("dir_fd", None)
    return (_like(path, mapped), flags) + args, kwargs


def _reads(path: "Any" = ".", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for stat and similar functions. A link is not followed if the original does not follow it."""
    text = _text(path, kwargs.get("dir_fd"))
    mapped = None if text is None else _shadow.seen(text)
    if mapped is None:
        return None
    kwargs.pop("dir_fd", None)
    return (_like(path, mapped),) + args, kwargs


def _reads_link(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for readlink: for a link into the shadow tree, return the target that the script knows."""
    change = _reads(path, *args, **kwargs)
    if change is None:
        return None
    found = os.readlink(change[0][0])
    raise _Done(_like(path, _shadow.users(os.fsdecode(found))))


def _goes(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for chdir: for a directory that exists only in the shadow tree, change to its path there."""
    text = _text(path)
    mapped = None if text is None else _shadow.seen(text)
    if mapped is None:
        return None
    _shadow.away = _shadow.away or mapped.startswith(_shadow.outputs + "/")
    return (_like(path, mapped),) + args, kwargs


def _stands() -> "Any":
    """Stand-in for getcwd: return the path that the script knows."""
    raise _Done(_shadow.users(os.getcwd()))


def _stands_b() -> "Any":
    raise _Done(os.fsencode(_shadow.users(os.getcwd())))


def _changes(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for chmod, utime, truncate: change a copy of the file. For a directory, do nothing."""
    text = _text(path, kwargs.get("dir_fd"))
    if text is None:
        return None
    full = _shadow.resolved(text)
    if _shadow.is_free(full) or not _shadow.exists(full):
        return None
    if not _there(_shadow.shadow(full)) and (os.path.isdir(full) or os.path.islink(full)):
        raise _Done(None)
    mapped = _shadow.target(text, keeps=True)
    if mapped is None:
        return None
    kwargs.pop("dir_fd", None)
    return (_like(path, mapped),) + args, kwargs


def _makes(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for mkdir, mkfifo, mknod."""
    text = _text(path, kwargs.get("dir_fd"))
    mapped = None if text is None else _shadow.target(text, keeps=False, new=True)
    if mapped is None or text is None:
        return None
    kwargs.pop("dir_fd", None)
    return (_like(path, mapped),) + args, kwargs


def _unlinks(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    return _removes(path, False, args, kwargs)


def _removes_folder(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    return _removes(path, True, args, kwargs)


def _removes(path: "Any", wants_folder: bool, args: "Any", kwargs: "Any") -> "Any":
    """Remove a file or directory in the shadow tree and mark it as removed; for unlink and rmdir."""
    # Raise the errors that the real operation would raise (missing, wrong type, not empty), and let it fail by itself
    # where the permissions do not allow it.
    text = _text(path, kwargs.get("dir_fd"))
    if text is None:
        return None
    full = _shadow.resolved(text)
    if _shadow.is_free(full):
        led = _shadow.as_is(text)
        return None if led is None else ((_like(path, led),) + tuple(args), kwargs)
    if not _shadow.exists(full):
        return _raise(ENOENT, text)
    if not _access(os.path.dirname(full), os.W_OK) and not _there(_shadow.shadow(full)):
        return None
    shadow = _shadow.shadow(full)
    at = shadow if _there(shadow) else full
    folder = os.path.isdir(at) and not os.path.islink(at)
    if folder != wants_folder:
        _raise(EISDIR if folder else ENOTDIR, text)
    if folder and any(_shadow.names(full) or (_listdir(full), ())):
        _raise(ENOTEMPTY, text)
    if _there(shadow):
        (_rmdir if folder else _unlink)(shadow)
    _shadow.forget(full)
    raise _Done(None)


def _renames(source: "Any", target: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for rename and replace: rename a copy in the shadow tree and mark the original as removed."""
    old, new = _text(source, kwargs.get("src_dir_fd")), _text(target, kwargs.get("dst_dir_fd"))
    if old is None or new is None:
        return None
    full_old, full_new = _shadow.resolved(old), _shadow.resolved(new)
    free = _shadow.is_free(full_old), _shadow.is_free(full_new)
    if all(free) or not (_there(full_old) if free[0] else _shadow.exists(full_old)):
        return None
    moved = full_old if free[0] else _brought(full_old)
    goal = full_new if free[1] else _shadow.made(full_new)
    if not free[1] and os.path.isdir(full_new) and not _shadow.is_gone(full_new):
        if not os.path.isdir(moved):
            return None
        if any(_shadow.names(full_new) or (_listdir(full_new), ())):
            _raise(ENOTEMPTY, new)
    if not free[1] and os.path.isdir(moved):
        # Hide the files of an existing directory with the new name.
        _shadow.forget(full_new)
    try:
        _rename(moved, goal)
    except OSError as error:
        # 18 is EXDEV: the trial's directory and scratch are on different file systems.
        if error.errno != 18:
            raise
        import shutil

        shutil.move(moved, goal)
    if not free[0]:
        _shadow.forget(full_old)
    raise _Done(None)


def _brought(path: str) -> str:
    """Copy `path` (resolved) with everything below it to the shadow tree, and return the path there."""
    shadow = _shadow.made(path)
    if os.path.islink(path) and not _there(shadow):
        _symlink(_readlink(path), shadow)
    elif os.path.isdir(path) and not (_there(shadow) and not os.path.isdir(shadow)):
        found = _shadow.names(path)
        below = set(_listdir(path)) if found is None else found[1]
        _make_all(shadow)
        for name in below:
            _brought(path + "/" + name)
    elif not _there(shadow):
        _shadow.copy(path, shadow)
    return shadow


def _links(source: "Any", target: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for symlink: create the link in the shadow tree, so that it leads to the current place of its target."""
    text = _text(target, kwargs.get("dir_fd"))
    mapped = None if text is None else _shadow.target(text, keeps=False, new=True)
    origin = _text(source)
    if mapped is None or text is None or origin is None:
        return None
    full = os.path.join(os.path.dirname(_shadow.resolved(text)), origin)
    kwargs.pop("dir_fd", None)
    beside = os.path.join(os.path.dirname(mapped), origin)
    if not (beside == origin or not (_there(beside) or not _there(full))):
        # The unchanged target is also correct in the shadow tree.
        return (source, _like(target, mapped)) + args, kwargs
    return (_like(source, _shadow.seen(full) or full), _like(target, mapped)) + args, kwargs


def _hard_links(source: "Any", target: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """Stand-in for link: make a copy, because writing to a hard link would change the original."""
    old, new = _text(source, kwargs.get("src_dir_fd")), _text(target, kwargs.get("dst_dir_fd"))
    mapped = None if new is None else _shadow.target(new, keeps=False, new=True)
    if old is None or new is None:
        return None
    if mapped is None:
        return None if _shadow.is_free(_shadow.resolved(old)) else _copied(old, new)
    _shadow.copy(_shadow.seen(old) or old, mapped)
    raise _Done(None)


def _copied(old: str, new: str) -> "Any":
    if _there(new):
        _raise(EEXIST, new)
    _shadow.copy(_shadow.seen(old) or old, new)
    raise _Done(None)


def _lists(path: "Any" = ".", *args: "Any", **kwargs: "Any") -> "Any":
    text = _text(path) if path is not None else "."
    found = None if text is None else _shadow.names(text)
    if found is None:
        led = None if text is None else _shadow.as_is(text)
        return None if led is None else ((_like(path or ".", led),) + args, kwargs)
    names = sorted(found[0] | found[1])
    raise _Done([os.fsencode(n) for n in names] if isinstance(path, bytes) else names)


def _scans(path: "Any" = ".", *args: "Any", **kwargs: "Any") -> "Any":
    text = _text(path) if path is not None else "."
    if text is None or isinstance(path, bytes):
        return None
    found = _shadow.names(text)
    if found is None:
        led = _shadow.as_is(text)
        if led is None:
            return None
        raise _Done(_Scan([_Entry(e, text) for e in _scandir(led)]))
    shadow = _shadow.shadow(_shadow.resolved(os.path.realpath(text)))
    over = [_Entry(e, text) for e in _scandir(shadow)] if os.path.isdir(shadow) else []
    led = _shadow.as_is(text)
    under = [e for e in _scandir(led or text) if e.name in found[1]] if found[1] else []
    under = [_Entry(e, text) for e in under] if led else under
    raise _Done(_Scan(under + over))


CALLS: "Dict[str, Callable[..., Any]]" = {
    "open": _opens_fd,
    "stat": _reads,
    "lstat": _reads,
    "access": _reads,
    "readlink": _reads_link,
    "chdir": _goes,
    "getcwd": _stands,
    "getcwdb": _stands_b,
    "statvfs": _reads,
    "getxattr": _reads,
    "listxattr": _reads,
    "listdir": _lists,
    "scandir": _scans,
    "mkdir": _makes,
    "mkfifo": _makes,
    "mknod": _makes,
    "rename": _renames,
    "replace": _renames,
    "unlink": _unlinks,
    "remove": _unlinks,
    "rmdir": _removes_folder,
    "symlink": _links,
    "link": _hard_links,
    "chmod": _changes,
    "lchmod": _changes,
    "chown": _changes,
    "lchown": _changes,
    "utime": _changes,
    "truncate": _changes,
    "setxattr": _changes,
    "removexattr": _changes,
}
