"""What every table and column of the database means: the schema's own comments, and for columns that are alike in many
tables, or came by ALTER TABLE, one place here. docs/database.md and Datasette show it. Needs a scratch database only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.store.migrations import MIGRATIONS

_TABLE = re.compile(r"CREATE (TABLE|VIEW) (\w+)(?: AS| \() -- (.+)")
_COLUMN = re.compile(r"^\s*(\w+)(?: (?:TEXT|INTEGER|REAL|BLOB)[^-\n]*?| NOT NULL[^-\n]*?)?,? -- (.+)$", re.MULTILINE)
_ADDED = re.compile(r"ALTER TABLE (\w+) ADD COLUMN (\w+)[^-]* -- (.+)")

# By column, or by table.column where a table means something else by it.
_KNOWN = {
    "more": "JSON: fields of the record that have no column",
    "cluster": "ClusterName of slurm.conf",
    "job_id": "raw job id",
    "submit_time": "Unix seconds; changes on requeue",
    "at": "Unix seconds",
    "node": "NodeName",
    "uid": "of the job's owner; -1: unknown",
    "user": "login name of the job's owner",
    "name": "job name",
    "account": "Slurm account",
    "partition": "partition, or several with commas between",
    "reason": "why, in a sentence",
    "address": "as people name it: 81, or 77_2 for an array task",
    "restarts": "how often Slurm had requeued it",
    "gpus": "GPUs of the whole job",
    "nodes": "number of nodes",
    "cpus": "CPUs of the whole job",
    "path": "absolute path",
    "text": "the line, cut",
    "key": "what it is known by",
    "source": "where it was measured",
    "began": "Unix seconds",
    "category": "of the taxonomy",
    "slim": "1: its details were removed after [retention] detail_d",
    "fingerprint": "of script, arguments, code and environment; 16 characters once slim",
    "script_sha256": "of the script; 16 characters once slim",
    "profile_key": "profiles.key, without the uid",
    "id": "number, rising",
    "names.name": "the user, account, cluster or category",
    "job_names.name": "the job name",
    "runs.user": "names.id of the owner's login name",
    "runs.account": "names.id of the Slurm account",
    "runs.category": "names.id; NULL: not judged",
    "totals.value": "the count, or sum",
    "pruned.what": "kind of row, as `slurmwrap db prune` names it",
    "pruned.at": "Unix seconds",
    "actions.done_at": "Unix seconds; NULL: not done",
    "removals.ended": "Unix seconds; NULL: it is still out",
    "incidents.over_at": "Unix seconds; NULL: still open",
    "submissions.plan": "JSON: the first PlacementPlan; {} once slim",
    "submissions.changes": "JSON list: what the rewrite changed, with reasons; [] once slim",
    "submissions.fingerprint": "of script, arguments, code and environment; 16 characters once slim",
    "runs.end_time": "Unix seconds",
    "runs.run_s": "seconds from start to end; 0: it never started",
    "observations.nonce": "128 random bits; a user's begins with his uid",
    "set_aside.count": "how many",
    "set_aside.reason": "why they were not believed",
    "set_aside.first_at": "Unix seconds",
    "set_aside.last_at": "Unix seconds",
    "set_aside.last_name": "name of the newest file",
    "attempts.reason": "Slurm's Reason",
    "attempts.nodes": "JSON list of NodeNames",
    "attempts.exit_code": "of the batch script",
    "attempts.signal": "that ended the batch script",
    "attempts.derived_exit_code": "highest of its steps",
    "attempts.eligible_time": "Unix seconds; NULL in a slim row: the same as submit_time",
    "attempts.start_time": "Unix seconds; NULL: it never started",
    "attempts.end_time": "Unix seconds; NULL: it has not ended",
    "attempts.time_limit_s": "seconds",
    "attempts.std_out": "path; empty once slim",
    "attempts.std_err": "path; empty once slim",
    "attempts.measurement": "JSON: what the Epilogs measured, MiB and seconds; NULL once slim",
    "attempts.diagnosis_domain": "U user program, AE engine, IF infrastructure, RS resource scheduler",
    "attempts.diagnosis_confidence": "0 to 1",
    "attempts.diagnosis_signature": "id of the signature that decided",
    "attempts.diagnosis_advice": "one sentence to the researcher",
    "attempts.diagnosis_node": "the node that is blamed; empty: none",
    "attempts.diagnosis_conclusive": "1: the fault takes the node out by itself",
    "attempts.diagnosis_input_path": "the file that is blamed; the user's word",
    "attempts.diagnosis_step": "furthest training step seen; the user's word",
    "attempts.diagnosis_checkpoint_step": "step of its newest checkpoint; the user's word",
    "attempts.diagnosis_resumed": "1: it went on from a checkpoint; the user's word",
    "attempts.decision_reason": "one sentence",
    "attempts.retry_at": "Unix seconds: when the next run may start",
    "attempts.mem_mib_per_node": "MiB, as asked for",
    "attempts.mem_mib_per_cpu": "MiB, as asked for",
    "attempts.incident": "incidents.incident_id; empty: none",
    "actions.action_id": "number, rising",
    "actions.rule": "of [rules] in the configuration",
    "actions.key": "what is updated, in scontrol's words",
    "actions.value": "its new value",
    "actions.because": "one sentence",
    "actions.intended_at": "Unix seconds; written before Slurm is asked",
    "strikes.strike_id": "number, rising",
    "strikes.conclusive": "1: the fault takes the node out by itself",
    "strikes.incident": "incidents.incident_id: the strike counts no more",
    "strikes.submit_time": "of that attempt",
    "strikes.cleared_at": "Unix seconds: a person said that it is void",
    "strikes.cleared_by": "who he was",
    "blocked_inputs.job_id": "the job that it made fail",
    "submissions.name": "job name",
    "submissions.at": "Unix seconds, the submit host's clock",
    "submissions.nodes": "number of nodes",
    "submissions.script_path": "empty once slim",
    "submissions.work_dir": "empty once slim",
    "submissions.retry": "1: its user agreed to retries",
    "submissions.prerun_mode": "as in the configuration",
    "submissions.prerun_job_id": "job id of its pre-run",
    "submissions.output_appends": "1: a retry may write to the same output file",
    "submissions.lot": "which draw of the hold-out it took part in; empty: none",
    "submissions.held_out": "1: the draw left its pre-run out",
    "preruns.prerun_job_id": "job id of the pre-run itself",
    "preruns.verdict_reason": "one sentence",
    "preruns.verdict_steps": "optimizer steps that ran",
    "preruns.verdict_seconds": "how long it ran",
    "preruns.verdict_category": "of the taxonomy; empty: none",
    "preruns.verdict_input_path": "the file that is blamed",
    "preruns.verdict_input_fault": "what our own read of it said",
    "profiles.cpus_per_gpu": "least CPUs within 5 % of the best throughput",
    "profiles.steps_per_s": "per GPU",
    "profiles.gpu_type": "GRES type; empty: unknown",
    "profiles.gpus_per_node": "GPUs per node it was measured with",
    "profiles.runs": "complete runs that went into it",
    "profiles.preruns": "pre-runs that went into it",
    "profiles.confidence": "0 to 1",
    "profiles.measured_at": "Unix seconds, the newest",
    "incidents.quiet_s": "it is over when no run failed of it for so long, seconds",
    "incidents.spread_s": "then its retries start within so long, seconds",
    "incidents.max_s": "it lasts no longer, seconds",
    "removals.reason": "Slurm's Reason of the node",
    "repairs.who": "who left the mark",
    "repairs.note": "in his words",
    "delays.eligible_at": "Unix seconds",
    "migrations.version": "of the schema",
    "seen.at": "Unix seconds: of the observation",
    "ledger_resets.who": "who said so",
    "ledger_resets.note": "in his words",
    "failures.ended_utc": "date and time, UTC",
    "failures.state": "final Slurm state",
    "failures.gpu_hours": "GPU-hours that it held",
    "failures.decision": "after ledger and consent",
    "failures.decision_reason": "one sentence",
    "failures.advice": "one sentence to the researcher",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One table or view. `columns`: name -> meaning; `key`: columns of the primary key."""

    name: str
    meaning: str
    columns: Mapping[str, str]
    key: tuple[str, ...] = ()


@cache
def described() -> tuple[Described, ...]:
    """Every table and view of the newest schema, by name."""
    script = "\n".join(statement for step in MIGRATIONS for statement in step)
    meanings = {name: meaning for _, name, meaning in _TABLE.findall(script)}
    comments = _comments()
    with closing(sqlite3.connect(":memory:")) as scratch:
        for step in MIGRATIONS:
            for statement in step:
                scratch.execute(statement)
        names = [
            row[0]
            for row in scratch.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
            if not row[0].startswith("sqlite_")
        ]
        return tuple(_described(scratch, name, meanings, comments) for name in names)


def _described(
    scratch: sqlite3.Connection, name: str, meanings: Mapping[str, str], comments: Mapping[tuple[str, str], str]
) -> Described:
    rows = scratch.execute(f"SELECT name, pk FROM pragma_table_info('{name}') ORDER BY cid").fetchall()
    key = tuple(column for column, place in sorted(rows, key=lambda row: row[1]) if place)
    columns = {
        column: _KNOWN.get(f"{name}.{column}") or comments.get((name, column)) or _KNOWN.get(column, "")
        for column, _ in rows
    }
    return Described(name=name, meaning=meanings.get(name, ""), columns=columns, key=key)


def _comments() -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for statement in (statement for step in MIGRATIONS for statement in step):
        head = _TABLE.match(statement)
        if head:
            table = head[2].removesuffix("_with_rowid")
            found |= {(table, name): meaning for name, meaning in _COLUMN.findall(statement) if name != "CREATE"}
        elif added := _ADDED.match(statement):
            found[added[1], added[2]] = added[3]
    return found


def markdown() -> str:
    """The tables of docs/database.md."""
    return "\n".join(_section(one) for one in described())


def _section(one: Described) -> str:
    key = f" Key: `{', '.join(one.key)}`." if one.key else ""
    head = f"### `{one.name}`\n\n{one.meaning[:1].upper()}{one.meaning[1:]}.{key}\n\n| column | meaning |\n|---|---|\n"
    return head + "".join(
        f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |\n" for name, meaning in one.columns.items()
    )
