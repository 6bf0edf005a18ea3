"""What a list shows of a run, as a row and as a record. Of a row of attempts that is the smaller part: logs, paths,
plans and measurements are most of it, and most of the time that reading it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.run import JobRun

_KEY = ("cluster", "job_id", "submit_time")
_SHOWN = (
    *("address", "restarts", "name", "user", "uid", "account", "partition", "state", "gpus", "start_time"),
    *("end_time", "decision", "decision_reason", "retry_at", "incident"),
)
COLUMNS = ", ".join(f"a.{name}" for name in (*_KEY, *_SHOWN, "diagnosis_category"))  # of attempts a
# One of each category: a list has few.
_DIAGNOSES: dict[str, Diagnosis] = {}


def make_listed_run(row: Mapping[str, Any]) -> JobRun:
    """The record, with what a list shows alone: of its diagnosis the category."""
    category = row["diagnosis_category"]
    return JobRun(
        attempt=RunKey(cluster=row["cluster"], job_id=row["job_id"], submit_time=row["submit_time"]),
        diagnosis=_make_category_diagnosis(category) if category is not None else None,
        **{name: decode_text(row[name]) for name in _SHOWN},
    )


def decode_text(value: Any) -> Any:
    """What is no valid UTF-8 lies in the file as bytes (schema.sql_text)."""
    return value.decode("utf-8", "surrogatepass") if type(value) is bytes else value


def _make_category_diagnosis(category: str) -> Diagnosis:
    found = _DIAGNOSES.get(category)
    if found is None:
        found = Diagnosis(category=category, domain="", decision="", confidence=0.0, signature="")
        _DIAGNOSES[category] = found
    return found
