"""Reads source files that a traceback names, as the user whose job it is."""

from __future__ import annotations

import os
import stat

_CAP_BYTES = 2_000_000


def read(path: str) -> str | None:
    """The text of a regular file of at most 2 MB; None where it cannot be had."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _CAP_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(_CAP_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
