"""Edge: a file replaced at once: who reads it meanwhile sees the old one or the new one, never half of either."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

from slurmwrap.escape import utf8


def write_output_file(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """As `replace`, for a path that someone named: a device or a pipe is written to instead."""
    if path.exists() and not path.is_file():
        path.write_bytes(_to_bytes(content))
    else:
        replace_file(path, content, mode)


def replace_file(path: Path, content: str | bytes | Iterable[str], mode: int | None = None) -> None:
    """Writes aside, and renames. `content`: also pieces that are made while they are written. `mode`: of the file;
    None: as the umask says. OSError, and what making a piece raises; then nothing is left aside."""
    # No ending of its own: node_exporter reads all that ends in .prom, also half of it.
    descriptor, aside = mkstemp(dir=path.parent, prefix=f".{path.name}."[:200])
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in (content,) if isinstance(content, str | bytes) else content:
                file.write(_to_bytes(piece))
            os.fchmod(file.fileno(), _get_new_mode() if mode is None else mode)
        Path(aside).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(aside).unlink()
        raise


def _to_bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else utf8(content)


def _get_new_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
