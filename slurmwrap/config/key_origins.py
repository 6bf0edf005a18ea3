"""Who set each key: `slurmwrap config show`. Reads what `load` reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from slurmwrap.config import Config, Layer, layers, merge, variable
from slurmwrap.config.config_keys import Key, keys, value_of
from slurmwrap.config.key_lines import place
from slurmwrap.config.suggest_key import sections
from slurmwrap.fast_dataclasses import dataclass

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySource:
    """One place that says something about a key."""

    origin: str  # "default", "/etc/slurmwrap/config.toml:12" or "SLURMWRAP_PRERUN_STEPS"
    kind: str  # default, site, user or variable
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


def settings(environ: Mapping[str, str]) -> tuple[KeySetting, ...]:
    """All keys. ConfigError as `load` raises it; call that first, for its words about a wrong key."""
    read = layers(environ)
    kinds = ("site", "user", "variable")
    named = [(layer, kind) for layer, kind in zip(read, kinds, strict=True) if layer.tables]
    return tuple(KeySetting(key=key, said=(_default(key), *_said(key, named))) for key in keys())


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like a key's and are none, each with what may have been meant."""
    known = {key.variable for key in keys()}
    begins = tuple(f"{variable(section)}_" for section in sections())
    odd = sorted(name for name in environ if name.startswith(begins) and name not in known)
    return tuple(f"{name} is no key's variable{_meant(name, known)}" for name in odd)


def _meant(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""


def _default(key: Key) -> KeySource:
    return KeySource(origin=DEFAULT, kind="default", value=key.default)


def _said(key: Key, named: list[tuple[Layer, str]]) -> Iterator[KeySource]:
    for layer, kind in named:
        tables = _of_key(layer.tables, key)
        if tables:
            origin = place(layer.path, layer.text, key.name) if layer.path else key.variable
            yield KeySource(origin=origin, kind=kind, value=value_of(merge(Config(), tables), key.name))


def _of_key(tables: Mapping[str, Any], key: Key) -> Mapping[str, Any]:
    """The tables with this key alone; {} where they do not have it."""
    if not key.section:
        return {key.word: tables[key.word]} if key.word in tables else {}
    section = tables.get(key.section)
    if not isinstance(section, Mapping) or key.word not in section:
        return {}
    return {key.section: {key.word: section[key.word]}}
