"""Find mount points of this machine in its mount table (proc(5), /proc/self/mounts; format in fstab(5)) (adapter).

Only the table is read. A path comes from a user's log and may be on a file system that hangs, so it is never accessed.
"""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def find_mount_point(path: str, table: Path = TABLE) -> str:
    """Return the longest mount point below "/" that contains `path`; "" if there is none or no mount table."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    points = (_parse_mount_point(line) for line in text.splitlines())
    return max((p for p in points if len(p) > 1 and (path == p or path.startswith(f"{p}/"))), key=len, default="")


def _parse_mount_point(line: str) -> str:
    """Return the second field of a line; a blank in it is written as \\040."""
    fields = line.split(" ")
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[1]) if len(fields) > 1 else ""
