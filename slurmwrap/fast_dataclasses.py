"""Dataclasses whose methods are written when they are first used. For the modules that every gsub loads.

`dataclasses` writes and compiles six methods for each class as it is defined, and imports `inspect` to do so. gsub
defines about a hundred records and makes one or two of most: that was half of its time. Here a class gets shared
methods, and an `__init__` of its own when many of it are made. To everybody else it is a dataclass: to type checkers,
who see the standard library's names, and to `dataclasses`' own functions. Only what our records use is done here
(frozen or not, slots, keywords only or not, defaults and their factories); anything else is left to the standard
library.

tests/test_fast_dataclasses.py holds every record of the package to what `dataclasses` makes of it.
"""

from __future__ import annotations

import sys
from operator import attrgetter

__all__ = ["MISSING", "Field", "asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass, replace
    from typing import Any
else:
    MISSING = type("MISSING", (), {"__repr__": lambda self: "MISSING"})()

    class Field:
        """One field, as far as reading and writing records needs it."""

        __slots__ = ("default", "default_factory", "init", "name", "type")

        def __init__(self, name, kind, default, default_factory):
            self.name, self.type, self.init = name, kind, True
            self.default, self.default_factory = default, default_factory

    def field(**given):
        """A default that is made anew each time; what else `dataclasses.field` can do, it does."""
        if set(given) == {"default_factory"}:
            return _Factory(given["default_factory"])
        import dataclasses

        return dataclasses.field(**given)

    def dataclass(cls=None, /, **how):
        """`dataclasses.dataclass`, for the ways in which we use it."""
        if cls is None:
            return lambda one: dataclass(one, **how)
        return _record(cls, how) if _is_plain(cls, how) else _by_the_book(cls, how)

    def replace(record, /, **changes):
        """Another record with these fields changed."""
        if not isinstance(record, _Made):
            import dataclasses

            return dataclasses.replace(record, **changes)
        given = {name: getattr(record, name) for name in record.__record__.kinds}
        return type(record)(**(given | changes))

    def fields(record):
        """Of a record or its class, in order."""
        cls = record if isinstance(record, type) else type(record)
        return cls.__record__.fields if issubclass(cls, _Made) else _translated(cls)

    def is_dataclass(record):
        """Whether it is a record or a class of them."""
        cls = record if isinstance(record, type) else type(record)
        # To look is to make them.
        return issubclass(cls, _Made) or hasattr(cls, "__dataclass_fields__")

    def asdict(record):
        """Records become dicts, within tuples, lists and dicts too; everything else stays as it is."""
        return {one.name: _without_records(getattr(record, one.name)) for one in fields(record)}


# --- the class --------------------------------------------------------------------------------------------------------

# Writing and compiling an `__init__` takes as long as making so many records without.
_FEW = 20
_KNOWN = {"frozen", "slots", "kw_only"}
_NOT_PLAIN = {"__init__", "__slots__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"}


class _Factory:
    __slots__ = ("make",)

    def __init__(self, make: Any) -> None:
        self.make = make


class _Late:
    """What `dataclasses` and `inspect` look for in a class, made when they do: it is that of a twin by the book."""

    def __init__(self, of_twin: Any) -> None:
        self.of_twin = of_twin

    def __get__(self, record: object, cls: Any) -> Any:
        return self.of_twin(cls.__record__.twin)


class _Recipe:
    """What a class of records is made from."""

    def __init__(self, cls: type, how: dict[str, bool]) -> None:
        self.cls, self.how = cls, how
        self.kinds: dict[str, str] = cls.__annotations__
        self.defaults = {name: cls.__dict__[name] for name in self.kinds if name in cls.__dict__}
        self.late: dict[str, Any] = {}
        # So many were made without an `__init__` of their own.
        self.made = 0

    @property
    def twin(self) -> Any:
        """The class as `dataclasses` makes it."""
        if "twin" not in self.late:
            named = {key: value for key, value in self.cls.__dict__.items() if key not in ("__dict__", "__weakref__")}
            self.late["twin"] = _by_the_book(type(self.cls.__name__, (), named), self.how)
        return self.late["twin"]

    @property
    def fields(self) -> tuple[Any, ...]:
        """In order."""
        if "fields" not in self.late:
            self.late["fields"] = tuple(_field_of(name, kind, self.defaults) for name, kind in self.kinds.items())
        return self.late["fields"]  # type: ignore[no-any-return]

    @property
    def values(self) -> Any:
        """Record → tuple of its values."""
        if "values" not in self.late:
            names = tuple(self.kinds)
            several = attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, n) for n in names)
            self.late["values"] = several
        return self.late["values"]


class _Made:
    """What all records that are made here have in common."""

    __slots__ = ()
    # no annotations in here: typing.get_type_hints of a record takes them for its own
    if TYPE_CHECKING:
        __record__: _Recipe
    __dataclass_fields__ = _Late(lambda twin: twin.__dataclass_fields__)
    __dataclass_params__ = _Late(lambda twin: twin.__dataclass_params__)
    __signature__ = _Late(lambda twin: sys.modules["inspect"].signature(twin))

    def __init__(self, *args: Any, **given: Any) -> None:
        cls = type(self)
        recipe = cls.__record__
        recipe.made += 1
        if recipe.made > _FEW or not _filled(self, recipe, args, given):
            cls.__init__ = _init_of(cls)  # type: ignore[method-assign]
            cls.__init__(self, *args, **given)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__record__.kinds)
        return f"{type(self).__qualname__}({told})"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = self.__record__.values
        return bool(values(self) == values(other))

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> list[Any]:
        return [getattr(self, name) for name in self.__record__.kinds]

    def __setstate__(self, state: list[Any]) -> None:
        for name, value in zip(self.__record__.kinds, state, strict=True):
            object.__setattr__(self, name, value)


class _Frozen(_Made):
    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise _frozen_error(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise _frozen_error(f"cannot delete field {name!r}")

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.__record__.values(self))


def _is_plain(cls: type, how: dict[str, bool]) -> bool:
    """Whether a class asks for nothing but what is done here."""
    if not set(how) <= _KNOWN or not how.get("slots") or cls.__bases__ != (object,) or _NOT_PLAIN & set(cls.__dict__):
        return False
    kinds = cls.__annotations__
    if any(not isinstance(kind, str) or kind.startswith(("ClassVar", "InitVar", "KW_ONLY")) for kind in kinds.values()):
        return False
    book = sys.modules.get("dataclasses")
    return book is None or not any(isinstance(cls.__dict__.get(name), book.Field) for name in kinds)


def _record(cls: type, how: dict[str, bool]) -> type:
    recipe = _Recipe(cls, how)
    without = {"__dict__", "__weakref__", *recipe.kinds}
    named = {key: value for key, value in cls.__dict__.items() if key not in without}
    named |= {"__slots__": tuple(recipe.kinds), "__record__": recipe}
    named["__match_args__"] = () if how.get("kw_only") else tuple(recipe.kinds)
    return type(cls)(cls.__name__, (_Frozen if how.get("frozen") else _Made,), named)


def _by_the_book(cls: type, how: dict[str, Any]) -> type:
    import dataclasses

    for name, value in list(cls.__dict__.items()):
        if isinstance(value, _Factory):
            setattr(cls, name, dataclasses.field(default_factory=value.make))
    return dataclasses.dataclass(**how)(cls)


def _filled(record: Any, recipe: _Recipe, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Does what `_init_of`'s function would do. False for a call that is wrong: that function has the words for it."""
    kinds = recipe.kinds
    if args and (recipe.how.get("kw_only") or len(args) > len(kinds)):
        return False
    values = dict(zip(kinds, args, strict=False))
    if not values.keys().isdisjoint(given) or not given.keys() <= kinds.keys():
        return False
    values |= given
    for name in kinds:
        value, default = values.get(name, MISSING), recipe.defaults.get(name, MISSING)
        if value is MISSING:
            value = default.make() if isinstance(default, _Factory) else values.get(name, default)
            if value is MISSING and name not in values:
                return False
        object.__setattr__(record, name, value)
    if hasattr(record, "__post_init__"):
        record.__post_init__()
    return True


def _init_of(cls: Any) -> Any:
    """The `__init__` that `dataclasses` would have written. Slots are set by their own descriptors: `__setattr__` of a
    frozen record refuses, and object's looks each name up."""
    recipe = cls.__record__
    parameters: list[str] = []
    lines: list[str] = []
    known: dict[str, Any] = {"missing": MISSING}
    for name in recipe.kinds:
        default = recipe.defaults.get(name, MISSING)
        value, known[f"set_{name}"] = name, getattr(cls, name).__set__
        if isinstance(default, _Factory):
            known[f"make_{name}"] = default.make
            parameters.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif default is MISSING:
            parameters.append(name)
        else:
            known[f"default_{name}"] = default
            parameters.append(f"{name}=default_{name}")
        lines.append(f"    set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    star = ["*"] if recipe.how.get("kw_only") and parameters else []
    text = f"def __init__({', '.join(['self', *star, *parameters])}):\n" + "\n".join(lines or ["    pass"])
    exec(text, known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _field_of(name: str, kind: str, defaults: dict[str, Any]) -> Any:
    default = defaults.get(name, MISSING)
    if isinstance(default, _Factory):
        return Field(name, kind, MISSING, default.make)  # type: ignore[call-arg,arg-type]
    return Field(name, kind, default, MISSING)  # type: ignore[call-arg,arg-type]


def _translated(cls: type) -> tuple[Any, ...]:
    """The fields of a class that was made by the book."""
    import dataclasses

    def ours(value: object) -> object:
        return MISSING if value is dataclasses.MISSING else value

    found = []
    for one in dataclasses.fields(cls):
        found.append(Field(one.name, one.type, ours(one.default), ours(one.default_factory)))  # type: ignore
        found[-1].init = one.init
    return tuple(found)


def _without_records(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_without_records, value))
    if isinstance(value, dict):
        return {_without_records(key): _without_records(one) for key, one in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _frozen_error(said: str) -> Exception:
    from dataclasses import FrozenInstanceError as Refused

    return Refused(said)
