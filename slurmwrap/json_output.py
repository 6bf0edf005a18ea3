"""The JSON that all programs of slurmwrap print for other programs: one envelope, also for errors.

    {"kind": "slurmwrap.jobs", "schema": 1, "rows": [...], "more": 12}      a list; `more`: not shown for --limit
    {"kind": "slurmwrap.job", "schema": 1, ...}                             one thing
    {"kind": "slurmwrap.error", "schema": 1, "error": "UsageError", "message": "...", "hint": "...", "exit_code": 2}

docs/jobs.md describes it, docs/schemas has a JSON schema for each kind. Standard library only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Grows when a field changes its meaning or goes away.
SCHEMA = 1


def make_json_document(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` in the envelope: after `kind` ("slurmwrap." is added) and `schema`."""
    return {"kind": f"slurmwrap.{kind}", "schema": SCHEMA, **content}


def format_json_document(kind: str, content: Mapping[str, Any]) -> str:
    """Return the document as indented text. ValueError for a number that JSON cannot hold (NaN, infinity)."""
    return json.dumps(make_json_document(kind, content), indent=2, allow_nan=False)


def format_json_line(kind: str, content: Mapping[str, Any]) -> str:
    """Return the document on one line: for output that is a document per line."""
    return json.dumps(make_json_document(kind, content))


def format_json_error(error: str, message: str, hint: str, exit_code: int) -> str:
    """Return an error as a document on one line. `error` is the class of slurmwrap/errors.py, `hint` the way out."""
    return format_json_line("error", {"error": error, "message": message, "hint": hint, "exit_code": exit_code})


def is_json_asked(arguments: list[str]) -> bool:
    """Whether a command line of `slurmwrap` has --json (behind `--` it is an argument)."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options
