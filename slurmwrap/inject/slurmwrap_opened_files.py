"""Record which files the user's Python opens and which directories it lists, so that its inputs can be checked.

One line for each path, the first time that a process uses it, in the file `opened` of the trial's directory:
"r<TAB>path" (opened for reading), "w" (opened for writing), "d" (listed), "g" (pattern of glob.glob), and
"p<TAB>interpreter<TAB>NAME=value..." (the interpreter, and the variables by which it finds its packages). Python 3.8 and later report these calls
to an audit hook, which forked processes inherit; before that, the replaced functions of slurmwrap_os_functions do. In a
pre-run only. Python 3.6 syntax, standard library; never raises into the user's program.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Set, Tuple

NAME = "opened"
# Paths that one process records at most, and the size at which no process adds more.
MAX_PATHS = 20000
MAX_BYTES = 8 << 20
# Code and configuration of the system; the reader of the file leaves out more.
_CODE = (".py", ".pyc", ".so", ".pyi", ".dll", ".egg-link")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib", "/run/", "/bin/", "/sbin/", "<")
_PACKAGES = ("/site-packages/", "/dist-packages/")
_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH")
_EVENTS = frozenset(("open", "os.listdir", "os.scandir", "glob.glob", "pathlib.Path.glob", "pathlib.Path.rglob"))
_O_WRITE = os.O_WRONLY | os.O_RDWR
# The original functions; the write guard replaces those of os.
_open, _write, _fstat, _getcwd, _fsencode = os.open, os.write, os.fstat, os.getcwd, os.fsencode


class Recorder(object):
    """Appends lines to one file. Its descriptor is compared with the file before each use.

    A program may close descriptors that it did not open, and its next file then has the same number.
    """

    def __init__(self, path: str, prefixes: "Tuple[str, ...]") -> None:
        self.path = path
        self.prefixes = prefixes
        self.seen = set()  # type: Set[Any]
        self.file = (-1, 0, 0)
        self.busy = False

    def note(self, kind: str, path: "Any") -> None:
        """Record one path. Ignore descriptors, code and system files, and what was recorded before."""
        if self.busy or (kind, path) in self.seen or len(self.seen) > MAX_PATHS:
            return
        self.busy = True
        try:
            self.seen.add((kind, path))
            text = os.fsdecode(path)
            if text.startswith(_SYSTEM) or text.endswith(_CODE) or "\n" in text or "\0" in text or not text:
                return
            if not text.startswith("/"):
                text = _getcwd() + "/" + text
            if text.startswith(self.prefixes) or any(part in text for part in _PACKAGES):
                return
            self.append(kind, text)
        except Exception:
            pass
        finally:
            self.busy = False

    def append(self, kind: str, text: str) -> None:
        """Write one line. Raise OSError if that fails."""
        descriptor, device, inode = self.file
        if descriptor >= 0:
            try:
                known = _fstat(descriptor)
                if (known.st_dev, known.st_ino) != (device, inode):
                    descriptor = -1
            except OSError:
                descriptor = -1
        if descriptor < 0:
            descriptor = _open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            found = _fstat(descriptor)
            self.file = (descriptor, found.st_dev, found.st_ino)
            if found.st_size > MAX_BYTES:
                self.seen = set(range(MAX_PATHS + 2))
                return
        _write(descriptor, _fsencode(kind + "\t" + text + "\n"))


recorder = None  # type: Any


def note(path: "Any") -> None:
    """Record a path that a library is about to open for reading in native code."""
    if recorder is not None:
        recorder.note("r", path)


def hook(event: str, args: "Tuple[Any, ...]") -> None:
    """Audit hook: see sys.addaudithook and the table of audit events in Python's documentation.

    It is called for every import too, so what is frequent and no input is left out first.
    """
    if event not in _EVENTS:
        return
    try:
        path = args[0]
        if event == "open":
            kind = type(path)
            if kind is int or (kind is str and path.endswith(_CODE)):
                return
            mode, flags = args[1], args[2]
            writes = flags & _O_WRITE if mode is None else not mode.startswith("r") or "+" in mode
            recorder.note("w" if writes else "r", path)
        elif event == "glob.glob":
            recorder.note("g", path)
        elif event == "pathlib.Path.glob":
            recorder.note("g", str(path) + "/" + str(args[1]))
        elif event == "pathlib.Path.rglob":
            recorder.note("g", str(path) + "/**/" + str(args[1]))
        elif type(path) is not int and not _is_by_pattern():
            recorder.note("d", "." if path is None else path)
    except Exception:
        pass


def _is_by_pattern() -> bool:
    """Return whether a directory is listed for a pattern, which is recorded itself, or by the import system."""
    frame = sys._getframe(2)
    while frame is not None and "/slurmwrap_" in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return False
    file = frame.f_code.co_filename
    if "/pathlib" in file and frame.f_code.co_name not in ("iterdir", "walk"):
        return True
    return file.startswith("<frozen importlib") or file.endswith("/glob.py")


def watch_calls(call_class: "Any") -> None:
    """Record the calls of the functions that the write guard replaced; for Python before 3.8.

    `call_class`: slurmwrap_os_functions._Call.
    """
    plain = call_class.__call__

    def __call__(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        try:
            if self.opens and args:
                mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
                hook("open", (args[0], mode, 0))
            elif self.__name__ in ("listdir", "scandir"):
                hook("os." + self.__name__, args[:1] or (None,))
        except Exception:
            pass
        return plain(self, *args, **kwargs)

    call_class.__call__ = __call__


def install() -> None:
    """Start to record. sitecustomize calls this once per process of a trial, before the write guard starts."""
    global recorder
    folder = os.environ.get("SLURMWRAP_TRIAL_DIR")
    if not folder:
        return
    own = [folder, sys.prefix, sys.base_prefix]
    recorder = Recorder(folder + "/" + NAME, tuple(p.rstrip("/") + "/" for p in own if p.strip("/")))
    _record_interpreter()
    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)


def _record_interpreter() -> None:
    try:
        values = [(name, os.environ[name]) for name in _VARIABLES if os.environ.get(name)]
        said = "\t".join([sys.executable or ""] + [name + "=" + value for name, value in values])
        if "\n" not in said:
            recorder.append("p", said)
    except Exception:
        pass
