"""What open and os's functions do in a trial instead: each stand-in says which arguments the plain one is called with.

A stand-in gives None where the call goes on as asked, (args, kwargs) where the path leads elsewhere, and raises _Done
with the result where it has done all itself. slurmwrap_guard puts them in, each inside a _Call. Python 3.6 syntax,
standard library.
"""

import os
from errno import EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY

from slurmwrap_calls import _Done, _Entry, _first, _like, _raise, _Scan, _text, _with_first
from slurmwrap_shadow import (
    _access,
    _listdir,
    _make_all,
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
    from typing import Any, Callable, Dict

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
    """stat and its like. A link that was not followed stays what it is."""
    text = _text(path, kwargs.get("dir_fd"))
    mapped = None if text is None else _shadow.seen(text)
    if mapped is None:
        return None
    kwargs.pop("dir_fd", None)
    return (_like(path, mapped),) + args, kwargs


def _reads_link(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """readlink: a link into the shadow tree points where the script said."""
    change = _reads(path, *args, **kwargs)
    if change is None:
        return None
    found = os.readlink(change[0][0])
    raise _Done(_like(path, _shadow.users(os.fsdecode(found))))


def _goes(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """chdir: into a directory of the user's as it is; into one that only the trial has, in the shadow tree."""
    text = _text(path)
    mapped = None if text is None else _shadow.seen(text)
    if mapped is None:
        return None
    _shadow.away = _shadow.away or mapped.startswith(_shadow.outputs + "/")
    return (_like(path, mapped),) + args, kwargs


def _stands() -> "Any":
    """getcwd, as the script knows it."""
    raise _Done(_shadow.users(os.getcwd()))


def _stands_b() -> "Any":
    raise _Done(os.fsencode(_shadow.users(os.getcwd())))


def _changes(path: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """chmod, utime, truncate: on a copy. Of a directory they are left out."""
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
    """mkdir, mkfifo, mknod."""
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
    """unlink and rmdir."""
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
    """The source is brought into the shadow, renamed there, and what it was is gone."""
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
        # Nothing of an older directory shows through.
        _shadow.forget(full_new)
    try:
        _rename(moved, goal)
    except OSError as error:
        # EXDEV: between the trial's directory and scratch.
        if error.errno != 18:
            raise
        import shutil

        shutil.move(moved, goal)
    if not free[0]:
        _shadow.forget(full_old)
    raise _Done(None)


def _brought(path: str) -> str:
    """The shadow of `path` (resolved) with all that belongs to it."""
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
    """symlink: the link is made in the shadow, to where its target is now."""
    text = _text(target, kwargs.get("dir_fd"))
    mapped = None if text is None else _shadow.target(text, keeps=False, new=True)
    origin = _text(source)
    if mapped is None or text is None or origin is None:
        return None
    full = os.path.join(os.path.dirname(_shadow.resolved(text)), origin)
    kwargs.pop("dir_fd", None)
    beside = os.path.join(os.path.dirname(mapped), origin)
    if not (beside == origin or not (_there(beside) or not _there(full))):
        # As it was said: it leads there in the shadow too.
        return (source, _like(target, mapped)) + args, kwargs
    return (_like(source, _shadow.seen(full) or full), _like(target, mapped)) + args, kwargs


def _hard_links(source: "Any", target: "Any", *args: "Any", **kwargs: "Any") -> "Any":
    """link: a copy, since a hard link would let the original be changed."""
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
