"""The comments of a record's fields, out of its source: what the JSON schemas say of a field."""

from __future__ import annotations

import inspect
import re
from typing import Any

_FIELD = re.compile(r"^    (\w+): [^#]*(?:#\s*(.+))?$")
_COMMENT = re.compile(r"^    #\s*(.+)$")


def read_field_comments(record: type[Any]) -> dict[str, str]:
    """Field → its comment: the lines directly above it, or else what follows it on its own line."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(record).split("\n"):
        if comment := _COMMENT.match(line):
            above.append(comment[1].strip())
            continue
        field = _FIELD.match(line)
        if field and (above or field[2]):
            comments[field[1]] = " ".join([*above, (field[2] or "").strip()]).strip()
        above = []
    return comments
