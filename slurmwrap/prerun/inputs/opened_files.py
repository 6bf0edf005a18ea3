"""Read which files a trial opened and which directories it listed (adapter: the trial's directory and /proc).

The user's program can write the file `opened` of the trial's directory, so it is not trusted: it only names files that
are then read as the user.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.inject.slurmwrap_opened_files import MAX_BYTES, NAME

# Bytes that are read of the file; forked processes may each exceed MAX_BYTES by a little.
_READ_BYTES = 2 * MAX_BYTES
# Data never has these endings: code, compiled code, shared libraries, notebooks, locks and logs.
_CODE = (".py", ".pyc", ".pyi", ".pyx", ".so", ".sh", ".c", ".h", ".cpp", ".cu", ".ipynb", ".lock", ".log")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/run/", "/bin/", "/sbin/")
_PARTS = ("/site-packages/", "/dist-packages/", "/__pycache__/", "/.git/", "/.cache/torch/inductor", "/.triton/")
# Seconds between two looks at /proc, each of which takes milliseconds.
SAMPLE_S = 2.0
_MAX_SAMPLED = 100_000


@dataclass(frozen=True, slots=True)
class JobPython:
    """A Python interpreter of the job, and the variables by which it finds its packages."""

    program: str
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFiles:
    """What the programs of a trial opened; absolute paths in the order of their first use."""

    files: tuple[str, ...] = ()  # opened for reading, and not written by the trial
    directories: tuple[str, ...] = ()  # listed
    patterns: tuple[str, ...] = ()  # of glob.glob
    pythons: tuple[JobPython, ...] = field(default_factory=tuple)


def read_opened_files(trial_dir: str, more: Iterable[str] = (), leave_out: Iterable[str] = ()) -> OpenedFiles:
    """Return what was recorded, followed by the files `more`, without anything below the directories `leave_out`."""
    raw = b""
    with suppress(OSError), Path(trial_dir, NAME).open("rb") as stream:
        raw = stream.read(_READ_BYTES)
    found: dict[str, dict[str, None]] = {kind: {} for kind in "rwdgp"}
    for line in raw.split(b"\n"):
        kind, tab, text = os.fsdecode(line).partition("\t")
        if tab and kind in found:
            found[kind][text if kind in "gp" else os.path.normpath(text)] = None
    outside = tuple(f"{folder.rstrip('/')}/" for folder in leave_out if folder.strip("/"))
    files = [path for path in dict.fromkeys((*found["r"], *more)) if path not in found["w"]]
    return OpenedFiles(
        files=tuple(path for path in files if _is_data(path, outside) and not path.endswith(_CODE)),
        directories=tuple(path for path in found["d"] if _is_data(f"{path}/", outside)),
        patterns=tuple(path for path in found["g"] if _is_data(path, outside)),
        pythons=tuple(_parse_python(text, outside) for text in found["p"]),
    )


def _is_data(path: str, outside: tuple[str, ...]) -> bool:
    return not path.startswith((*_SYSTEM, *outside)) and not any(part in path for part in _PARTS)


def _parse_python(text: str, outside: tuple[str, ...]) -> JobPython:
    """Return the interpreter and its variables, without the directories of the trial in the search paths."""
    program, *pairs = text.split("\t")
    environ = {}
    for name, value in (pair.split("=", 1) for pair in pairs if "=" in pair):
        kept = [folder for folder in value.split(":") if not f"{folder}/".startswith(outside)]
        environ[name] = ":".join(kept) if outside else value
    return JobPython(program, environ)


class OpenFileSampler:
    """Records the regular files that the trial's processes hold open or have mapped, for reading.

    This finds what C, C++ and Rust code opens itself and keeps open: TensorFlow's records, memory-mapped arrow files,
    LMDB. Errors are ignored: processes end at any time.
    """

    def __init__(self, trial_dir: str, clock: Callable[[], float]) -> None:
        self._file, self._clock = Path(trial_dir, NAME), clock
        self._known: set[tuple[str, str]] = set()
        self._next_at = 0.0

    def look(self, pids: Iterable[int], *, last: bool) -> None:
        """Record what is new, at most once in SAMPLE_S; `last`: the processes end now."""
        if self._clock() < self._next_at and not last:
            return
        self._next_at = self._clock() + SAMPLE_S
        found = {entry for pid in pids for entry in (*_list_descriptors(pid), *_list_mapped_files(pid))} - self._known
        if len(self._known) > _MAX_SAMPLED:
            return
        self._known |= found
        lines = [f"{kind}\t{path}\n" for kind, path in sorted(found) if _may_be_data(path)]
        if lines:
            with suppress(OSError), self._file.open("ab") as stream:
                stream.write(os.fsencode("".join(lines)))


def _may_be_data(path: str) -> bool:
    return not path.startswith(_SYSTEM) and not path.endswith(_CODE) and "\n" not in path


def _list_descriptors(pid: int) -> list[tuple[str, str]]:
    """Return ("r" or "w", path) of each regular file that the process has open."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                path = os.readlink(entry.path)
                if path.startswith("/") and stat.S_ISREG(os.stat(entry.path).st_mode):
                    # The link's own mode shows how the file was opened (proc(5)).
                    writes = os.lstat(entry.path).st_mode & stat.S_IWUSR
                    found.append(("w" if writes else "r", path))
    return found


def _list_mapped_files(pid: int) -> list[tuple[str, str]]:
    """Return ("r", path) of each file that is mapped and never executable: data, not a shared library."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_bytes().splitlines():
            words = line.split(None, 5)
            if len(words) == 6 and words[5].startswith(b"/"):
                path = os.fsdecode(words[5])
                is_code, is_written = b"x" in words[1], words[1].endswith(b"s") and b"w" in words[1]
                found[path] = "" if is_code or is_written else found.get(path, "r")
    return [(kind, path) for path, kind in found.items() if kind]
