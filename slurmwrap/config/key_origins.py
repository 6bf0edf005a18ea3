"""Who set each key: `slurmwrap config show`. Reads what `load` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_errors import list_sections, place
from slurmwrap.config.config_keys import Key, get_value, list_keys
from slurmwrap.config.load_config import Config, Layer, make_variable_name, merge, read_layers
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.nearest_name import find_nearest

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """One place that says something about a key."""

    origin: str  # "default", "/etc/slurmwrap/config.toml:12" or "SLURMWRAP_PRERUN_STEPS"
    # Default, site, user or variable.
    kind: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySetting:
    """A key with all that was said of it: the last one holds."""

    key: Key
    said: tuple[KeySource, ...]

    @property
    def held(self) -> KeySource:
        """What is in force."""
        return self.said[-1]

    @property
    def changed(self) -> bool:
        """Whether anybody said anything; the value may be the default all the same."""
        return len(self.said) > 1


def list_settings(environ: Mapping[str, str]) -> tuple[KeySetting, ...]:
    """All keys. ConfigError as `load` raises it; call that first, for its words about a wrong key."""
    read = read_layers(environ)
    kinds = ("site", "user", "variable")
    named = [(layer, kind) for layer, kind in zip(read, kinds, strict=True) if layer.tables]
    return tuple(
        KeySetting(key=key, said=(_make_default_source(key), *_list_sources(key, named))) for key in list_keys()
    )


def find_unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like a key's and are none, each with what may have been meant."""
    known = {key.variable for key in list_keys()}
    begins = tuple(f"{make_variable_name(section)}_" for section in list_sections())
    odd = sorted(name for name in environ if name.startswith(begins) and name not in known)
    return tuple(f"{name} is no key's variable{_suggest_variable(name, known)}" for name in odd)


def _suggest_variable(name: str, known: set[str]) -> str:
    near = find_nearest(name, known, 0.8)
    return f"; did you mean {near}?" if near else ""


def _make_default_source(key: Key) -> KeySource:
    return KeySource(origin=DEFAULT, kind="default", value=key.default)


def _list_sources(key: Key, named: list[tuple[Layer, str]]) -> Iterator[KeySource]:
    for layer, kind in named:
        tables = _select_key(layer.tables, key)
        if tables:
            origin = place(layer.path, layer.text, key.name) if layer.path else key.variable
            yield KeySource(origin=origin, kind=kind, value=get_value(merge(Config(), tables), key.name))


def _select_key(tables: Mapping[str, Any], key: Key) -> Mapping[str, Any]:
    """The tables with this key alone; {} where they do not have it."""
    if not key.section:
        return {key.word: tables[key.word]} if key.word in tables else {}
    section = tables.get(key.section)
    if not isinstance(section, Mapping) or key.word not in section:
        return {}
    return {key.section: {key.word: section[key.word]}}
