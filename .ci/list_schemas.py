"""Writes docs/schemas/*.schema.json of what `slurmwrap why|history|jobs|nodes|inputs|prerun|profile|incidents|spool|db`
print with --json: from the records, their docstrings and comments, and from the few fields named here.

    python .ci/list_schemas.py

A test holds the files to this, and real output to the files.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from field_comments import read_field_comments

from slurmwrap.cli.spool import SpoolFiles
from slurmwrap.fast_dataclasses import fields, is_dataclass
from slurmwrap.json_output import SCHEMA
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.run import Incident, JobRun, PrerunRecord
from slurmwrap.policy.node_history import Repair
from slurmwrap.policy.node_score import ScoreTerm
from slurmwrap.report.job_report.budget_table import RetryBudgetReport
from slurmwrap.report.job_report.next_step import Next
from slurmwrap.report.job_report.timeline import JobTimeline
from slurmwrap.report.job_rows import JobRow
from slurmwrap.store.deserialize import _resolve_type
from slurmwrap.store.failure_search import FoundFailure
from slurmwrap.store.queries import Sums
from slurmwrap.store.table_reader import ColumnFigures

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
_TEXT, _WHOLE, _NUMBER, _FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))
Known = dict[str, Any]


def maybe(kind: Mapping[str, Any]) -> dict[str, Any]:
    """The same, or null."""
    return {"anyOf": [dict(kind), {"type": "null"}]}


def record(kind: type[Any], known: Known, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A reference to the schema of a record, which is added to `known`."""
    name = kind.__name__
    if name not in known:
        known[name] = {}  # before its fields: a record may hold its own kind
        said = read_field_comments(kind)
        properties = {
            one.name: _type(_resolve_type(one, kind.__module__), known)
            | ({"description": said[one.name]} if one.name in said else {})
            for one in fields(kind)
            if one.name not in without
        }
        known[name] = _object(properties, " ".join((inspect.getdoc(kind) or "").split()))
    return {"$ref": f"#/$defs/{name}"}


def _type(kind: Any, known: Known) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if get_origin(kind) is types.UnionType:
        return {"anyOf": [_type(one, known) for one in get_args(kind)]}
    if get_origin(kind) in (tuple, frozenset, list):
        return {"type": "array", "items": _type(get_args(kind)[0], known)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [one.value for one in kind]}
    if is_dataclass(kind):
        return record(kind, known)
    return {"type": "object"} if get_origin(kind) is not None else {}


def _object(properties: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    told = {"description": description} if description else {}
    return {"type": "object", **told, "properties": dict(properties), "required": list(properties)}


def _page(kind: str, command: str, properties: Mapping[str, Any], known: Known) -> dict[str, Any]:
    head = {"kind": {"const": f"slurmwrap.{kind}"}, "schema": {"const": SCHEMA}}
    body = _object({**head, **properties}, "Times are Unix seconds. Fields may be added without a new `schema`.")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"slurmwrap {command} --json",
        **body,
        "$defs": {name: known[name] for name in sorted(known)},
    }


def _list(kind: str, command: str, row: Mapping[str, Any], known: Known) -> dict[str, Any]:
    more = {"type": "integer", "minimum": 0, "description": "how many were left out (--limit, --all)"}
    return _page(kind, command, {"rows": {"type": "array", "items": dict(row)}, "more": more}, known)


def _why(known: Known) -> dict[str, Any]:
    record(JobTimeline, known, without=("lines",))
    story = dict(known.pop("JobTimeline")["properties"])
    line = _object({"file": _TEXT, "line": _WHOLE, "text": _TEXT})
    return {**story, "lines": {"type": "array", "items": line}, "next": record(Next, known)}


def _history(known: Known) -> dict[str, Any]:
    record(Sums, known)
    totals = {**known.pop("Sums")["properties"], "stopped": _WHOLE}
    return {
        "runs": {"type": "array", "items": record(JobRun, known)},
        "stopped": {"type": "array", "items": record(PrerunRecord, known)},
        "totals": _object(totals),
        "more": _WHOLE,
    }


def _incident(known: Known) -> dict[str, Any]:
    record(Incident, known, without=("incident_id",))
    return {"id": _TEXT, **known.pop("Incident")["properties"]}


_NODE = {
    "node": _TEXT,
    "status": {"enum": ["suspect", "lemon", "drained", "ok"]},
    "shown": {**_TEXT, "description": "the status that gsub acts on"},
    "published": _FLAG,
    "since": _NUMBER,
    "ratio": maybe(_NUMBER),
    "weight": maybe(_NUMBER),
    "expected": maybe(_NUMBER),
    "jobs": maybe(_WHOLE),
    "users": maybe(_WHOLE),
    "reason": _TEXT,
}
_INPUT = {
    "path": _TEXT,
    "digest": _TEXT,
    "binds": _TEXT,
    "uid": _WHOLE,
    "reason": _TEXT,
    "job_id": maybe(_WHOLE),
    "at": _NUMBER,
    "now": {"enum": ["same", "changed", "gone", ""]},
}
_PRERUN = {
    "job_id": maybe(_WHOLE),
    "prerun_job_id": maybe(_WHOLE),
    "attached": _FLAG,
    "state": _TEXT,
    "script": _TEXT,
    "args": {"type": "array", "items": _TEXT},
    "mode": _TEXT,
    "gpus": _WHOLE,
    "fingerprint": _TEXT,
    "at": _NUMBER,
    "directory": _TEXT,
    "progress": maybe({"type": "object"}),
    "verdict": maybe({"enum": ["pass", "fail", "inconclusive"]}),
}


_ROW = {
    "type": "object",
    "description": "column -> value; bytes that are no text as hexadecimal digits",
    "additionalProperties": {"type": ["string", "number", "null"]},
}
_SUBMISSION = {
    "job_id": maybe(_WHOLE) | {"description": "null where Slurm refused the job, or its answer was lost: see `error`"},
    "cluster": _TEXT,
    "exit_code": {**_WHOLE, "description": "sbatch's, and gsub's own"},
    "error": {**_TEXT, "description": "sbatch's last word where there is no job"},
    "prerun": _object(
        {
            "mode": {"enum": ["auto", "gate", "off", "profile"]},
            "reason": _TEXT,
            "job_id": {**maybe(_WHOLE), "description": "the pre-run's own job; null for none"},
            "shared": {**_FLAG, "description": "it is the pre-run of an earlier submission"},
        }
    ),
    "changes": {
        "type": "array",
        "items": _object({"option": _TEXT, "old": maybe(_TEXT), "new": maybe(_TEXT), "reason": _TEXT}),
    },
    "warnings": {"type": "array", "items": _object({"message": _TEXT, "file": _TEXT, "line": _WHOLE, "fix": _TEXT})},
    "forced": {"type": "array", "items": _TEXT, "description": "refusals that --force overrode"},
}


def schemas() -> dict[str, dict[str, Any]]:
    """File name (without .schema.json) -> schema."""
    pages: dict[str, dict[str, Any]] = {}
    known: Known = {}
    pages["why"] = _page("why", "why", _why(known), known)
    known = {}
    pages["history"] = _page("history", "history", _history(known), known)
    known = {}
    pages["jobs"] = _list("jobs", "jobs list", record(JobRow, known), known)
    known = {}
    ledger = maybe(record(RetryBudgetReport, known))
    pages["job"] = _page("job", "jobs show", {**_why(known), "kept": {"type": "object"}, "ledger": ledger}, known)
    pages["nodes"] = _list("nodes", "nodes list", _object(_NODE), {})
    known = {}
    terms = {"type": "array", "items": record(ScoreTerm, known)}
    repairs = {"type": "array", "items": record(Repair, known)}
    pages["node"] = _list("node", "nodes show", _object({**_NODE, "terms": terms, "repairs": repairs}), known)
    pages["inputs"] = _list("inputs", "inputs list", _object(_INPUT), {})
    cited = {"type": "array", "items": _object({"source": _TEXT, "line": _WHOLE, "text": _TEXT})}
    pages["input"] = _page("input", "inputs show", {**_INPUT, "evidence": cited}, {})
    pages["preruns"] = _list("preruns", "prerun list", _object(_PRERUN), {})
    output = {"type": "array", "items": _TEXT}
    changes = {"type": "array", "items": {"type": "object"}}
    pages["prerun"] = _page("prerun", "prerun show", {**_PRERUN, "changes": changes, "output": output}, {})
    known = {}
    pages["profiles"] = _list("profiles", "profile list", record(ResourceProfile, known), known)
    known = {}
    record(ResourceProfile, known)
    pages["profile"] = _page("profile", "profile show", known.pop("ResourceProfile")["properties"], known)
    known = {}
    pages["incidents"] = _list("incidents", "incidents list", {"anyOf": [_object(_incident(known)), _PUBLIC]}, known)
    known = {}
    runs = {"type": "array", "items": record(JobRun, known)}
    pages["incident"] = _page("incident", "incidents show", {**_incident(known), "runs": runs}, known)
    known = {}
    pages["spool"] = _list("spool", "spool list", record(SpoolFiles, known), known)
    error = {"error": {**_TEXT, "description": "The class in slurmwrap/errors.py; UsageError: a wrong command line."},
             "message": _TEXT, "hint": {**_TEXT, "description": "The way out."}, "exit_code": _WHOLE}  # fmt: skip
    pages["error"] = {**_page("error", "", error, {}), "title": "an error of any command with --json"}
    pages["db_rows"] = _list("db_rows", "db rows", _ROW, {})
    known = {}
    pages["db_search"] = _list("db_search", "db search", record(FoundFailure, known), known)
    known = {}
    pages["db_analysis"] = _list("db_analysis", "db analyze", record(ColumnFigures, known), known)
    pages["submission"] = {**_page("submission", "", _SUBMISSION, {}), "title": "gsub --json"}
    return pages


_PUBLIC = _object(
    {"id": {"const": ""}, "category": _TEXT, "scope": _TEXT, "began": _NUMBER, "over_at": {"type": "null"},
     "jobs": _WHOLE, "users": _WHOLE},
    "What everybody may see of an open incident.",
)  # fmt: skip


def text(schema: Mapping[str, Any]) -> str:
    """The file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / f"{name}.schema.json").write_text(text(schema), encoding="utf-8")
