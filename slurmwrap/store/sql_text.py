"""Text that SQLite can store. Apart from record_rows.py, because gsub mostly finds no row and needs no record."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def dump(value: Any) -> str:
    """Return JSON text that SQLite can store: UTF-8, but ASCII escapes if a path's invalid bytes became surrogates."""
    if not value and isinstance(value, dict | list):  # most of them
        return "[]" if isinstance(value, list) else "{}"
    text = _READABLE.encode(value)
    return text if _is_encodable(text) else _ESCAPED.encode(value)


_READABLE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ESCAPED = json.JSONEncoder(separators=(",", ":"))


def encode_sql_text(text: str) -> str | bytes:
    """Return text as SQLite can store it: as bytes if it has surrogates from an invalid path, which TEXT refuses."""
    return text if _is_encodable(text) else text.encode("utf-8", "surrogatepass")


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
