"""The TOML that configuration files are mostly written in, without `tomllib`, whose import costs every gsub 5 ms.

Tables by a name of one word; in a line each a text without escapes, a number, true or false, or a list of such texts.
For all else, and for whatever is wrong, `tomllib` has the say: a property test holds both to one answer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_QUOTES = ('"', "'")
_WORDS = {"true": True, "false": False}


def read(text: str) -> dict[str, Any] | None:
    """What `tomllib.loads` makes of it, or None: only tomllib can say."""
    tables: dict[str, Any] = {}
    try:
        table = tables
        for line in text.split("\n"):
            words = line.strip(" ")
            # No tab either: in a text it is one, outside it is a space.
            _must(words.isprintable())
            if words.startswith("["):
                table = _new(tables, _header(words), {})
            elif words and not words.startswith("#"):
                name, equals, value = words.partition("=")
                _must(bool(equals))
                _new(table, name, _value(value.strip(" ")))
    except ValueError:
        return None
    return tables


def _must(holds: bool) -> None:
    if not holds:
        raise ValueError


def _header(words: str) -> str:
    words = _before_comment(words)
    _must(words.endswith("]"))
    return words[1:-1]


def _new(table: dict[str, Any], name: str, value: Any) -> Any:
    """A name of letters, digits, "_" and "-" that the table does not have yet."""
    name = name.strip()
    _must(name.isascii() and name.replace("_", "").replace("-", "").isalnum() and name not in table)
    table[name] = value
    return value


def _before_comment(words: str) -> str:
    return words.partition("#")[0].rstrip()


def _value(words: str) -> Any:
    if words.startswith(_QUOTES):
        text, rest = _text(words)
        _must(not _before_comment(rest))
        return text
    if words.startswith("["):
        return _texts(words[1:].lstrip())
    words = _before_comment(words)
    return _WORDS[words] if words in _WORDS else _number(words)


def _text(words: str) -> tuple[str, str]:
    """(a text without quotes and escapes, what follows it)."""
    _must(words.startswith(_QUOTES))
    text, closing, rest = words[1:].partition(words[0])
    _must(bool(closing) and "\\" not in text)
    return text, rest.lstrip()


def _texts(words: str) -> list[str]:
    found = []
    while not words.startswith("]"):
        text, rest = _text(words)
        found.append(text)
        _must(rest.startswith((",", "]")))
        words = rest.removeprefix(",").lstrip()
    _must(not _before_comment(words[1:].lstrip()))
    return found


def _number(words: str) -> int | float:
    whole, point, fraction = words.removeprefix("-").partition(".")
    _must(_digits(whole) and (whole == "0" or not whole.startswith("0")) and (not point or _digits(fraction)))
    return float(words) if point else int(words)


def _digits(words: str) -> bool:
    return words.isascii() and words.isdecimal()
