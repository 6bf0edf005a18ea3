"""Read simple TOML, as most configuration files are, without `tomllib`, whose import costs every gsub 5 ms.

It supports tables with a one-word name and, one per line, strings without escapes, numbers, true, false, and lists of
such strings. Everything else, and every error, is left to `tomllib`; a property test compares the results of both.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_QUOTES = ('"', "'")
_BOOLEANS = {"true": True, "false": False}


def read(text: str) -> dict[str, Any] | None:
    """Return what `tomllib.loads` would return, or None when only tomllib can read the text."""
    tables: dict[str, Any] = {}
    try:
        table = tables
        for line in text.split("\n"):
            words = line.strip(" ")
            # A tab is not accepted either: within a string it is a character, elsewhere it is white space.
            _require(words.isprintable())
            if words.startswith("["):
                table = _add_key(tables, _parse_header(words), {})
            elif words and not words.startswith("#"):
                name, equals, value = words.partition("=")
                _require(bool(equals))
                _add_key(table, name, _parse_value(value.strip(" ")))
    except ValueError:
        return None
    return tables


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _parse_header(text: str) -> str:
    text = _before_comment(text)
    _require(text.endswith("]"))
    return text[1:-1]


def _add_key(table: dict[str, Any], name: str, value: Any) -> Any:
    """Add a key to the table: letters, digits, "_" and "-" only, and not in the table yet. ValueError otherwise."""
    name = name.strip()
    _require(name.isascii() and name.replace("_", "").replace("-", "").isalnum() and name not in table)
    table[name] = value
    return value


def _before_comment(text: str) -> str:
    return text.partition("#")[0].rstrip()


def _parse_value(words: str) -> Any:
    if words.startswith(_QUOTES):
        text, rest = _parse_string(words)
        _require(not _before_comment(rest))
        return text
    if words.startswith("["):
        return _parse_strings(words[1:].lstrip())
    words = _before_comment(words)
    return _BOOLEANS[words] if words in _BOOLEANS else _parse_number(words)


def _parse_string(line: str) -> tuple[str, str]:
    """Return a string without escapes and without its quotes, and the rest of the line."""
    _require(line.startswith(_QUOTES))
    text, closing, rest = line[1:].partition(line[0])
    _require(bool(closing) and "\\" not in text)
    return text, rest.lstrip()


def _parse_strings(rest_of_line: str) -> list[str]:
    found = []
    while not rest_of_line.startswith("]"):
        text, rest = _parse_string(rest_of_line)
        found.append(text)
        _require(rest.startswith((",", "]")))
        rest_of_line = rest.removeprefix(",").lstrip()
    _require(not _before_comment(rest_of_line[1:].lstrip()))
    return found


def _parse_number(text: str) -> int | float:
    integer_part, point, fraction = text.removeprefix("-").partition(".")
    _require(
        _are_digits(integer_part)
        and (integer_part == "0" or not integer_part.startswith("0"))
        and (not point or _are_digits(fraction))
    )
    return float(text) if point else int(text)


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()
