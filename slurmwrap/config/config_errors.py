"""What an error in a configuration file needs: the line of a key, and the key that was probably meant."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_sections import RULES, Config
from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.nearest_name import find_nearest


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


# Of difflib's ratio: what is less alike would only be a guess.
_ALIKE = 0.75


def suggest_key(key: str) -> str:
    """`; did you mean 'nodes.window_days'?`, or "" where nothing is near."""
    section, _, name = key.rpartition(".")
    known = list_sections()
    if section in known:
        return _format_suggestion(find_nearest(name, known[section]) or _find_in_other_section(name))
    # Only where a table is in a table.
    if section:
        return _format_suggestion(_find_in_other_section(name))
    return _format_suggestion(
        _find_in_other_section(name, exactly=True)
        or find_nearest(name, [*known, "slurm_timeout_s"])
        or _find_in_other_section(name)
    )


def list_sections() -> dict[str, tuple[str, ...]]:
    """Section → its keys."""
    default = Config()
    found = {
        one.name: tuple(key.name for key in fields(value))
        for one in fields(default)
        if is_dataclass(value := getattr(default, one.name))
    }
    return found | {"rules": RULES}


def _find_in_other_section(name: str, *, exactly: bool = False) -> str:
    """The key of this name that stands somewhere else; of several those first that need no second guess."""
    if name == "slurm_timeout_s":
        return "slurm_timeout_s, which stands above the first [section]"
    places = {
        name: [section for section, names in list_sections().items() if name in names] for name in _list_all_names()
    }
    near = name if name in places else "" if exactly else find_nearest(name, places, _ALIKE)
    return " or ".join(f"{section}.{near}" for section in places[near]) if near else ""


def _list_all_names() -> set[str]:
    return {name for names in list_sections().values() for name in names}


def _format_suggestion(what: str) -> str:
    if not what:
        return "; `slurmwrap config show` lists the keys"
    name, comma, rest = what.partition(",")
    quoted = " or ".join(f"'{one}'" for one in name.split(" or "))
    return f"; did you mean {quoted}{comma}{rest}?"
