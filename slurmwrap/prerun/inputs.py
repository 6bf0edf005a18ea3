"""The files that a job names: which they are, their digest, and whether our own read finds them broken.

Edge for reading, bounded in bytes and time; never unpickles, never follows what a file says beyond its own bytes.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurmwrap.job.request import JobRequest
from slurmwrap.prerun.entry import entry_points
from slurmwrap.prerun.shell import UNKNOWN

MIB = 1 << 20
# A file behind such an option is written by the job.
_WRITTEN = re.compile(r"out(?!lier)|save|log|result|dest|dump|export|report|trace|profil", re.IGNORECASE)
# A path behind such an option is made by the job, or may be.
_OUTPUT = re.compile(
    r"out|save|log|result|dest|work[-_]?dir|run[-_]?dir|exp|ckpt|checkpoint|resume|dump|board|wandb|cache|tmp|temp"
    r"|scratch|prefix|target|report|profil|trace|artifact|store|socket|pid|record|download|export|root[-_]?dir",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"\.(pt|pth|ckpt|bin|npy|npz|h5|hdf5|parquet|json|jsonl|csv|tsv|txt|yaml|yml|toml|gz|zip|tar|pkl|safetensors"
    r"|png|jpe?g|arrow|tfrecord|lmdb|model|bz2|xz|zst|py|sh|cfg|ini)$",
    re.IGNORECASE,
)


def named_files(request: JobRequest, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Regular files that the script's command lines and its arguments name, absolute, in order; no code."""
    text = request.script.content.decode("utf-8", "replace")
    entries = entry_points(text, request.chdir, request.args, environ) if text.startswith("#!") else ()
    given = [(request.args, request.chdir), *((entry.argv, entry.cwd or request.chdir) for entry in entries)]
    pairs = ((name, _resolved(value, cwd)) for argv, cwd in given for name, value in _named(argv))
    paths = (path for name, path in pairs if path and not _WRITTEN.search(name))
    return tuple(dict.fromkeys(p for p in paths if not p.endswith((".py", ".sh")) and _is_file(p)))


def missing_paths(argv: Sequence[str], cwd: str) -> Iterator[tuple[str, str]]:
    """(option, absolute path) of arguments that are surely paths to read, and are not there."""
    for name, value in _named(argv):
        path = _resolved(value, cwd)
        if path and _surely_path(value, cwd) and not _OUTPUT.search(name) and not os.path.lexists(path):
            yield name, path


def _named(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(option, value) of `--option value`, `--option=value` and `key=value`; the option is "" for a word alone."""
    option = ""
    for word in argv:
        if word.startswith("-") and "=" not in word:
            option = word
            continue
        name, value = word.split("=", 1) if re.match(r"--?[\w-]+=|[\w.]+=", word) else (option, word)
        option = ""
        yield name, value


def digest(path: str) -> str:
    """sha256 over size, first and last MiB: the input's identity. OSError when it cannot be read."""
    from hashlib import sha256

    with Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        found = sha256(f"{size}\n".encode())
        found.update(stream.read(MIB))
        stream.seek(max(0, size - MIB))
        found.update(stream.read(MIB))
    return found.hexdigest()


def inspect(path: str) -> str | None:
    """What is wrong with the file by our own read of it, None when nothing was found or we cannot tell."""
    from slurmwrap.prerun import formats  # zipfile and friends: not on gsub's fast path

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "does not exist"
    except OSError:
        return None  # not ours to read: that is no fault of the data
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return formats.fault(stream, status.st_size, Path(path).suffix.lower())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)


def _resolved(value: str, cwd: str) -> str:
    if not value or UNKNOWN in value or value.startswith("-") or "://" in value or set("*?[{\n") & set(value):
        return ""
    if not value.startswith("/") and not cwd:
        return ""
    return os.path.normpath(os.path.join(cwd, value))  # noqa: PTH118 - Path does not fold ".."


def _surely_path(value: str, cwd: str) -> bool:
    """ "org/model" of a hub and "bf16/fp32" hold a slash as well."""
    if "/" not in value:
        return False
    if value.startswith(("/", "./", "../")):
        return True
    first = value.split("/", 1)[0]
    return bool(_DATA.search(value)) or (bool(cwd) and Path(cwd, first).is_dir())


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - one call, no Path
    except (OSError, ValueError):
        return False
