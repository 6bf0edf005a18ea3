"""Make JSON schemas of records from annotations, docstrings and comments; used by the generators of docs/schemas."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from slurmwrap.fast_dataclasses import fields, is_dataclass

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
TEXT, WHOLE, NUMBER, FLAG = ({"type": _PLAIN[kind]} for kind in (str, int, float, bool))
_FIELD = re.compile(r"^    (\w+): [^#]*(?:#\s*(.+))?$")
_COMMENT = re.compile(r"^    #\s*(.+)$")
Known = dict[str, Any]


def describe_type(kind: Any, known: Known) -> dict[str, Any]:
    """Return the schema of an annotated type.

    Add its records to `known`. Raise TypeError when JSON has no such type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is types.UnionType:
        return {"anyOf": [describe_type(one, known) for one in arguments]}
    if origin in (frozenset, list) or (origin is tuple and arguments[-1] is Ellipsis):
        return {"type": "array", "items": describe_type(arguments[0], known)}
    if origin is tuple:
        items = [describe_type(one, known) for one in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [one.value for one in kind]}
    if is_dataclass(kind):
        return refer_to_record(kind, known)
    raise TypeError(f"{kind} has no JSON type here")


def refer_to_record(kind: type[Any], known: Known, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a reference to the schema of a record, which is added to `known`."""
    name = kind.__name__
    if name not in known:
        # Added before its fields are read, because a record may contain records of its own type.
        known[name] = {}
        known[name] = describe_record(kind, known, without=without)
    return {"$ref": f"#/$defs/{name}"}


def describe_record(kind: type[Any], known: Known, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schema of a record itself. Records in it are added to `known`."""
    comments = read_field_comments(kind)
    # Some modules import Any only for type checkers.
    hints = get_type_hints(kind, localns={"Any": Any})
    properties = {
        one.name: describe_type(hints[one.name], known)
        | ({"description": comments[one.name]} if one.name in comments else {})
        for one in fields(kind)
        if one.name not in without
    }
    return describe_object(properties, " ".join((inspect.getdoc(kind) or "").split()))


def describe_object(properties: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    """Return the schema of an object that has all these properties."""
    described = {"description": description} if description else {}
    return {"type": "object", **described, "properties": dict(properties), "required": list(properties)}


def read_field_comments(record: type[Any]) -> dict[str, str]:
    """Return field → its comment: the lines directly above it, or else the comment on its own line."""
    comments: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(record).split("\n"):
        if comment := _COMMENT.match(line):
            above.append(comment[1].strip())
            continue
        field = _FIELD.match(line)
        if field and (above or field[2]):
            comments[field[1]] = " ".join([*above, (field[2] or "").strip()]).strip()
        above = []
    return comments
