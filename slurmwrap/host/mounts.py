"""Edge: the mount points of this machine, out of its own table (proc(5), /proc/self/mounts; fstab(5) for its format).

Only the table is read. A path comes out of a user's log, and may lie on a file system that hangs: it is never touched.
"""

from __future__ import annotations

import re
from pathlib import Path

TABLE = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mount_of(path: str, table: Path = TABLE) -> str:
    """The longest mount point below "/" that `path` lies on; "" for none, or where there is no table."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    points = (_parse_mount_point(line) for line in text.splitlines())
    return max((p for p in points if len(p) > 1 and (path == p or path.startswith(f"{p}/"))), key=len, default="")


def _parse_mount_point(line: str) -> str:
    """The second field of a line; a blank in it is written \\040."""
    words = line.split(" ")
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[1]) if len(words) > 1 else ""
