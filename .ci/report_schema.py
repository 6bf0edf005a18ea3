"""Generate docs/schemas/report.schema.json from the records of slurmwrap/report/night_report.py.

    python .ci/report_schema.py

A test compares the file with the records, and real output with the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from record_schema import DRAFT, TEXT, Known, describe_object, describe_record

from slurmwrap.json_output import SCHEMA
from slurmwrap.report.night_report import NightReport

PAGE = Path(__file__).parent.parent / "docs" / "schemas" / "report.schema.json"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12). New fields need no new version, so unknown fields are allowed."""
    known: Known = {}
    body = describe_record(NightReport, known)
    head = {
        "kind": {"const": "slurmwrap.report"},
        "schema": {"const": SCHEMA, "description": "Grows when a field changes its meaning or goes away."},
        "made_by": {**TEXT, "description": "Program and version."},
        "verdict": _verdict(),
    }
    return {
        "$schema": DRAFT,
        "title": "slurmwrap report --format json",
        "description": "Everything on the page of the night report. Times are Unix seconds, shares 0..1.",
        "type": "object",
        "properties": {**head, **body["properties"]},
        "required": [*head, *body["required"]],
        "$defs": {name: known[name] for name in sorted(known)},
    }


def _verdict() -> dict[str, Any]:
    words = {"enum": ["quiet", "watch", "act"], "description": "Whether somebody should look today."}
    return describe_object({"word": words, "sentence": {**TEXT, "description": "The night in a sentence."}})


def text() -> str:
    """Return the text of the file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text(), encoding="utf-8")
