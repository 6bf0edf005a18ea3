"""On which line of a configuration file a key stands.

tomllib does not say, so it is asked about ever longer beginnings of the file: the first with the key ends at it.
Exact for whatever TOML allows; only for people's questions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any


def place(path: str, text: str, key: str) -> str:
    """`path:12`, or `path` alone where the line is not known. A key without a line has its table's."""
    lines = find_key_lines(text)
    names = key.split(".")
    known = [".".join(names[:size]) for size in range(len(names), 0, -1)]
    line = next((lines[name] for name in known if name in lines), 0)
    return f"{path}:{line}" if line else path


def find_key_lines(text: str) -> Mapping[str, int]:
    """Dotted key or table → line, from 1. {} for what is no TOML."""
    found: dict[str, int] = {}
    lines, begun = text.splitlines(keepends=True), 0
    for number, line in enumerate(lines, start=1):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        # A value may go on over several lines.
        begun = begun or number
        tables = _parse_toml("".join(lines[:number]))
        if tables is not None:
            for key in _list_keys(tables):
                found.setdefault(key, begun)
            begun = 0
    return found


def _parse_toml(text: str) -> Mapping[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _list_keys(tables: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in tables.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from _list_keys(value, f"{before}{name}.")
