"""What may have been meant by a key that does not exist: a slip of the pen, another section's key, a key in no section.
Pure; for people's mistakes only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from slurmwrap.config.config_sections import RULES, Config
from slurmwrap.fast_dataclasses import fields, is_dataclass

_ALIKE = 0.75  # of difflib's ratio: what is less alike would only be a guess


def suggested(key: str) -> str:
    """`; did you mean 'nodes.window_days'?`, or "" where nothing is near."""
    section, _, name = key.rpartition(".")
    known = sections()
    if section in known:
        return _meant(_nearest(name, known[section]) or _elsewhere(name))
    if section:  # only where a table stands in a table
        return _meant(_elsewhere(name))
    return _meant(_elsewhere(name, exactly=True) or _nearest(name, [*known, "slurm_timeout_s"]) or _elsewhere(name))


def sections() -> dict[str, tuple[str, ...]]:
    """Section → its keys."""
    default = Config()
    found = {
        one.name: tuple(key.name for key in fields(value))
        for one in fields(default)
        if is_dataclass(value := getattr(default, one.name))
    }
    return found | {"rules": RULES}


def _elsewhere(name: str, *, exactly: bool = False) -> str:
    """The key of this name that stands somewhere else; of several those first that need no second guess."""
    if name == "slurm_timeout_s":
        return "slurm_timeout_s, which stands above the first [section]"
    places = {name: [section for section, names in sections().items() if name in names] for name in _all_names()}
    near = name if name in places else "" if exactly else _nearest(name, places, _ALIKE)
    return " or ".join(f"{section}.{near}" for section in places[near]) if near else ""


def _all_names() -> set[str]:
    return {name for names in sections().values() for name in names}


def _nearest(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=alike)
    return close[0] if close else ""


def _meant(what: str) -> str:
    if not what:
        return "; `slurmwrap config show` lists the keys"
    name, comma, rest = what.partition(",")
    quoted = " or ".join(f"'{one}'" for one in name.split(" or "))
    return f"; did you mean {quoted}{comma}{rest}?"
