"""Turns a NightReport into JSON for programs: docs/schemas/report.schema.json describes it. Pure.

`schema` grows by one when a field changes its meaning or goes away; new fields may come without that.
"""

from __future__ import annotations

import json
from typing import Any

from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.report.headline import make_night_verdict
from slurmwrap.report.night_report import NightReport

SCHEMA = 1


def make_document(report: NightReport, *, made_by: str) -> dict[str, Any]:
    """The report's fields, after what tells a program what it reads."""
    said = make_night_verdict(report)
    return {
        "schema": SCHEMA,
        "made_by": made_by,
        "verdict": {"word": said.word, "sentence": said.sentence},
        **_to_json_value(report),
    }


def render_json(report: NightReport, *, made_by: str) -> str:
    """ASCII only: whatever bytes a name had, every reader takes it."""
    return json.dumps(make_document(report, made_by=made_by), indent=2) + "\n"


def _to_json_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _to_json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_to_json_value(one) for one in value]
    return value
