"""Finds Slurm's own sbatch where gsub may be in its place: as a link, a copy or a site's wrapper named `sbatch`.

An `sbatch` on PATH that is a script and names gsub or slurmwrap leads back to us and is passed over. A site's wrapper
that does not say so (it calls another wrapper, say) is caught when it comes back: what is started from here and is no
binary carries a mark in its environment, which holds for this process and what it starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from slurmwrap.errors import SlurmwrapError

# The path of Slurm's own, where PATH does not show it.
NAMED = "GSUB_SBATCH"
_MARK = "SLURMWRAP_CAME_FROM"
_OURS = (b"gsub", b"slurmwrap")
_LOOKED_AT = 4096


def find_sbatch(environ: Mapping[str, str]) -> str:
    """Path of the sbatch to start. SlurmwrapError (127) where there is none, or none that does not lead back here."""
    found = False
    passed = _list_calling_wrappers(environ)
    named = environ.get(NAMED)
    # One that leads back here would do so for ever.
    if named and named not in passed and not _is_ours(named):
        return named
    for path in _list_candidates(environ.get("PATH") or os.defpath):
        found = True
        if path not in passed and not _is_ours(path):
            return path
    raise SlurmwrapError(
        "every sbatch on PATH is gsub itself" if found else "sbatch is not on PATH",
        hint=f"set {NAMED} to the path of Slurm's own sbatch"
        if found
        else "install Slurm's client commands, or load the site's slurm module",
        exit_code=127,
    )


def make_wrapper_environment(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the program at `path`: the caller's own; for a wrapper with the mark of where it came from.

    sbatch exports its environment to the job, so a binary gets no mark.
    """
    plain = {name: value for name, value in environ.items() if name != _MARK}
    if not _read_beginning(path).startswith(b"#!"):
        return plain
    return {**plain, _MARK: ":".join((str(os.getpid()), *_list_calling_wrappers(environ), path))}


def _list_calling_wrappers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The wrappers that led to this very process."""
    pid, _, paths = environ.get(_MARK, "").partition(":")
    return tuple(paths.split(":")) if pid and pid in _list_ancestors() else ()


def _list_ancestors() -> Iterator[str]:
    """This process, its parent and so on, as far as /proc shows them: a wrapper may call a shell that calls us."""
    yield str(os.getpid())
    pid = os.getppid()
    while pid > 1:
        yield str(pid)
        told = _read_beginning(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        pid = int(told[1]) if len(told) > 1 else 0


def _list_candidates(search: str) -> Iterator[str]:
    for folder in search.split(":"):
        path = f"{folder or '.'}/sbatch"
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 - pathlib is not on the way of a pass
            yield path


def _is_ours(path: str) -> bool:
    beginning = _read_beginning(path)
    return beginning.startswith(b"#!") and any(word in beginning for word in _OURS)


def _read_beginning(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(_LOOKED_AT)
    except OSError:
        return b""
