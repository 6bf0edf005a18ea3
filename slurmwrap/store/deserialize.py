"""Convert the JSON types of store/serialize.py back into records. Pure; standard library only.

Types and numbers are checked strictly, because a record may come from a user's spool. Versions are tolerated: unknown
keys are ignored, and missing keys get the field's default.
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

# Limit of an integer in an SQLite column.
_INT64 = 2**63


def record_from_json(cls: type[T], plain: Mapping[str, Any]) -> T:
    """Return the record of `cls` from which `to_json_dict` made `plain`. ValueError names the field."""
    record: T = _build_record(cls, plain, cls.__name__)
    return record


def _build_record(cls: Any, plain: Any, where: str) -> Any:
    if not isinstance(plain, Mapping):
        raise _make_type_error(where, plain, "an object")
    readers, needed = _list_fields(cls)
    field_names = _name_places(cls, where)
    values = {name: read(plain[name], field_names[name]) for name, read in readers.items() if name in plain}
    for name in needed:
        if name not in values:
            raise ValueError(f"{where}.{name} is missing")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        # Raised by a record that checks itself in __post_init__.
        raise ValueError(f"{where}: {error}") from error


@cache
def _list_fields(cls: Hashable) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """Return the readers by field name, and the names of fields without a default."""
    record: Any = cls
    init_fields = [field for field in fields(record) if field.init]
    needed = tuple(f.name for f in init_fields if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: make_reader(_resolve_type(f, record.__module__)) for f in init_fields}, needed


# The cache is limited because `where` may contain indexes and names that a user chose.
@lru_cache(maxsize=1024)
def _name_places(cls: Hashable, where: str) -> dict[str, str]:
    """Return the name of each field for messages. Cached, so that it is not built for every record of a report."""
    return {name: f"{where}.{name}" for name in _list_fields(cls)[0]}


def _resolve_type(field: Field[Any], module: str) -> Any:
    """Resolve an annotation as `typing.get_type_hints` would, without typing, whose import costs gsub 2 ms."""
    if not isinstance(field.type, str):
        return field.type
        # The text is an annotation in slurmwrap's own source, so eval is safe.
    return eval(field.type, vars(sys.modules[module]), {"Any": object})


@cache
def make_reader(kind: Any) -> Reader:
    """Return the function that reads JSON values of the annotated type `kind`."""
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
        return lambda value, where: _build_record(kind, value, where)
    if issubclass(kind, Enum):
        return lambda value, where: _read_enum(kind, value, where)
    # Path: fields have no other PathLike type.
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
