"""Turns a NightReport into JSON for programs: docs/schemas/report.schema.json describes it. Pure.

`schema` grows by one when a field changes its meaning or goes away; new fields may come without that.
"""

from __future__ import annotations

import json
from typing import Any

from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.report.headline import verdict
from slurmwrap.report.night_report import NightReport

SCHEMA = 1


def document(report: NightReport, *, made_by: str) -> dict[str, Any]:
    """The report's fields, after what tells a program what it reads."""
    said = verdict(report)
    return {
        "schema": SCHEMA,
        "made_by": made_by,
        "verdict": {"word": said.word, "sentence": said.sentence},
        **_plain(report),
    }


def render(report: NightReport, *, made_by: str) -> str:
    """ASCII only: whatever bytes a name had, every reader takes it."""
    return json.dumps(document(report, made_by=made_by), indent=2) + "\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value
