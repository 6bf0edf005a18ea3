"""Dataclasses whose methods are generated when they are first used, for the modules that every gsub imports.

`dataclasses` generates and compiles six methods for each class at its definition, and imports `inspect` for it. gsub
defines about a hundred records and creates one or two instances of most, and this took half of its run time. Here a
class has shared methods, and gets an `__init__` of its own once many instances are created. Other code sees a
dataclass: type checkers see the names of the standard library, and the functions of `dataclasses` work. Only what
slurmwrap's records use is implemented here (frozen or not, slots, keyword-only or not, defaults and default
factories); other classes are passed to the standard library.

tests/test_fast_dataclasses.py compares every record of the package with the result of `dataclasses`.
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
        """One field, with the attributes that reading and writing records needs."""

        __slots__ = ("default", "default_factory", "init", "name", "type")

        def __init__(self, name, kind, default, default_factory):
            self.name, self.type, self.init = name, kind, True
            self.default, self.default_factory = default, default_factory

    def field(**given):
        """Return a default factory; with other arguments the result of `dataclasses.field`."""
        if set(given) == {"default_factory"}:
            return _Factory(given["default_factory"])
        import dataclasses

        return dataclasses.field(**given)

    def dataclass(cls=None, /, **how):
        """Do what `dataclasses.dataclass` does."""
        if cls is None:
            return lambda one: dataclass(one, **how)
        return _make_record_class(cls, how) if _is_plain(cls, how) else _make_standard_dataclass(cls, how)

    def replace(record, /, **changes):
        """Return a copy of a record with these fields changed."""
        if not isinstance(record, _Made):
            import dataclasses

            return dataclasses.replace(record, **changes)
        values = {name: getattr(record, name) for name in record.__record__.kinds}
        return type(record)(**(values | changes))

    def fields(record):
        """Return the fields of a record or of its class, in order."""
        cls = record if isinstance(record, type) else type(record)
        return cls.__record__.fields if issubclass(cls, _Made) else _convert_standard_fields(cls)

    def is_dataclass(record):
        """Return whether it is a record or a class of records."""
        cls = record if isinstance(record, type) else type(record)
        # Access to __dataclass_fields__ of a _Made class would create its twin, so issubclass comes first.
        return issubclass(cls, _Made) or hasattr(cls, "__dataclass_fields__")

    def asdict(record):
        """Convert a record to a dict, also records within tuples, lists and dicts; other values stay as they are."""
        return {one.name: _convert_records(getattr(record, one.name)) for one in fields(record)}


# --- classes ----------------------------------------------------------------------------------------------------------

# Number of instances after which a class gets its own `__init__`. Compiling it takes as long as creating that many
# instances without it.
_INSTANCES_BEFORE_INIT = 20
_SUPPORTED_OPTIONS = {"frozen", "slots", "kw_only"}
_UNSUPPORTED_METHODS = {"__init__", "__slots__", "__setattr__", "__delattr__", "__getstate__", "__setstate__"}


class _Factory:
    __slots__ = ("make",)

    def __init__(self, make: Any) -> None:
        self.make = make


class _TwinAttribute:
    """Class attribute that `dataclasses` and `inspect` look for. It is taken from the twin class when first used."""

    def __init__(self, of_twin: Any) -> None:
        self.of_twin = of_twin

    def __get__(self, record: object, cls: Any) -> Any:
        return self.of_twin(cls.__record__.twin)


class _Recipe:
    """Everything that is known of a class of records: fields, defaults, and what was derived from them so far."""

    def __init__(self, cls: type, how: dict[str, bool]) -> None:
        self.cls, self.how = cls, how
        self.kinds: dict[str, str] = cls.__annotations__
        self.defaults = {name: cls.__dict__[name] for name in self.kinds if name in cls.__dict__}
        self.late: dict[str, Any] = {}
        # Number of instances created without an `__init__` of their own.
        self.made = 0

    @property
    def twin(self) -> Any:
        """The same class as the standard library makes it."""
        if "twin" not in self.late:
            namespace = {
                key: value for key, value in self.cls.__dict__.items() if key not in ("__dict__", "__weakref__")
            }
            self.late["twin"] = _make_standard_dataclass(type(self.cls.__name__, (), namespace), self.how)
        return self.late["twin"]

    @property
    def fields(self) -> tuple[Any, ...]:
        """The fields in order."""
        if "fields" not in self.late:
            self.late["fields"] = tuple(_make_field(name, kind, self.defaults) for name, kind in self.kinds.items())
        return self.late["fields"]  # type: ignore[no-any-return]

    @property
    def values(self) -> Any:
        """A function that returns the values of a record as a tuple."""
        if "values" not in self.late:
            names = tuple(self.kinds)
            get_values = attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, n) for n in names)
            self.late["values"] = get_values
        return self.late["values"]


class _Made:
    """Base class of all records that are made here."""

    __slots__ = ()
    # No annotations at run time: typing.get_type_hints of a record would return them as its own.
    if TYPE_CHECKING:
        __record__: _Recipe
    __dataclass_fields__ = _TwinAttribute(lambda twin: twin.__dataclass_fields__)
    __dataclass_params__ = _TwinAttribute(lambda twin: twin.__dataclass_params__)
    __signature__ = _TwinAttribute(lambda twin: sys.modules["inspect"].signature(twin))

    def __init__(self, *args: Any, **given: Any) -> None:
        cls = type(self)
        recipe = cls.__record__
        recipe.made += 1
        if recipe.made > _INSTANCES_BEFORE_INIT or not _try_set_fields(self, recipe, args, given):
            cls.__init__ = _make_init(cls)  # type: ignore[method-assign]
            cls.__init__(self, *args, **given)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__record__.kinds)
        return f"{type(self).__qualname__}({shown})"

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
        raise _make_frozen_error(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise _make_frozen_error(f"cannot delete field {name!r}")

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.__record__.values(self))


def _is_plain(cls: type, how: dict[str, bool]) -> bool:
    """Return whether a class uses only the features that are implemented here."""
    if (
        not set(how) <= _SUPPORTED_OPTIONS
        or not how.get("slots")
        or cls.__bases__ != (object,)
        or _UNSUPPORTED_METHODS & set(cls.__dict__)
    ):
        return False
    kinds = cls.__annotations__
    if any(not isinstance(kind, str) or kind.startswith(("ClassVar", "InitVar", "KW_ONLY")) for kind in kinds.values()):
        return False
    book = sys.modules.get("dataclasses")
    return book is None or not any(isinstance(cls.__dict__.get(name), book.Field) for name in kinds)


def _make_record_class(cls: type, how: dict[str, bool]) -> type:
    recipe = _Recipe(cls, how)
    without = {"__dict__", "__weakref__", *recipe.kinds}
    namespace = {key: value for key, value in cls.__dict__.items() if key not in without}
    namespace |= {"__slots__": tuple(recipe.kinds), "__record__": recipe}
    namespace["__match_args__"] = () if how.get("kw_only") else tuple(recipe.kinds)
    return type(cls)(cls.__name__, (_Frozen if how.get("frozen") else _Made,), namespace)


def _make_standard_dataclass(cls: type, how: dict[str, Any]) -> type:
    import dataclasses

    for name, value in list(cls.__dict__.items()):
        if isinstance(value, _Factory):
            setattr(cls, name, dataclasses.field(default_factory=value.make))
    return dataclasses.dataclass(**how)(cls)


def _try_set_fields(record: Any, recipe: _Recipe, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """Set the fields as the generated `__init__` would. False for a wrong call, which that function rejects."""
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


def _make_init(cls: Any) -> Any:
    """Return the `__init__` that `dataclasses` would have generated.

    It sets each slot through its own descriptor: `__setattr__` of a frozen record raises, and object.__setattr__ looks
    up every name.
    """
    recipe = cls.__record__
    parameters: list[str] = []
    lines: list[str] = []
    globals_of_init: dict[str, Any] = {"missing": MISSING}
    for name in recipe.kinds:
        default = recipe.defaults.get(name, MISSING)
        value, globals_of_init[f"set_{name}"] = name, getattr(cls, name).__set__
        if isinstance(default, _Factory):
            globals_of_init[f"make_{name}"] = default.make
            parameters.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif default is MISSING:
            parameters.append(name)
        else:
            globals_of_init[f"default_{name}"] = default
            parameters.append(f"{name}=default_{name}")
        lines.append(f"    set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    star = ["*"] if recipe.how.get("kw_only") and parameters else []
    text = f"def __init__({', '.join(['self', *star, *parameters])}):\n" + "\n".join(lines or ["    pass"])
    exec(text, globals_of_init)
    globals_of_init["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return globals_of_init["__init__"]


def _make_field(name: str, kind: str, defaults: dict[str, Any]) -> Any:
    default = defaults.get(name, MISSING)
    if isinstance(default, _Factory):
        return Field(name, kind, MISSING, default.make)  # type: ignore[call-arg,arg-type]
    return Field(name, kind, default, MISSING)  # type: ignore[call-arg,arg-type]


def _convert_standard_fields(cls: type) -> tuple[Any, ...]:
    """Return the fields of a class that the standard library made."""
    import dataclasses

    def convert_missing(value: object) -> object:
        return MISSING if value is dataclasses.MISSING else value

    found = []
    for one in dataclasses.fields(cls):
        found.append(Field(one.name, one.type, convert_missing(one.default), convert_missing(one.default_factory)))  # type: ignore
        found[-1].init = one.init
    return tuple(found)


def _convert_records(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_convert_records, value))
    if isinstance(value, dict):
        return {_convert_records(key): _convert_records(one) for key, one in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _make_frozen_error(message: str) -> Exception:
    from dataclasses import FrozenInstanceError as Refused

    return Refused(message)
