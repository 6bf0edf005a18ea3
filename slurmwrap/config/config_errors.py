"""Details for messages about configuration errors: the line of a key, and the key that was probably meant. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_defaults import RULES, Config
from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.nearest_name import find_nearest


def locate_key(path: str, text: str, key: str) -> str:
    """Return where a key is set: `path:12`, or `path` alone if the line is not known.

    If the key has no line of its own, the line of its table is used.
    """
    lines = find_key_lines(text)
    names = key.split(".")
    known = [".".join(names[:size]) for size in range(len(names), 0, -1)]
    line = next((lines[name] for name in known if name in lines), 0)
    return f"{path}:{line}" if line else path


def find_key_lines(text: str) -> Mapping[str, int]:
    """Return the line (from 1) of each dotted key and each table; {} if the text is not TOML.

    tomllib does not report the lines of keys. So the text is parsed again with each further line: the keys that a line
    adds belong to the line where its statement began.
    """
    found: dict[str, int] = {}
    lines, begun = text.splitlines(keepends=True), 0
    for number, line in enumerate(lines, start=1):
        if not begun and (not line.strip() or line.lstrip().startswith("#")):
            continue
        # A value may continue over several lines: the statement began at the first of them.
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


# Smallest ratio of difflib for a suggestion from another section; less similar names would only be guesses.
_MIN_SIMILARITY = 0.75


def suggest_key(key: str) -> str:
    """Return `; did you mean 'nodes.window_days'?`, or a hint at `slurmwrap config show` if no key is similar."""
    section, _, name = key.rpartition(".")
    known = list_sections()
    if section in known:
        return _format_suggestion(find_nearest(name, known[section]) or _find_in_other_section(name))
    # The section is unknown, or the key is in a table inside a table.
    if section:
        return _format_suggestion(_find_in_other_section(name))
    return _format_suggestion(
        _find_in_other_section(name, exactly=True)
        or find_nearest(name, [*known, "slurm_timeout_s"])
        or _find_in_other_section(name)
    )


def list_sections() -> dict[str, tuple[str, ...]]:
    """Return the keys of each section."""
    default = Config()
    found = {
        one.name: tuple(key.name for key in fields(value))
        for one in fields(default)
        if is_dataclass(value := getattr(default, one.name))
    }
    return found | {"rules": RULES}


def _find_in_other_section(name: str, *, exactly: bool = False) -> str:
    """Return the full names of the keys in other sections that are called `name` or, unless `exactly`, similarly.

    "" if there is none. An equal name is preferred to a similar one.
    """
    if name == "slurm_timeout_s":
        return "slurm_timeout_s, which belongs above the first [section]"
    sections_of = {
        name: [section for section, names in list_sections().items() if name in names] for name in _list_all_names()
    }
    near = name if name in sections_of else "" if exactly else find_nearest(name, sections_of, _MIN_SIMILARITY)
    return " or ".join(f"{section}.{near}" for section in sections_of[near]) if near else ""


def _list_all_names() -> set[str]:
    return {name for names in list_sections().values() for name in names}


def _format_suggestion(what: str) -> str:
    if not what:
        return "; `slurmwrap config show` lists the keys"
    name, comma, rest = what.partition(",")
    quoted = " or ".join(f"'{one}'" for one in name.split(" or "))
    return f"; did you mean {quoted}{comma}{rest}?"
