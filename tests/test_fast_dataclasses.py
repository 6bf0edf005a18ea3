"""slurmwrap.fast_dataclasses compared with the standard library's dataclasses: every record, every feature."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, get_type_hints

import pytest

import slurmwrap
from slurmwrap import fast_dataclasses
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.submission import Submission
from slurmwrap.protocols import Published
from slurmwrap.sbatch.job_request import JobRequest

SKIPPED_MODULES = (".inject.", ".node_hooks.", ".sim", ".gsub.start", "lab.", "pyslurm")


def modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(slurmwrap.__path__, "slurmwrap."):
        if not any(part in found.name for part in SKIPPED_MODULES):
            yield importlib.import_module(found.name)


def made() -> list[type]:
    """Every class of the package made by slurmwrap.fast_dataclasses."""
    found = {
        value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and "__record__" in vars(value)
    }
    return sorted(found, key=lambda cls: (cls.__module__, cls.__qualname__))


RECORDS = made()


class Value:
    """A placeholder for the value of any field."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"<{self.number}>"


def twin(cls: Any) -> Any:
    return cls.__record__.twin


def values(cls: type) -> dict[str, Value]:
    return {name: Value(number) for number, name in enumerate(cls.__record__.kinds)}


def checks_itself(cls: type) -> bool:
    return hasattr(cls, "__post_init__")


def test_types_of_records_read_from_json_are_available_at_run_time() -> None:
    for cls in (JobRequest, PlacementPlan, Published, Submission, PrerunRecord, JobRun):
        assert get_type_hints(cls, localns={"Any": Any}).keys() == {f.name for f in dataclasses.fields(cls)}


def list_failures(check: Callable[[Any], None], classes: Iterable[type]) -> list[str]:
    """The error of `check` for each record that fails it."""
    found = []
    for cls in classes:
        try:
            check(cls)
        except (AssertionError, TypeError, AttributeError, pytest.fail.Exception) as error:
            found.append(f"{cls.__module__}.{cls.__qualname__}: {error!r}")
    return found


def test_every_record_equals_what_dataclasses_makes() -> None:
    assert len(RECORDS) > 150
    assert list_failures(assert_as_dataclasses_makes_it, RECORDS) == []


def assert_as_dataclasses_makes_it(cls: Any) -> None:
    other = twin(cls)
    assert (cls.__slots__, cls.__match_args__) == (other.__slots__, other.__match_args__)
    assert cls.__doc__ in (None, other.__doc__)
    shown = [(f.name, f.type, f.init, f.default, f.kw_only) for f in dataclasses.fields(cls)]
    assert shown == [(f.name, f.type, f.init, f.default, f.kw_only) for f in dataclasses.fields(other)]
    assert [f.name for f in fast_dataclasses.fields(cls)] == [f.name for f in dataclasses.fields(cls)]
    assert inspect.signature(cls) == inspect.signature(other)
    if checks_itself(cls):
        return
    theirs = other(**values(cls))
    for mine in (made(cls, late, values(cls)) for late in (False, True)):
        assert_equal_in_all(mine, theirs)
    assert inspect.signature(cls.__init__).parameters.keys() == inspect.signature(other.__init__).parameters.keys()


def made(cls: Any, late: bool, given: Mapping[str, Value]) -> Any:
    """An early instance of the class, or a `late` one, for which the class has its own `__init__`."""
    if "__init__" in cls.__dict__:
        del cls.__init__
    cls.__record__.made = fast_dataclasses._INSTANCES_BEFORE_INIT if late else 0
    record = cls(**given)
    assert ("__init__" in cls.__dict__) is late
    return record


def assert_equal_in_all(mine: Any, theirs: Any) -> None:
    cls, other = type(mine), type(theirs)
    assert repr(mine) == repr(theirs).replace(other.__qualname__, cls.__qualname__, 1)
    assert (cls.__hash__ is None) == (other.__hash__ is None)
    assert cls.__hash__ is None or hash(mine) == hash(theirs)
    assert [getattr(mine, name) for name in cls.__slots__] == [getattr(theirs, name) for name in cls.__slots__]
    assert not hasattr(mine, "__dict__")


def test_defaults_and_errors_for_missing_fields_are_the_same() -> None:
    assert list_failures(assert_same_defaults, [cls for cls in RECORDS if not checks_itself(cls)]) == []


def assert_same_defaults(cls: Any) -> None:
    needed = {f.name: Value(1) for f in fast_dataclasses.fields(cls) if not has_default(f)}
    theirs = twin(cls)(**needed)
    for mine in (made(cls, late, needed) for late in (True, False)):
        assert {n: getattr(mine, n) for n in cls.__slots__} == {n: getattr(theirs, n) for n in cls.__slots__}
    for wrong in ({**needed, "no_such_field": 1}, dict(list(needed.items())[1:]) if needed else {"no_such_field": 1}):
        with pytest.raises(TypeError) as said:
            cls(**wrong)
        with pytest.raises(TypeError) as expected:
            twin(cls)(**wrong)
        assert str(said.value) == str(expected.value)


def has_default(one: Any) -> bool:
    return one.default is not fast_dataclasses.MISSING or one.default_factory is not fast_dataclasses.MISSING


# --- features


@fast_dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A record."""

    x: int
    y: int = 2
    tags: Mapping[str, int] = fast_dataclasses.field(default_factory=dict)

    @property
    def both(self) -> int:
        """Of x and y."""
        return self.x + self.y


@fast_dataclasses.dataclass(slots=True)
class Open:
    """A record that is not frozen, with positional fields."""

    name: str
    points: list[Point] = fast_dataclasses.field(default_factory=list)


@fast_dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A record with a check in `__post_init__`."""

    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("below 0")


@fast_dataclasses.dataclass(frozen=True, slots=True)
class Empty:
    """A record without fields."""


def test_values_equality_and_hash() -> None:
    assert (Point(x=1).y, Point(x=1).both, Point(x=1) == Point(x=1, y=2), Point(x=1) == Point(x=2)) == (
        2,
        3,
        True,
        False,
    )
    assert Point(x=1) != (1, 2, {})
    assert len({Checked(x=1), Checked(x=1), Checked(x=2)}) == 2
    assert Empty() == Empty()
    assert hash(Empty()) == hash(())
    with pytest.raises(TypeError, match="unhashable"):
        hash(Open("a"))


def test_a_default_factory_makes_a_new_value_for_each_record() -> None:
    one, other = Open("a"), Open("b")
    one.points.append(Point(x=1))
    assert (len(one.points), other.points) == (1, [])


def test_a_frozen_record_refuses_changes_and_an_unfrozen_one_accepts_them() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        Point(x=1).x = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del Point(x=1).x
    one = Open("a")
    one.name = "b"
    assert one == Open("b")
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]


def test_post_init_checks_are_called() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Checked(x=-1)
    with pytest.raises(ValueError, match="below 0"):
        fast_dataclasses.replace(Checked(x=1), x=-1)


@pytest.mark.parametrize("book", [fast_dataclasses, dataclasses], ids=["ours", "dataclasses"])
def test_replace_fields_and_asdict_work_with_both_modules(book: Any) -> None:
    point = Point(x=1, tags={"a": 1})
    assert book.replace(point, y=5) == Point(x=1, y=5, tags={"a": 1})
    assert [f.name for f in book.fields(point)] == ["x", "y", "tags"]
    assert book.asdict(Open("a", [point])) == {"name": "a", "points": [{"x": 1, "y": 2, "tags": {"a": 1}}]}
    assert [book.is_dataclass(one) for one in (point, Point, 1, int)] == [True, True, False, False]
    with pytest.raises(TypeError, match="no_such_field"):
        book.replace(point, no_such_field=1)


def test_copies_and_pickles_are_equal() -> None:
    for one in (Point(x=1, tags={"a": 1}), Open("a", [Point(x=2)]), Checked(x=1), Empty()):
        assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


def test_a_match_statement_matches_records() -> None:
    match Open("a"):
        case Open(name):
            assert name == "a"
    match Point(x=1):
        case Point(x=x, y=2):
            assert x == 1


def test_unsupported_features_are_left_to_the_standard_library() -> None:
    @fast_dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        n: int = fast_dataclasses.field(compare=True, default=0)

    @fast_dataclasses.dataclass(slots=True)
    class Counted:
        made: ClassVar[int] = 3
        total: int = fast_dataclasses.field(init=False, default=7)
        seen: dict[str, int] = fast_dataclasses.field(default_factory=dict)

    assert (Ordered(1) < Ordered(2), Counted().total, Counted.made, Counted().seen) == (True, 7, 3, {})
    assert not {"__record__"} & {*vars(Ordered), *vars(Counted)}
    assert [(f.name, f.init, has_default(f)) for f in fast_dataclasses.fields(Counted)] == [
        ("total", False, True),
        ("seen", True, True),
    ]
    assert fast_dataclasses.replace(Ordered(1), n=2) == Ordered(2)


def test_records_are_made_without_importing_dataclasses() -> None:
    code = "import sys, slurmwrap.protocols, slurmwrap.model.placement_plan; print('dataclasses' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
