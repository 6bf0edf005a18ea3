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
    Reader = Callable[[Any, str], Any]  # (JSON value, "Record.field" for the message) -> the field's value

_INT64 = 2**63  # what an SQLite column holds


def from_plain(cls: type[T], plain: Mapping[str, Any]) -> T:
    """`to_plain`'s output -> a record of `cls`. ValueError names the field: "Attempt.job_id: 'x' is not a whole …"."""
    record: T = _record(cls, plain, cls.__name__)
    return record


def _record(cls: Any, plain: Any, where: str) -> Any:
    if not isinstance(plain, Mapping):
        raise _wrong(where, plain, "an object")
    known, needed = _fields(cls)
    places = _places(cls, where)
    values = {name: read(plain[name], places[name]) for name, read in known.items() if name in plain}
    for name in needed:
        if name not in values:
            raise ValueError(f"{where}.{name} is missing")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # a record that checks itself in __post_init__
        raise ValueError(f"{where}: {error}") from error


@cache
def _fields(cls: Hashable) -> tuple[dict[str, Reader], tuple[str, ...]]:
    """(readers by field, fields without a default)."""
    record: Any = cls
    known = [field for field in fields(record) if field.init]
    needed = tuple(f.name for f in known if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: reader(_type_of(f, record.__module__)) for f in known}, needed


@lru_cache(maxsize=1024)  # `where` may hold indexes and names of a user
def _places(cls: Hashable, where: str) -> dict[str, str]:
    """What messages call each field: made once, not of every record of a report."""
    return {name: f"{where}.{name}" for name in _fields(cls)[0]}


def _type_of(field: Field[Any], module: str) -> Any:
    """What `typing.get_type_hints` makes of an annotation of ours, without typing, whose import costs gsub 2 ms."""
    if not isinstance(field.type, str):
        return field.type
    return eval(field.type, vars(sys.modules[module]), {"Any": object})  # a line of our own source


@cache
def reader(kind: Any) -> Reader:
    """The function that reads JSON values of the annotated type `kind`."""
    origin, arguments = getattr(kind, "__origin__", None), getattr(kind, "__args__", ())
    if isinstance(kind, types.UnionType):
        return _union(arguments)
    if origin in (tuple, list, frozenset, set):
        return _sequence(origin, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments)
    if isinstance(kind, type):
        return _plain_type(kind)
    return _anything


def _plain_type(kind: type[Any]) -> Reader:
    if is_dataclass(kind):
        return lambda value, where: _record(kind, value, where)
    if issubclass(kind, Enum):
        return lambda value, where: _enum(kind, value, where)
    if issubclass(kind, PathLike):  # a Path: no other field is one
        path: Any = kind
        return lambda value, where: path(_text(value, where))
    return _SCALARS.get(kind, _anything)


def _union(arguments: tuple[Any, ...]) -> Reader:
    optional = type(None) in arguments
    readers = [reader(argument) for argument in arguments if argument is not type(None)]

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


def _sequence(origin: type[Any], arguments: tuple[Any, ...]) -> Reader:
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed_tuple(arguments)
    item = reader(arguments[0]) if arguments else _anything

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong(where, value, "a list")
        return origin(item(one, f"{where}[{index}]") for index, one in enumerate(value))

    return read


def _fixed_tuple(arguments: tuple[Any, ...]) -> Reader:
    readers = [reader(argument) for argument in arguments]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise _wrong(where, value, f"a list of {len(readers)}")
        return tuple(one(item, f"{where}[{i}]") for i, (one, item) in enumerate(zip(readers, value, strict=True)))

    return read


def _mapping(arguments: tuple[Any, ...]) -> Reader:
    item = reader(arguments[1]) if len(arguments) == 2 else _anything
    key = reader(arguments[0]) if arguments and arguments[0] is not int else _int_key

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "an object")
        return {key(name, where): item(one, f"{where}.{name}") for name, one in value.items()}

    return read


def _int_key(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise _wrong(where, value, "a whole number") from None


def _enum(kind: type[Enum], value: Any, where: str) -> Enum:
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise _wrong(where, value, f"one of {', '.join(str(member.value) for member in kind)}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, value, "text")
    return value


def _int(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(where, value, "a whole number")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{where}: a whole number of more than 64 bits")
    return value


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(where, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = float("inf")
    if not isfinite(number):
        raise ValueError(f"{where}: not a finite number")
    return number


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, value, "true or false")
    return value


def _bytes(value: Any, where: str) -> bytes:
    try:
        from base64 import b64decode

        return b64decode(_text(value, where), validate=True)
    except ValueError:
        raise _wrong(where, value, "base64") from None


def _anything(value: Any, where: str) -> Any:
    return value


_SCALARS: dict[type[Any], Reader] = {str: _text, int: _int, float: _float, bool: _bool, bytes: _bytes}


def _wrong(where: str, value: Any, wanted: str) -> ValueError:
    shown = repr(value)
    return ValueError(f"{where}: {shown if len(shown) <= 60 else shown[:57] + '...'} is not {wanted}")
