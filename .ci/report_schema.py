"""Writes docs/schemas/report.schema.json from the records of slurmwrap/report/night_report.py.

    python .ci/report_schema.py

A test holds the file to the records, and real output to the file.
"""

from __future__ import annotations

import inspect
import json
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from field_comments import read_field_comments

from slurmwrap.json_output import SCHEMA
from slurmwrap.report.night_report import NightReport

PAGE = Path(__file__).parent.parent / "docs" / "schemas" / "report.schema.json"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12. Fields may be added without a new number, so unknown ones are allowed."""
    known: dict[str, Any] = {}
    body = _record(NightReport, known)
    head = {
        "kind": {"const": "slurmwrap.report"},
        "schema": {"const": SCHEMA, "description": "Grows when a field changes its meaning or goes away."},
        "made_by": {"type": "string", "description": "Program and version."},
        "verdict": _verdict(),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "slurmwrap report --format json",
        "description": "Everything on the page of the night report. Times are Unix seconds, shares 0..1.",
        "type": "object",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body["required"]],
        "$defs": {name: known[name] for name in sorted(known)},
    }


def _verdict() -> dict[str, Any]:
    words = {"enum": ["quiet", "watch", "act"], "description": "Whether somebody should look today."}
    properties = {"word": words, "sentence": {"type": "string", "description": "The night in a sentence."}}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _record(kind: type[Any], known: dict[str, Any]) -> dict[str, Any]:
    said = read_field_comments(kind)
    hints = get_type_hints(kind)
    properties = {
        field.name: _type(hints[field.name], known) | ({"description": said[field.name]} if field.name in said else {})
        for field in fields(kind)
    }
    return {
        "type": "object",
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "properties": properties,
        "required": list(properties),
    }


def _type(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if get_origin(kind) is types.UnionType:
        return {"anyOf": [_type(one, known) for one in get_args(kind)]}
    if get_origin(kind) is tuple:
        return _array(get_args(kind), known)
    if is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in known:
            known[kind.__name__] = {}  # before its fields: a record may hold its own kind
            known[kind.__name__] = _record(kind, known)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"{kind} has no JSON type here")


def _array(items: tuple[Any, ...], known: dict[str, Any]) -> dict[str, Any]:
    if items[-1] is Ellipsis:
        return {"type": "array", "items": _type(items[0], known)}
    return {"type": "array", "prefixItems": [_type(one, known) for one in items], "items": False,
            "minItems": len(items)}  # fmt: skip


def text() -> str:
    """The file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text(), encoding="utf-8")
