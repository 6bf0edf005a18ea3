"""The JSON that all programs of slurmwrap print for other programs: one envelope for results and errors.

    {"kind": "slurmwrap.jobs", "schema": 1, "rows": [...], "more": 12}      a list; `more`: rows hidden by --limit
    {"kind": "slurmwrap.job", "schema": 1, ...}                             one item
    {"kind": "slurmwrap.error", "schema": 1, "error": "UsageError", "message": "...", "hint": "...", "exit_code": 2}

docs/jobs.md describes it, docs/schemas has a JSON schema for each kind. Standard library only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Incremented when a field changes its meaning or is removed.
SCHEMA = 1


def make_json_document(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` after the fields `kind` ("slurmwrap." is prepended) and `schema`."""
    return {"kind": f"slurmwrap.{kind}", "schema": SCHEMA, **content}


def format_json_document(kind: str, content: Mapping[str, Any]) -> str:
    """Return the document as indented text. ValueError for a number that JSON cannot hold (NaN, infinity)."""
    return json.dumps(make_json_document(kind, content), indent=2, allow_nan=False)


def format_json_line(kind: str, content: Mapping[str, Any]) -> str:
    """Return the document on one line, for output with one document per line."""
    return json.dumps(make_json_document(kind, content))


def format_json_error(error: str, message: str, hint: str, exit_code: int) -> str:
    """Return an error as a one-line document. `error`: a class name of slurmwrap/errors.py; `hint`: what to do next."""
    return format_json_line("error", {"error": error, "message": message, "hint": hint, "exit_code": exit_code})


def is_json_asked(arguments: list[str]) -> bool:
    """Return whether a command line of `slurmwrap` contains --json as an option. After `--` it is an argument."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options
