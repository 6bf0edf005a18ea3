"""Report where each configuration key was set, for `slurmwrap config show` (adapter: reads the configuration files)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config.config_errors import list_sections, locate_key
from slurmwrap.config.config_keys import Key, get_value, hide_secret, list_keys
from slurmwrap.config.load_config import Config, Layer, make_variable_name, merge, read_layers
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.nearest_name import find_nearest

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """One source that sets a key: the defaults, a file or an environment variable."""

    origin: str  # "default", "/etc/slurmwrap/config.toml:12" or "SLURMWRAP_PRERUN_STEPS"
    kind: str  # "default" | "site" | "user" | "variable"
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySetting:
    """A key with all sources that set it, the default first; the last one is in force."""

    key: Key
    said: tuple[KeySource, ...]

    @property
    def held(self) -> KeySource:
        """The source whose value is in force."""
        return self.said[-1]

    @property
    def changed(self) -> bool:
        """Whether a file or variable sets the key; its value may still equal the default."""
        return len(self.said) > 1


def list_settings(environ: Mapping[str, str]) -> tuple[KeySetting, ...]:
    """Return all keys with their sources; values that are secret are hidden. Raise ConfigError as `load` does.

    Call `load` first: its message about a wrong key is more precise.
    """
    layers = read_layers(environ)
    kinds = ("site", "user", "variable")
    named = [(layer, kind) for layer, kind in zip(layers, kinds, strict=True) if layer.tables]
    return tuple(
        KeySetting(key=key, said=(_make_default_source(key), *_list_sources(key, named))) for key in list_keys()
    )


def find_unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return a message for each variable that is named like a key's variable but sets no key, with a suggestion."""
    known = {key.variable for key in list_keys()}
    prefixes = tuple(f"{make_variable_name(section)}_" for section in list_sections())
    unknown = sorted(name for name in environ if name.startswith(prefixes) and name not in known)
    return tuple(f"{name} is no key's variable{_suggest_variable(name, known)}" for name in unknown)


def _suggest_variable(name: str, known: set[str]) -> str:
    near = find_nearest(name, known, 0.8)
    return f"; did you mean {near}?" if near else ""


def _make_default_source(key: Key) -> KeySource:
    return KeySource(origin=DEFAULT, kind="default", value=key.default)


def _list_sources(key: Key, named: list[tuple[Layer, str]]) -> Iterator[KeySource]:
    for layer, kind in named:
        tables = _select_key(layer.tables, key)
        if tables:
            origin = locate_key(layer.path, layer.text, key.name) if layer.path else key.variable
            value = hide_secret(key.name, get_value(merge(Config(), tables), key.name))
            yield KeySource(origin=origin, kind=kind, value=value)


def _select_key(tables: Mapping[str, Any], key: Key) -> Mapping[str, Any]:
    """Return the tables reduced to this key; {} if they do not contain it."""
    if not key.section:
        return {key.word: tables[key.word]} if key.word in tables else {}
    section = tables.get(key.section)
    if not isinstance(section, Mapping) or key.word not in section:
        return {}
    return {key.section: {key.word: section[key.word]}}
