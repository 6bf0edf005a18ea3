"""Check the files and directories that a program is given: do they exist and have content? Reads 64 bytes of each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import is_typo, suggest_path
from slurmwrap.prerun.static.job_inputs import list_given_files, list_missing_paths
from slurmwrap.prerun.static.started_program import EntryPoint
from slurmwrap.prerun.static.static_context import StaticContext

# Number of files whose first bytes are read.
_MAX_FILES = 40
# Files of these types are never empty on purpose.
_NEVER_EMPTY = re.compile(
    r"\.(pt|pth|ckpt|bin|npy|npz|h5|hdf5|parquet|json|jsonl|csv|safetensors|arrow|tfrecord|pkl)$", re.I
)
_LFS = b"version https://git-lfs.github.com/spec/"


# Options that name a file to read, never one to write.
_READING_OPTION = re.compile(
    r"--?(data|dataset|train|val|valid|test|eval|input|config|cfg|tokenizer|vocab|weights|manifest|pretrained|annotations?)"
    r"([-_.]?(file|path|csv|json|yaml|cfg|config|data|set|list))*$"
)


def find_missing_paths(
    entry: EntryPoint, context: StaticContext, made: frozenset[str], *, after_others: bool
) -> Iterator[Finding]:
    """Yield findings for missing paths, and for files that are empty or Git LFS pointers.

    A missing path is reported only if no earlier program may have created it. `made`: words of the script's other
    commands, because those may create the paths that they name.
    """
    if entry.contained:
        return
    if not after_others and entry.certain:
        for option, path in list_missing_paths(entry.argv, entry.cwd):
            if path.startswith(context.node_local) or _is_made(path, entry.cwd, made):
                continue
            found = _make_finding(
                entry, context, f"{option} {path}: no such file or directory".strip(), _format_missing_fix(path)
            )
            yield replace(found, severity=Severity.ERROR) if _is_typing_error(option, path) else found
    for option, path in list(list_given_files(entry.argv, entry.cwd))[:_MAX_FILES]:
        if context.left() > 0.1 and (fault := _find_path_fault(path)):
            yield _make_finding(entry, context, f"{option} {path} {fault[0]}".strip(), fault[1])


def _is_made(path: str, cwd: str, made: frozenset[str]) -> bool:
    resolved = (os.path.normpath(os.path.join(cwd, word)) for word in made if "/" in word or "." in word)  # noqa: PTH118
    return any(path == other for other in resolved)


def _is_typing_error(option: str, path: str) -> bool:
    """Return whether a file to read is missing while a file exists whose name differs by a typing error."""
    name = os.path.basename(path)  # noqa: PTH119
    if not _READING_OPTION.match(option) or not re.search(r"\.\w{2,5}$", name):
        return False
    try:
        beside = [e.name for e in os.scandir(Path(path).parent)][:2000]
    except OSError:
        return False
    return any(is_typo(name, other) for other in beside)


def _format_missing_fix(path: str) -> str:
    return f"correct the path{suggest_path(path)}, or ignore this if the job makes it"


def _make_finding(entry: EntryPoint, context: StaticContext, message: str, fix: str) -> Finding:
    return Finding(
        severity=Severity.WARNING,
        message=message,
        file=context.where(entry),
        line=entry.line,
        fix=fix,
        category="incorrect_inputs",
    )


def _find_path_fault(path: str) -> tuple[str, str] | None:
    """Return (what is wrong, the fix); None if nothing is."""
    if not os.access(path, os.R_OK):
        return "cannot be read by you", f"chmod u+r {path}, or ask its owner"
    try:
        with Path(path).open("rb") as stream:
            start = stream.read(64)
    except OSError:
        return None
    if not start and _NEVER_EMPTY.search(path):
        return "is empty", "make it again"
    if start.startswith(_LFS):
        return "is a Git LFS pointer, not the data itself", f"git lfs pull --include={os.path.basename(path)}"  # noqa: PTH119
    return None
