"""to_json_dict and record_from_json: every record is read back equal, and errors name the wrong field."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.placement_plan import Level, PlacementPlan
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.sbatch.job_request import RequestChange
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    number: int
    ratio: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str
    colour: Colour = Colour.RED
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    flags: frozenset[str] = frozenset()
    path: Path = Path("/")
    content: bytes = b""
    by_node: Mapping[str, Inner] = field(default_factory=dict)
    by_number: Mapping[int, str] = field(default_factory=dict)
    either: int | str = 0
    free: Mapping[str, Any] = field(default_factory=dict)
    yes: bool = False


FULL = Outer(
    name='quote " newline \n null \x00 surrogate \udcff',
    colour=Colour.BLUE,
    inner=Inner(number=-(2**63), ratio=1.25),
    many=(Inner(number=1), Inner(number=2)),
    pair=(7, "seven"),
    flags=frozenset({"b", "a"}),
    path=Path("/data/x"),
    content=b"#!/bin/bash\n\xff\x00",
    by_node={"n1": Inner(number=3)},
    by_number={4: "four"},
    either="text",
    free={"deep": [1, {"er": None}]},
    yes=True,
)


def convert_to_json(record: Any) -> Any:
    return json.loads(json.dumps(to_json_dict(record)))


def test_every_field_type_is_read_back_equal() -> None:
    assert record_from_json(Outer, convert_to_json(FULL)) == FULL


def test_json_form_of_a_record() -> None:
    record = Outer(name="a", colour=Colour.BLUE, flags=frozenset({"z", "b"}), content=b"hi")
    assert to_json_dict(record) == {
        "name": "a",
        "colour": "blue",
        "inner": None,
        "many": [],
        "pair": [0, ""],
        "flags": ["b", "z"],
        "path": "/",
        "content": "aGk=",
        "by_node": {},
        "by_number": {},
        "either": 0,
        "free": {},
        "yes": False,
    }


def test_nested_records_of_the_model_are_read_back_equal() -> None:
    plan = PlacementPlan(levels=(Level(name="one switch", wait_s=300),), candidates=("n1", "n2"))
    change = RequestChange(option="mem", old=None, new="20G", where="added", reason="measured")
    verdict = Verdict(
        outcome=Outcome.FAIL,
        layer="exit",
        reason="exit 1",
        findings=(Finding(severity=Severity.ERROR, message="m", line=3),),
        evidence=(Citation(source="stdout", line=9, text="ValueError"),),
        measurement=Measurement(seconds=2, steps=3, gpus=1),
    )
    prerun = PrerunRecord(
        cluster="c",
        job_id=None,
        prerun_job_id=8,
        uid=1000,
        at=1.5,
        verdict=verdict,
        plan=to_json_dict(plan),
        changes=(to_json_dict(change),),
    )
    diagnosis = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="s")
    attempt = JobRun(attempt=RunKey(cluster="c", job_id=1, submit_time=2), nodes=("n1",), diagnosis=diagnosis)
    assert record_from_json(PrerunRecord, convert_to_json(prerun)) == prerun
    assert record_from_json(PlacementPlan, prerun.plan) == plan
    assert record_from_json(JobRun, convert_to_json(attempt)) == attempt


def test_unknown_keys_of_a_newer_version_are_ignored() -> None:
    assert record_from_json(Inner, {"number": 1, "invented_later": [1]}) == Inner(number=1)


def test_missing_keys_take_their_defaults() -> None:
    assert record_from_json(Outer, {"name": "a"}) == Outer(name="a")


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({}, "Outer.name is missing"),
        ({"name": 1}, "Outer.name: 1 is not text"),
        ({"name": None}, "Outer.name: None is not text"),
        ({"name": "a", "colour": "green"}, "Outer.colour: 'green' is not one of red, blue"),
        ({"name": "a", "colour": ["red"]}, "Outer.colour: ['red'] is not one of red, blue"),
        ({"name": "a", "inner": {"number": True}}, "Outer.inner.number: True is not a whole number"),
        ({"name": "a", "inner": {"number": 1.0}}, "Outer.inner.number: 1.0 is not a whole number"),
        ({"name": "a", "inner": {"number": 2**63}}, "Outer.inner.number: a whole number of more than 64 bits"),
        ({"name": "a", "inner": {"number": 1, "ratio": float("nan")}}, "Outer.inner.ratio: not a finite number"),
        ({"name": "a", "inner": {"number": 1, "ratio": 10**400}}, "Outer.inner.ratio: not a finite number"),
        ({"name": "a", "inner": {"number": 1, "ratio": "1"}}, "Outer.inner.ratio: '1' is not a number"),
        ({"name": "a", "inner": 3}, "Outer.inner: 3 is not an object"),
        ({"name": "a", "many": {"x": 1}}, "Outer.many: {'x': 1} is not a list"),
        ({"name": "a", "many": "text"}, "Outer.many: 'text' is not a list"),
        ({"name": "a", "many": [{"number": 1}, {}]}, "Outer.many[1].number is missing"),
        ({"name": "a", "pair": [1]}, "Outer.pair: [1] is not a list of 2"),
        ({"name": "a", "free": []}, "Outer.free: [] is not an object"),
        ({"name": "a", "by_number": {"x": "y"}}, "Outer.by_number: 'x' is not a whole number"),
        ({"name": "a", "content": "§"}, "Outer.content: '§' is not base64"),
        ({"name": "a", "yes": 1}, "Outer.yes: 1 is not true or false"),
        ({"name": 7 * [10**20]}, f"Outer.name: {repr(7 * [10**20])[:57]}... is not text"),
    ],
)
def test_an_invalid_value_raises_an_error_that_names_the_field(plain: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        record_from_json(Outer, plain)
    assert str(caught.value) == message


@pytest.mark.parametrize("plain", [None, [], "x", 3])
def test_json_that_is_not_an_object_is_refused(plain: Any) -> None:
    with pytest.raises(ValueError, match=r"Inner: .* is not an object"):
        record_from_json(Inner, plain)


def test_an_object_that_is_not_a_record_cannot_be_serialized() -> None:
    with pytest.raises(TypeError, match="object is not a record"):
        to_json_dict({"x": object()}["x"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


# slow on busy machines
@settings(max_examples=settings.default.max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries({"name": st.text()}, optional={key: JSON for key in to_json_dict(FULL) if key != "name"}))
def test_any_json_yields_a_record_or_a_value_error(plain: dict[str, Any]) -> None:
    try:
        record = record_from_json(Outer, plain)
    except ValueError:
        return
    assert repr(record_from_json(Outer, to_json_dict(record))) == repr(record)  # repr: NaN inside `free` equals nothing


def test_importing_serialize_loads_no_large_modules() -> None:
    code = "import sys, slurmwrap.store.serialize; print([m for m in ('sqlite_utils', 'typer', 'jinja2')"
    code += " if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
