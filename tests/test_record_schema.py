"""The mapping from annotations to JSON schemas, with which .ci generates docs/schemas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from record_schema import describe_record, describe_type


class Shade(Enum):
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A part of a tree."""

    length: float  # metres
    twigs: tuple[Branch, ...]


TEXTS = {"type": "array", "items": {"type": "string"}}
BRANCH = {
    "type": "object",
    "description": "A part of a tree.",
    "properties": {
        "length": {"type": "number", "description": "metres"},
        "twigs": {"type": "array", "items": {"$ref": "#/$defs/Branch"}},
    },
    "required": ["length", "twigs"],
}


def test_every_field_type_has_its_schema() -> None:
    wanted: list[tuple[Any, dict[str, Any]]] = [
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (tuple[str, ...], TEXTS),
        (frozenset[str], TEXTS),
        (list[str], TEXTS),
        (tuple[str, float], {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False,
                             "minItems": 2}),
        (Mapping[str, int], {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (Any, {}),
        (object, {}),
        (Shade, {"enum": ["light", "dark"]}),
    ]  # fmt: skip
    found = [(kind, describe_type(kind, {})) for kind, _ in wanted]
    assert [(kind, one) for (kind, one), (_, schema) in zip(found, wanted, strict=True) if one != schema] == []


def test_a_record_is_described_once_and_may_contain_its_own_type() -> None:
    known: dict[str, Any] = {}
    assert describe_type(Branch, known) == {"$ref": "#/$defs/Branch"}
    assert known == {"Branch": BRANCH}
    assert list(describe_record(Branch, {}, without=("twigs",))["properties"]) == ["length"]


def test_a_type_without_json_equivalent_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no JSON type"):
        describe_type(Path, {})
