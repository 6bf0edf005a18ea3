"""What is in the place of a replaced function of os, and the listings it gives.

Used by slurmwrap_guard and its stand-ins only. Python 3.6 syntax, standard library.
"""

import os

from slurmwrap_shadow import _busy, _open, _readlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple


class _Done(Exception):
    """What was asked is done in the shadow; its argument is the result."""


class _Call(object):
    """A replaced function. No Python function: pathlib < 3.10 keeps these in a class body, where one would be bound."""

    def __init__(self, plain: "Any", ours: "Any") -> None:
        self.plain, self.ours, self.opens = plain, ours, plain is _open
        self.__name__ = getattr(plain, "__name__", "call")
        self.__qualname__ = self.__name__
        self.__doc__ = getattr(plain, "__doc__", None)
        self.__module__ = "os" if hasattr(os, self.__name__) and plain is not _open else "io"  # where pickle finds it
        self.__wrapped__ = plain

    def __call__(self, *args: "Any", **kwargs: "Any") -> "Any":
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
        # Pickled as the global it replaces, whichever side unpickles it.
        return self.__name__


def _name(opened: "Any", path: "Any") -> None:
    """A file calls itself as it was asked for."""
    try:
        raw = getattr(opened, "buffer", opened)
        getattr(raw, "raw", raw).name = os.fspath(path)
    except Exception:
        pass


def _text(path: "Any", dir_fd: "Optional[int]" = None) -> "Optional[str]":
    """The path as text; None for descriptors and what is no path."""
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
    """os.DirEntry of a shadow file, under the name by which the script knows it."""

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
    """What os.scandir returns."""

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
