"""Find Slurm's own sbatch when gsub may be installed under that name: as a link, a copy or a site's wrapper.

An `sbatch` on PATH that is a script and mentions gsub or slurmwrap is skipped, because it would call gsub again. Other
wrappers that do so (by calling another wrapper, for example) are detected when they come back: a script that gsub
starts gets a mark in its environment, which is valid for this process and its descendants.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from slurmwrap.errors import SlurmwrapError

# Environment variable with the path of Slurm's own sbatch, for when PATH does not find it.
NAMED = "GSUB_SBATCH"
_MARK = "SLURMWRAP_CAME_FROM"
_GSUB_NAMES = (b"gsub", b"slurmwrap")
_BYTES_READ = 4096


def find_sbatch(environ: Mapping[str, str]) -> str:
    """Return the path of the sbatch to start. SlurmwrapError (127) if none is found, or only scripts that call gsub."""
    found = False
    excluded = _list_calling_wrappers(environ)
    configured = environ.get(NAMED)
    # A wrapper that called gsub would do so again for ever.
    if configured and configured not in excluded and not _calls_gsub(configured):
        return configured
    for path in _list_candidates(environ.get("PATH") or os.defpath):
        found = True
        if path not in excluded and not _calls_gsub(path):
            return path
    raise SlurmwrapError(
        "every sbatch on PATH is gsub itself" if found else "sbatch is not on PATH",
        hint=f"set {NAMED} to the path of Slurm's own sbatch"
        if found
        else "install Slurm's client commands, or load the site's slurm module",
        exit_code=127,
    )


def make_wrapper_environment(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the program at `path`: the caller's own, for a wrapper with a mark of its callers.

    sbatch exports its environment to the job, so a binary gets no mark.
    """
    plain = {name: value for name, value in environ.items() if name != _MARK}
    if not _read_beginning(path).startswith(b"#!"):
        return plain
    return {**plain, _MARK: ":".join((str(os.getpid()), *_list_calling_wrappers(environ), path))}


def _list_calling_wrappers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the wrappers that started this process."""
    pid, _, paths = environ.get(_MARK, "").partition(":")
    return tuple(paths.split(":")) if pid and pid in _list_ancestors() else ()


def _list_ancestors() -> Iterator[str]:
    """Yield this process, its parent and so on, as far as /proc shows them: a wrapper may start gsub from a shell."""
    yield str(os.getpid())
    pid = os.getppid()
    while pid > 1:
        yield str(pid)
        fields = _read_beginning(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0


def _list_candidates(search: str) -> Iterator[str]:
    for folder in search.split(":"):
        path = f"{folder or '.'}/sbatch"
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 - pathlib is not on the way of a pass
            yield path


def _calls_gsub(path: str) -> bool:
    beginning = _read_beginning(path)
    return beginning.startswith(b"#!") and any(word in beginning for word in _GSUB_NAMES)


def _read_beginning(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(_BYTES_READ)
    except OSError:
        return b""
