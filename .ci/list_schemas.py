"""Generate docs/schemas/*.schema.json for the `--json` output of `slurmwrap why|job|history|jobs|queue|nodes|inputs|
prerun|profile|incidents|spool|db`, from the records, their docstrings and comments, and the few fields named here.

    python .ci/list_schemas.py

A test compares the files with this program, and real output with the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from record_schema import DRAFT, FLAG, NUMBER, TEXT, WHOLE, Known, describe_object, refer_to_record

from slurmwrap.cli.spool import SpoolFiles
from slurmwrap.json_output import SCHEMA
from slurmwrap.model.job_run import Incident, JobRun, PrerunRecord
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.run_time import SOURCES as RUN_TIME_SOURCES
from slurmwrap.model.running_job import GpuUse
from slurmwrap.policy.node_history import NodeCheck, Repair
from slurmwrap.policy.node_score import ScoreTerm
from slurmwrap.report.job_report.budget_table import RetryBudgetReport
from slurmwrap.report.job_report.job_efficiency import RequestAdvice, RunEfficiency
from slurmwrap.report.job_report.next_step import Next
from slurmwrap.report.job_report.timeline import JobTimeline
from slurmwrap.report.job_rows import JobRow
from slurmwrap.report.queue_problems import QueueProblem
from slurmwrap.store.list_queries import Sums
from slurmwrap.store.table_reader import ColumnFigures, FoundFailure

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"


def maybe(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the same type or null."""
    return {"anyOf": [dict(kind), {"type": "null"}]}


def _page(kind: str, command: str, properties: Mapping[str, Any], known: Known) -> dict[str, Any]:
    head = {"kind": {"const": f"slurmwrap.{kind}"}, "schema": {"const": SCHEMA}}
    body = describe_object(
        {**head, **properties}, "Times are Unix seconds. Fields may be added without a new `schema`."
    )
    return {
        "$schema": DRAFT,
        "title": f"slurmwrap {command} --json",
        **body,
        "$defs": {name: known[name] for name in sorted(known)},
    }


def _list(kind: str, command: str, row: Mapping[str, Any], known: Known) -> dict[str, Any]:
    more = {"type": "integer", "minimum": 0, "description": "how many were left out (--limit, --all)"}
    return _page(kind, command, {"rows": {"type": "array", "items": dict(row)}, "more": more}, known)


def _why(known: Known) -> dict[str, Any]:
    refer_to_record(JobTimeline, known, without=("lines",))
    timeline = dict(known.pop("JobTimeline")["properties"])
    line = describe_object({"file": TEXT, "line": WHOLE, "text": TEXT})
    return {
        **timeline,
        "cluster": {"type": "string"},
        "lines": {"type": "array", "items": line},
        "next": refer_to_record(Next, known),
    }


def _history(known: Known) -> dict[str, Any]:
    refer_to_record(Sums, known)
    totals = {**known.pop("Sums")["properties"], "stopped": WHOLE}
    return {
        "runs": {"type": "array", "items": refer_to_record(JobRun, known)},
        "stopped": {"type": "array", "items": refer_to_record(PrerunRecord, known)},
        "totals": describe_object(totals),
        "more": WHOLE,
    }


def _job_efficiency(known: Known) -> dict[str, Any]:
    refer_to_record(RunEfficiency, known)
    run = dict(known.pop("RunEfficiency")["properties"])
    shares = {"time_share": maybe(NUMBER), "mem_share": maybe(NUMBER)}
    uses = {"type": "array", "items": refer_to_record(GpuUse, known)}
    return {
        "address": TEXT,
        "runs": {"type": "array", "items": describe_object({**run, **shares, "gpu_use": uses})},
        "advice": {"type": "array", "items": refer_to_record(RequestAdvice, known)},
    }


def _incident(known: Known) -> dict[str, Any]:
    refer_to_record(Incident, known, without=("incident_id",))
    return {"id": TEXT, **known.pop("Incident")["properties"]}


_NODE = {
    "node": TEXT,
    "status": {"enum": ["suspect", "lemon", "drained", "ok"]},
    "shown": {**TEXT, "description": "the status that gsub acts on"},
    "published": FLAG,
    "since": NUMBER,
    "ratio": maybe(NUMBER),
    "weight": maybe(NUMBER),
    "expected": maybe(NUMBER),
    "jobs": maybe(WHOLE),
    "users": maybe(WHOLE),
    "reason": TEXT,
}
_QUEUE = {
    "job": {**TEXT, "description": "as scontrol takes it: 77, 77_5; the waiting tasks of an array share a row"},
    "user": TEXT,
    "account": TEXT,
    "partition": TEXT,
    "name": TEXT,
    "nodes": WHOLE,
    "gpus": WHOLE,
    "submitted": WHOLE,
    "priority": WHOLE,
    "reason": {**TEXT, "description": "Slurm's"},
    "problem": {"enum": [problem.name.lower() for problem in QueueProblem]},
    "needs_a_person": {**FLAG, "description": "the job does not start unless a person does something"},
    "words": {**TEXT, "description": "why the job waits"},
    "way_out": {**TEXT, "description": "what to do; empty: it is enough to wait"},
    "expected_start": maybe(WHOLE) | {"description": "Slurm's forecast"},
}
_INPUT = {
    "path": TEXT,
    "digest": TEXT,
    "binds": TEXT,
    "uid": WHOLE,
    "reason": TEXT,
    "job_id": maybe(WHOLE),
    "at": NUMBER,
    "now": {"enum": ["same", "changed", "gone", ""]},
}
_PRERUN = {
    "job_id": maybe(WHOLE),
    "prerun_job_id": maybe(WHOLE),
    "attached": FLAG,
    "state": TEXT,
    "script": TEXT,
    "args": {"type": "array", "items": TEXT},
    "mode": TEXT,
    "gpus": WHOLE,
    "fingerprint": TEXT,
    "at": NUMBER,
    "directory": TEXT,
    "progress": maybe({"type": "object"}),
    "verdict": maybe({"enum": ["pass", "fail", "inconclusive"]}),
}


_ROW = {
    "type": "object",
    "description": "column -> value; bytes that are no text as hexadecimal digits",
    "additionalProperties": {"type": ["string", "number", "null"]},
}
_ESTIMATE = describe_object(
    {
        "gpus": WHOLE,
        "failure_probability": {**NUMBER, "description": "that the job fails in a way that the pre-run stops"},
        "scripts": {**WHOLE, "description": "the user's earlier scripts that changed the probability"},
        "site_scripts": {**WHOLE, "description": "the same of all users, as the site publishes them"},
        "run_s": {**NUMBER, "description": "expected run time, seconds"},
        "run_source": {"enum": ["history", "similar jobs", "time limit", "Philly"]},
        "lost_s": {**NUMBER, "description": "run time that such a failure loses, seconds"},
        "prerun_s": {**NUMBER, "description": "expected duration of the pre-run, seconds"},
        "saving": {**NUMBER, "description": "GPU-seconds"},
        "prerun_cost": {**NUMBER, "description": "GPU-seconds"},
        "delay_cost": {**NUMBER, "description": "GPU-seconds"},
        "worthwhile": FLAG,
    }
)
_RUN_TIME = describe_object(
    {
        "p10_s": {**WHOLE, "description": "one run in ten stays below, seconds"},
        "p50_s": {**WHOLE, "description": "median, seconds"},
        "p90_s": {**WHOLE, "description": "nine runs in ten stay below, seconds"},
        "source": {"enum": list(RUN_TIME_SOURCES)},
        "runs": {**WHOLE, "description": "number of runs of that source; 0: it is not made of runs"},
    }
)
_START = describe_object(
    {
        "at": {**WHOLE, "description": "median, Unix seconds"},
        "by": {**WHOLE, "description": "nine of ten such jobs start by then, Unix seconds"},
        "jobs": {**WHOLE, "description": "running jobs and jobs ahead of it that were considered"},
        "predicted": {**WHOLE, "description": "of them: whose end was predicted; the others run until their limit"},
    }
)
_SUBMISSION = {
    "job_id": maybe(WHOLE) | {"description": "null where Slurm refused the job, or its answer was lost: see `error`"},
    "jobs": {
        "type": "array",
        "items": WHOLE,
        "description": "the ids of all parts of an array that is split (docs/packing.md), else `job_id` alone",
    },
    "cluster": TEXT,
    "exit_code": {**WHOLE, "description": "sbatch's, and gsub's own"},
    "error": {**TEXT, "description": "sbatch's last word where there is no job, or a part of the array is missing"},
    "prerun": describe_object(
        {
            "mode": {"enum": ["auto", "gate", "off", "profile"]},
            "reason": TEXT,
            "job_id": {**maybe(WHOLE), "description": "the pre-run's own job; null for none"},
            "shared": {**FLAG, "description": "it is the pre-run of an earlier submission"},
            "keeps_place": {**FLAG, "description": "too few GPUs are free: the job is not held for its pre-run"},
            "estimate": maybe(_ESTIMATE) | {"description": "null: another reason than the expected value decided"},
        }
    ),
    "start": maybe(_START)
    | {"description": "with --explain: when it is expected to start; null: it may start now, or it is not known"},
    "run_time": maybe(_RUN_TIME) | {"description": "expected run time; null: no earlier run says anything"},
    "fitting_time_limit_s": maybe(WHOLE)
    | {"description": "with --explain: a clearly lower time limit that fits its earlier runs, seconds; null: none"},
    "changes": {
        "type": "array",
        "items": describe_object({"option": TEXT, "old": maybe(TEXT), "new": maybe(TEXT), "reason": TEXT}),
    },
    "warnings": {
        "type": "array",
        "items": describe_object({"message": TEXT, "file": TEXT, "line": WHOLE, "fix": TEXT}),
    },
    "forced": {"type": "array", "items": TEXT, "description": "refusals that --force overrode"},
}


def schemas() -> dict[str, dict[str, Any]]:
    """Return file name (without .schema.json) -> schema."""
    pages: dict[str, dict[str, Any]] = {}
    known: Known = {}
    pages["why"] = _page("why", "why", _why(known), known)
    known = {}
    pages["history"] = _page("history", "history", _history(known), known)
    known = {}
    pages["job_efficiency"] = _page("job_efficiency", "job", _job_efficiency(known), known)
    known = {}
    pages["jobs"] = _list("jobs", "jobs list", refer_to_record(JobRow, known), known)
    known = {}
    ledger = maybe(refer_to_record(RetryBudgetReport, known))
    pages["job"] = _page("job", "jobs show", {**_why(known), "kept": {"type": "object"}, "ledger": ledger}, known)
    pages["queue"] = _list("queue", "queue", describe_object(_QUEUE), {})
    pages["nodes"] = _list("nodes", "nodes list", describe_object(_NODE), {})
    known = {}
    terms = {"type": "array", "items": refer_to_record(ScoreTerm, known)}
    repairs = {"type": "array", "items": refer_to_record(Repair, known)}
    check = maybe(refer_to_record(NodeCheck, known))
    node = describe_object({**_NODE, "terms": terms, "repairs": repairs, "check": check})
    pages["node"] = _list("node", "nodes show", node, known)
    known = {}
    pages["node_checks"] = _list("node_checks", "nodes check", refer_to_record(NodeCheck, known), known)
    pages["inputs"] = _list("inputs", "inputs list", describe_object(_INPUT), {})
    cited = {"type": "array", "items": describe_object({"source": TEXT, "line": WHOLE, "text": TEXT})}
    pages["input"] = _page("input", "inputs show", {**_INPUT, "evidence": cited}, {})
    pages["preruns"] = _list("preruns", "prerun list", describe_object(_PRERUN), {})
    output = {"type": "array", "items": TEXT}
    changes = {"type": "array", "items": {"type": "object"}}
    pages["prerun"] = _page("prerun", "prerun show", {**_PRERUN, "changes": changes, "output": output}, {})
    known = {}
    pages["profiles"] = _list("profiles", "profile list", refer_to_record(ResourceProfile, known), known)
    known = {}
    refer_to_record(ResourceProfile, known)
    pages["profile"] = _page("profile", "profile show", known.pop("ResourceProfile")["properties"], known)
    known = {}
    pages["incidents"] = _list(
        "incidents", "incidents list", {"anyOf": [describe_object(_incident(known)), _PUBLIC]}, known
    )
    known = {}
    runs = {"type": "array", "items": refer_to_record(JobRun, known)}
    pages["incident"] = _page("incident", "incidents show", {**_incident(known), "runs": runs}, known)
    known = {}
    pages["spool"] = _list("spool", "spool list", refer_to_record(SpoolFiles, known), known)
    error = {"error": {**TEXT, "description": "The class in slurmwrap/errors.py; UsageError: a wrong command line."},
             "message": TEXT, "hint": {**TEXT, "description": "The way out."}, "exit_code": WHOLE}  # fmt: skip
    pages["error"] = {**_page("error", "", error, {}), "title": "an error of any command with --json"}
    pages["db_rows"] = _list("db_rows", "db rows", _ROW, {})
    known = {}
    pages["db_search"] = _list("db_search", "db search", refer_to_record(FoundFailure, known), known)
    known = {}
    pages["db_analysis"] = _list("db_analysis", "db analyze", refer_to_record(ColumnFigures, known), known)
    pages["submission"] = {**_page("submission", "", _SUBMISSION, {}), "title": "gsub --json"}
    return pages


_PUBLIC = describe_object(
    {"id": {"const": ""}, "category": TEXT, "scope": TEXT, "began": NUMBER, "over_at": {"type": "null"},
     "jobs": WHOLE, "users": WHOLE},
    "What everybody may see of an open incident.",
)  # fmt: skip


def text(schema: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / f"{name}.schema.json").write_text(text(schema), encoding="utf-8")
