"""What may have been meant by a key that does not exist: a slip of the pen, another section's key, a key in no section.
Pure; for people's mistakes only.
"""

from __future__ import annotations

from slurmwrap.config.config_sections import RULES, Config
from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.nearest_name import find_nearest

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
