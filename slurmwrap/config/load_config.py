"""Load the configuration: defaults < site file < user file < SLURMWRAP_* variables (adapter: reads the two files).

Site file: $SLURMWRAP_CONFIG, else /etc/slurmwrap/config.toml. User file: $XDG_CONFIG_HOME/slurmwrap/config.toml.
The variable SLURMWRAP_SECTION_NAME sets the key `section.name`. An unknown key or a harmful value is an error that
names the file and the line. Root and SlurmUser refuse a file that others may write.

config_paths.py finds the files, config_defaults.py defines the keys and their bounds. gsub does not load the other
modules of the package, which explain and check: config_keys.py describes each key, key_origins.py reports where each
value was set, config_check.py finds the mistakes of a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from slurmwrap import plain_toml
from slurmwrap.config.config_defaults import (
    BOUNDS,
    CHOICES,
    RULES,
    SECRETS,
    Config,
    Diagnosing,
    Incidents,
    Limit,
    LogSection,
    Mail,
    Metrics,
    Nodes,
    Notify,
    Order,
    Pack,
    Placement,
    Prerun,
    Report,
    Retention,
    Retry,
    ShareSection,
    SiteSection,
    SlurmAccess,
    Submit,
    Tuning,
)
from slurmwrap.config.config_paths import (
    find_other_writers,
    find_site_file,
    find_site_file_name,
    find_state_dir,
    find_user_file,
    find_user_file_name,
    find_user_state_dir,
    is_site_process,
)
from slurmwrap.errors import ConfigError
from slurmwrap.fast_dataclasses import dataclass, fields, is_dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "BOUNDS",
    "CHOICES",
    "RULES",
    "Config",
    "Diagnosing",
    "Incidents",
    "Layer",
    "Limit",
    "LogSection",
    "Mail",
    "Metrics",
    "Nodes",
    "Notify",
    "Order",
    "Pack",
    "Placement",
    "Prerun",
    "Report",
    "Retention",
    "Retry",
    "ShareSection",
    "SiteSection",
    "SlurmAccess",
    "Submit",
    "Tuning",
    "WrongKey",
    "find_site_file",
    "find_state_dir",
    "find_user_file",
    "find_user_state_dir",
    "load",
    "make_variable_name",
    "merge",
    "parse_config",
    "read_layers",
]


class WrongKey(ConfigError):
    """A key that does not exist or has an invalid value. The message names no file: only `load` knows the file."""

    def __init__(self, key: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The keys of one source: a file or the environment. `path` and `text` are "" for the environment."""

    tables: Mapping[str, Any]
    path: str = ""
    text: str = ""
    # Why other users may have written the file; "" if none can.
    others: str = ""


def load(environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration in force. Raise ConfigError, which names the file and line or the variable, and the key.

    All layers are merged before the owners of the files are checked, since the configuration itself names SlurmUser.
    """
    config, layers = Config(), read_layers(environ)
    for layer in layers:
        try:
            config = merge(config, layer.tables)
        except WrongKey as wrong:
            raise ConfigError(f"{_describe_origin(layer, wrong.key)}: {wrong}", hint=wrong.hint) from None
    for layer in layers:
        if layer.others and is_site_process(config):
            raise ConfigError(
                f"{layer.path}: {layer.others}, but root and SlurmUser act on its contents",
                hint=f"check that no one changed it, then: chown root: {layer.path}; chmod 644 {layer.path}",
            )
    return config


def read_layers(environ: Mapping[str, str]) -> tuple[Layer, ...]:
    """Return the layers that override the defaults; later ones override earlier ones.

    Raise ConfigError for a file that is not TOML or cannot be read.
    """
    return (
        _read_layer(find_site_file_name(environ)),
        _read_layer(find_user_file_name(environ)),
        Layer(tables=_read_environment(environ)),
    )


def merge(config: Config, tables: Mapping[str, Any], origin: str = "") -> Config:
    """Return `config` with the values of `tables`. Raise WrongKey, with `origin` before its message if it is given."""
    try:
        for section, value in tables.items():
            config = _merge_section(config, section, value)
    except WrongKey as wrong:
        raise WrongKey(wrong.key, f"{origin}: {wrong}", hint=wrong.hint) if origin else wrong from None
    return config


def _read_layer(path: str) -> Layer:
    try:
        with open(path, encoding="utf-8") as file:
            text, others = file.read(), find_other_writers(os.fstat(file.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return Layer(tables={}, path=path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return Layer(tables=parse_config(text, path), path=path, text=text, others=others)


def parse_config(text: str, path: str) -> Mapping[str, Any]:
    """Return the tables of a file's text. Raise ConfigError, which names `path`, if the text is not TOML.

    The small parser of plain_toml is tried first: gsub need not import tomllib then.
    """
    if (tables := plain_toml.read(text)) is not None:
        return tables
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _describe_origin(layer: Layer, key: str) -> str:
    from slurmwrap.config.config_errors import locate_key

    return locate_key(layer.path, layer.text, key) if layer.path else make_variable_name(key)


def make_variable_name(key: str) -> str:
    """Return the environment variable that sets a key: SLURMWRAP_PRERUN_STEPS for prerun.steps."""
    return f"SLURMWRAP_{key.replace('.', '_')}".upper()


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    default = Config()
    keys = {
        name: _list_field_names(value)
        for name in _list_field_names(default)
        if is_dataclass(value := getattr(default, name))
    }
    tables: dict[str, Any] = {}
    for section, names in {**keys, "rules": RULES}.items():
        for key in names:
            value = environ.get(f"SLURMWRAP_{section}_{key}".upper())
            if value is not None:
                tables.setdefault(section, {})[key] = value
    if "SLURMWRAP_SLURM_TIMEOUT_S" in environ:
        tables["slurm_timeout_s"] = environ["SLURMWRAP_SLURM_TIMEOUT_S"]
    return tables


def _merge_section(config: Config, section: str, value: Any) -> Config:
    current = getattr(config, section, None) if section in _list_field_names(config) else None
    if current is None:
        raise _make_unknown_key_error(section, f"unknown key '{section}'")
    if section == "rules":
        return replace(config, rules={**config.rules, **_check_rules(value)})
    if isinstance(current, float):
        return replace(config, **{section: _check_value(section, _convert(current, value, section))})
    return replace(config, **{section: _merge_record(current, value, section)})


def _merge_record(current: Any, table: Any, section: str) -> Any:
    _require_table(table, section)
    known = _list_field_names(current)
    for key in table:
        if key not in known:
            raise _make_unknown_key_error(f"{section}.{key}", f"{section}.{key}: unknown key")
    names = {key: f"{section}.{key}" for key in table}
    values = {key: _convert(getattr(current, key), value, names[key]) for key, value in table.items()}
    return replace(current, **{key: _check_value(names[key], value) for key, value in values.items()})


def _check_rules(table: Any) -> dict[str, str]:
    _require_table(table, "rules")
    for rule, mode in table.items():
        if rule not in RULES:
            raise _make_unknown_key_error(f"rules.{rule}", f"rules.{rule}: unknown rule")
        _check_value(f"rules.{rule}", mode)
    return dict(table)


def _require_table(table: Any, section: str) -> None:
    if not isinstance(table, Mapping):
        raise WrongKey(section, f"{section} must be a table", hint=f"write [{section}] and its keys below it")


def _make_unknown_key_error(key: str, message: str) -> WrongKey:
    from slurmwrap.config.config_errors import suggest_key

    return WrongKey(key, f"{message}{suggest_key(key)}")


def _check_value(name: str, value: Any) -> Any:
    """Return `value` if it is within the key's bounds and among its choices; raise WrongKey otherwise."""
    least, most = BOUNDS.get(name, (-math.inf, math.inf))
    # NaN compares false and is refused, too.
    if isinstance(value, int | float) and not least <= value <= most:
        raise WrongKey(name, f"{name} must be from {least:g} to {most:g}, not {value:g}")
    choices = CHOICES.get(name)
    if choices and value not in choices:
        raise WrongKey(name, f"{name} must be one of {', '.join(choices)}, not '{value}'")
    return value


def _convert(current: Any, value: Any, name: str) -> Any:
    """Return `value` in the type of the key's current value; raise WrongKey if it cannot be converted.

    Environment variables are text, so text is converted to numbers, booleans and tuples; a fraction is never cut.
    """
    kind = type(current)
    try:
        if kind is bool:
            return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
        if kind is tuple:
            return _parse_texts(value)
        if isinstance(value, bool | list | Mapping) or (kind is int and isinstance(value, float)):
            raise ValueError
        return kind(value)
    except (KeyError, ValueError, TypeError):
        shown = "its value" if name in SECRETS else f"'{value}'"
        raise WrongKey(name, f"{name}: {shown} is not {NOUNS.get(kind, 'text')}") from None


NOUNS: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _parse_texts(value: Any) -> tuple[str, ...]:
    """Return the strings of a list, or of a comma-separated environment variable. Raise ValueError for other values."""
    found = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError
    return tuple(one for one in found if one)


def _list_field_names(record: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))
