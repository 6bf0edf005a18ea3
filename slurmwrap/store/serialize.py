"""Convert records to JSON types; deserialize.py converts them back. Pure; standard library only, used by every gsub.

Frozen dataclasses become dicts; tuples and frozensets lists; enums their values; paths text; bytes base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from os import PathLike

from slurmwrap.fast_dataclasses import fields, is_dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def to_json_dict(record: Any) -> dict[str, Any]:
    """Convert a record to a dict of JSON types, which `record_from_json` converts back. TypeError for anything else."""
    if not is_dataclass(record) or isinstance(record, type):
        raise TypeError(f"{type(record).__name__} is not a record")
    plain: dict[str, Any] = {}
    for name in _list_field_names(type(record)):
        value = getattr(record, name)
        plain[name] = value if type(value) in _SCALARS else to_json_value(value)
    return plain


_SCALARS = frozenset({type(None), bool, int, float, str})


@cache
def _list_field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def to_json_value(value: Any) -> Any:
    """Convert any value of a record's field to JSON types."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is dict:
        return {_format_key(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, str | int | float) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_json_value(item) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(to_json_value(item) for item in value)
    if isinstance(value, Mapping):
        return {_format_key(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, bytes):
        from base64 import b64encode  # few records hold bytes

        return b64encode(value).decode("ascii")
    if isinstance(value, PathLike):
        return str(value)
    return to_json_dict(value)


def _format_key(key: Any) -> str:
    return key if type(key) is str else str(to_json_value(key))
