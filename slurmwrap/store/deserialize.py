"""Turns the JSON types of store/serialize.py back into records. Pure; standard library only.

Strict about types and numbers (a record may come from a user's spool), and tolerant about versions: unknown keys are
ignored, missing ones take the field's default.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from functools import cache, lru_cache
from math import isfinite
from os import PathLike

from slurmwrap.fast_dataclasses import MISSING, Field, fields, is_dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")
    # (JSON value, "Record.field" for the message) -> the field's value
    Reader = Callable[[Any, str], Any]

# What an SQLite column holds.
_INT64 = 2**63


def record_from_json(cls: type[T], plain: Mapping[str, Any]) -> T:
    """Return the record of `cls` that `to_json_dict` made `plain` of. ValueError names the field."""
    record: T = _record(cls, plain, cls.__name__)
    return record


def _record(cls: Any, plain: Any, where: str) -> Any:
    if not isinstance(plain, Mapping):
        raise _make_type_error(where, plain, "an object")
    known, needed = _list_fields(cls)
    places = _name_places(cls, where)
    values = {name: read(plain[name], places[name]) for name, read in known.items() if name in plain}
    for name in needed:
        if name not in values:
            raise ValueError(f"{where}.{name} is missing")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        # A record that checks itself in __post_init__.
        raise ValueError(f"{where}: {error}") from error


@cache
def _list_fields(cls: Hashable) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """(readers by field, fields without a default)."""
    record: Any = cls
    known = [field for field in fields(record) if field.init]
    needed = tuple(f.name for f in known if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: make_reader(_resolve_type(f, record.__module__)) for f in known}, needed


# `where` may hold indexes and names of a user
@lru_cache(maxsize=1024)
def _name_places(cls: Hashable, where: str) -> dict[str, str]:
    """What messages call each field: made once, not of every record of a report."""
    return {name: f"{where}.{name}" for name in _list_fields(cls)[0]}


def _resolve_type(field: Field[Any], module: str) -> Any:
    """What `typing.get_type_hints` makes of one of our annotations, without typing, whose import costs gsub 2 ms."""
    if not isinstance(field.type, str):
        return field.type
    # A line of our own source.
    return eval(field.type, vars(sys.modules[module]), {"Any": object})


@cache
def make_reader(kind: Any) -> Reader:
    """The function that reads JSON values of the annotated type `kind`."""
    origin, arguments = getattr(kind, "__origin__", None), getattr(kind, "__args__", ())
    if isinstance(kind, types.UnionType):
        return _make_union_reader(arguments)
    if origin in (tuple, list, frozenset, set):
        return _make_sequence_reader(origin, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _make_mapping_reader(arguments)
    if isinstance(kind, type):
        return _make_scalar_reader(kind)
    return _read_anything


def _make_scalar_reader(kind: type[Any]) -> Reader:
    if is_dataclass(kind):
        return lambda value, where: _record(kind, value, where)
    if issubclass(kind, Enum):
        return lambda value, where: _read_enum(kind, value, where)
    # A Path: no other field is one.
    if issubclass(kind, PathLike):
        path: Any = kind
        return lambda value, where: path(_read_text(value, where))
    return _SCALARS.get(kind, _read_anything)


def _make_union_reader(arguments: tuple[Any, ...]) -> Reader:
    optional = type(None) in arguments
    readers = [make_reader(argument) for argument in arguments if argument is not type(None)]

    def read(value: Any, where: str) -> Any:
        if value is None and optional:
            return None
        for one in readers[:-1]:
            try:
                return one(value, where)
            except ValueError:
                continue
        return readers[-1](value, where)

    return read


def _make_sequence_reader(origin: type[Any], arguments: tuple[Any, ...]) -> Reader:
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _make_tuple_reader(arguments)
    item = make_reader(arguments[0]) if arguments else _read_anything

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _make_type_error(where, value, "a list")
        return origin(item(one, f"{where}[{index}]") for index, one in enumerate(value))

    return read


def _make_tuple_reader(arguments: tuple[Any, ...]) -> Reader:
    readers = [make_reader(argument) for argument in arguments]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _make_type_error(where, value, f"a list of {len(readers)}")
        return tuple(one(item, f"{where}[{i}]") for i, (one, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _make_mapping_reader(arguments: tuple[Any, ...]) -> Reader:
    item = make_reader(arguments[1]) if len(arguments) == 2 else _read_anything
    key = make_reader(arguments[0]) if arguments and arguments[0] is not int else _read_int_key

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _make_type_error(where, value, "an object")
        return {key(name, where): item(one, f"{where}.{name}") for name, one in value.items()}

    return read


def _read_int_key(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise _make_type_error(where, value, "a whole number") from None


def _read_enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise _make_type_error(where, value, f"one of {', '.join(str(member.value) for member in kind)}") from None


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _make_type_error(where, value, "text")
    return value


def _read_int(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _make_type_error(where, value, "a whole number")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{where}: a whole number of more than 64 bits")
    return value


def _read_float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _make_type_error(where, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise ValueError(f"{where}: not a finite number")
    return number


def _read_bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _make_type_error(where, value, "true or false")
    return value


def _read_bytes(value: Any, where: str) -> bytes:
    try:
        from base64 import b64decode

        return b64decode(_read_text(value, where), validate=True)
    except ValueError:
        raise _make_type_error(where, value, "base64") from None


def _read_anything(value: Any, where: str) -> Any:
    return value


_SCALARS: dict[type[Any], Reader] = {
    str: _read_text,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    bytes: _read_bytes,
}


def _make_type_error(where: str, value: Any, wanted: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{where}: {shown if len(shown) <= 60 else shown[:57] + '...'} is not {wanted}")
