"""Replace a file in one step: a concurrent reader sees the old or the new content, never a part of one (adapter)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

from slurmwrap.escape import utf8


def write_output_file(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write to a path that a user named: replace a file as `replace_file` does, but write into a device or a pipe."""
    if path.exists() and not path.is_file():
        path.write_bytes(_to_bytes(content))
    else:
        replace_file(path, content, mode)


def replace_file(
    path: Path, content: str | bytes | Iterable[str], mode: int | None = None, *, durable: bool = False
) -> None:
    """Write a temporary file and rename it to `path`.

    `content` may be an iterable whose pieces are made while they are written. `mode` None: as the umask says.
    `durable`: the content is on the disk before the function returns. Raises OSError and what making a piece raises;
    the temporary file is removed then.
    """
    # The temporary name must not end in .prom: node_exporter reads all such files, even incomplete ones.
    descriptor, temporary = mkstemp(dir=path.parent, prefix=f".{path.name}."[:200])
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in (content,) if isinstance(content, str | bytes) else content:
                file.write(_to_bytes(piece))
            os.fchmod(file.fileno(), _get_new_mode() if mode is None else mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
        if durable:
            _sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_bytes(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else utf8(content)


def _get_new_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
