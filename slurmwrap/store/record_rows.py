"""Convert records to database rows and back. Pure; standard library only, because gsub uses it in every call.

There is one RecordTable per record: plain columns for what is queried and read by people, JSON text for lists and
nested records, and `more` for fields that have no column of their own yet. migrations.py creates the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from slurmwrap.fast_dataclasses import MISSING, dataclass, field, fields
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.job_run import (
    ActionRecord,
    Incident,
    JobRun,
    LedgerReset,
    PrerunRecord,
    QueueDelay,
    StrikeRecord,
)
from slurmwrap.model.observation import Observation
from slurmwrap.model.resource_profile import Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.policy.node_history import NodeCheck, Removal, Repair
from slurmwrap.sbatch.job_request import ResourceShape
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.serialize import to_json_dict, to_json_value
from slurmwrap.store.sql_text import dump as dump
from slurmwrap.store.sql_text import encode_sql_text as encode_sql_text

T = TypeVar("T")
SqlValue = str | int | float | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """A record inside a record, stored in columns that start with `prefix`. NULL in `marker`: there is no record."""

    prefix: str
    marker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTable:
    """The table of a record. `json`, `boolean`: columns that need conversion; `key`: columns that identify a row."""

    name: str
    record: type[Any]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    json: frozenset[str] = frozenset()
    boolean: frozenset[str] = frozenset()
    nested: Mapping[str, Nested] = field(default_factory=dict)
    # JSON columns that contain one record: column → its class.
    inside: Mapping[str, type[Any]] = field(default_factory=dict)


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ATTEMPT_KEY = Nested(prefix="", marker="submit_time")

OBSERVATIONS = RecordTable(
    name="observations",
    record=Observation,
    key=("nonce",),
    columns=_split_words("nonce cluster job_id context at node uid facts"),
    json=frozenset({"facts"}),
)
ATTEMPTS = RecordTable(
    name="attempts",
    record=JobRun,
    key=_split_words("cluster job_id submit_time"),
    columns=_split_words(
        """cluster job_id submit_time address restarts name user uid account partition state reason exit_code signal
        derived_exit_code nodes gpus cpus eligible_time start_time end_time time_limit_s mem_mib_per_node
        mem_mib_per_cpu std_out std_err measurement
        diagnosis_category diagnosis_domain diagnosis_decision diagnosis_confidence diagnosis_signature
        diagnosis_evidence diagnosis_advice diagnosis_node diagnosis_conclusive diagnosis_input_path diagnosis_step
        diagnosis_resumed diagnosis_checkpoint_step decision decision_reason retry_at incident reconciled"""
    ),
    json=frozenset({"nodes", "measurement", "diagnosis_evidence"}),
    boolean=frozenset({"reconciled", "diagnosis_conclusive", "diagnosis_resumed"}),
    nested={"attempt": _ATTEMPT_KEY, "diagnosis": Nested(prefix="diagnosis_", marker="diagnosis_category")},
    inside={"measurement": Measurement, "waited": QueueDelay},
)
ACTIONS = RecordTable(
    name="actions",
    record=ActionRecord,
    key=("action_id",),
    columns=_split_words(
        """action_id cluster job_id submit_time rule mode verb target key value reason intended_at done_at error"""
    ),
    nested={"attempt": _ATTEMPT_KEY},
)
STRIKES = RecordTable(
    name="strikes",
    record=StrikeRecord,
    key=("strike_id",),
    columns=_split_words("node cause conclusive text at job_id uid incident cleared_at cleared_by"),
    boolean=frozenset({"conclusive"}),
)
REMOVALS = RecordTable(
    name="removals",
    record=Removal,
    key=_split_words("node began"),
    columns=_split_words("node began reason ours ended"),
    boolean=frozenset({"ours"}),
)
REPAIRS = RecordTable(
    name="repairs",
    record=Repair,
    key=_split_words("node at kind"),
    columns=_split_words("node at who kind note"),
)
# Checks are marks of a node, too: they are in the table of the repairs, with another `kind`.
NODE_CHECKS = RecordTable(
    name="repairs",
    record=NodeCheck,
    key=_split_words("node at kind"),
    columns=_split_words("node at who kind note"),
)
BLOCKED_INPUTS = RecordTable(
    name="blocked_inputs",
    record=BlockedInput,
    key=_split_words("digest uid"),
    columns=_split_words("digest uid path reason at job_id"),
)
SUBMISSIONS = RecordTable(
    name="submissions",
    record=Submission,
    key=_split_words("cluster job_id at"),
    columns=_split_words(
        """cluster job_id at uid user name script_path script_sha256 work_dir gpus nodes retry profile_key prerun_mode
        prerun_job_id fingerprint inputs output_appends plan changes holdout_group held_out"""
    ),
    json=frozenset({"inputs", "plan", "changes"}),
    inside={"shape": ResourceShape},
    boolean=frozenset({"retry", "output_appends", "held_out"}),
)
PRERUNS = RecordTable(
    name="preruns",
    record=PrerunRecord,
    key=_split_words("cluster prerun_job_id at"),
    columns=_split_words(
        """cluster prerun_job_id at job_id uid verdict_outcome verdict_layer verdict_reason verdict_steps
        verdict_seconds verdict_category verdict_findings verdict_evidence verdict_measurement verdict_input_path
        verdict_input_fault fingerprint profile_key gpus plan changes released"""
    ),
    json=frozenset({"verdict_findings", "verdict_evidence", "verdict_measurement", "plan", "changes"}),
    boolean=frozenset({"released"}),
    nested={"verdict": Nested(prefix="verdict_", marker="verdict_outcome")},
    inside={"verdict_measurement": Measurement},
)
PROFILES = RecordTable(
    name="profiles",
    record=ResourceProfile,
    key=("key",),
    columns=_split_words(
        """key cpus_per_gpu mem_mib_per_gpu steps_per_s gpu_type gpus_per_node runs preruns confidence source
        measured_at"""
    ),
)
INCIDENTS = RecordTable(
    name="incidents",
    record=Incident,
    key=("incident_id",),
    columns=_split_words(
        "incident_id category scope began last over_at jobs uids nodes reach quiet_s spread_s max_s",
    ),
    json=frozenset({"jobs", "uids", "nodes", "reach"}),
)
DELAYS = RecordTable(
    name="delays",
    record=QueueDelay,
    key=_split_words("cluster job_id submit_time"),
    columns=_split_words(
        """cluster job_id submit_time address user gpus eligible_at seen_at fair_share_s fragmentation_s unknown_s
        waits_for over"""
    ),
    boolean=frozenset({"over"}),
    nested={"attempt": _ATTEMPT_KEY},
)
LEDGER_RESETS = RecordTable(
    name="budget_resets",
    record=LedgerReset,
    key=_split_words("cluster job_id at"),
    columns=_split_words("cluster job_id at who note"),
)
TABLES = (
    *(OBSERVATIONS, ATTEMPTS, ACTIONS, STRIKES, BLOCKED_INPUTS),
    *(SUBMISSIONS, PRERUNS, PROFILES, INCIDENTS, REMOVALS, REPAIRS, DELAYS, LEDGER_RESETS),
)


def row_from_record(table: RecordTable, record: Any) -> dict[str, SqlValue]:
    """Convert a record to a row; `more` has the fields without a column, except those with an empty default value."""
    flat = _flatten_record(table, to_json_dict(record))
    row = {name: _convert_to_column(table, name, flat.pop(name, None)) for name in table.columns}
    row["more"] = dump(_drop_empty_fields(table.record, flat))
    return row


def more_from_record(table: RecordTable, record: Any) -> str:
    """Return the column `more` of row_from_record alone."""
    have = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in table.columns}
    flat = _flatten_record(table, {name: to_json_value(value) for name, value in have.items()})
    return dump(
        _drop_empty_fields(table.record, {name: value for name, value in flat.items() if name not in table.columns})
    )


def _flatten_record(table: RecordTable, plain: dict[str, Any]) -> dict[str, Any]:
    flat = _flatten(table, plain)
    for name, kind in table.inside.items():
        if flat.get(name):
            flat[name] = _drop_empty_fields(kind, flat[name])
    return flat


def _find_general_advice(category: str) -> str:
    """Return the general advice for a category: retention deletes the advice of old runs."""
    from slurmwrap.diagnosis.taxonomy import CATEGORIES

    return CATEGORIES[category].advice if category in CATEGORIES else ""


def _drop_empty_fields(kind: Any, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return `plain` without fields that have their empty default value; their names took half of a row."""
    silent = _list_empty_defaults(kind)
    return {name: value for name, value in plain.items() if name not in silent or value != silent[name]}


@cache
def _list_empty_defaults(kind: Any) -> dict[str, Any]:
    found = ((f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(kind))
    plain = {name: to_json_value(value) for name, value in found if value is not MISSING}
    return {name: value for name, value in plain.items() if not value}


def record_from_row(table: RecordTable, row: Mapping[str, Any]) -> Any:
    """Convert a row (of any schema version) to its record. ValueError names the field that cannot be read."""
    flat = {name: _convert_from_column(table, name, row[name]) for name in table.columns if name in row}
    flat.update(json.loads(row["more"]) if row.get("more") else {})
    if row.get("slim") and flat.get("diagnosis_category") and not flat.get("diagnosis_advice"):
        flat["diagnosis_advice"] = _find_general_advice(flat["diagnosis_category"])
    return record_from_json(table.record, _restore_nesting(table, flat))


def insert(table: RecordTable, how: str = "", *, conflict: bool = False, also: tuple[str, ...] = ()) -> str:
    """Return an INSERT with named values for all columns of a row; `conflict`: replace a row with the same key."""
    columns = (*table.columns, "more", *also)
    sql = f"INSERT {how} INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join(':' + c for c in columns)})"
    if not conflict:
        return sql
    changed = ", ".join(f"{column} = excluded.{column}" for column in columns if column not in table.key)
    return f"{sql} ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changed}"


def _flatten(table: RecordTable, plain: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        nested = table.nested.get(name)
        if nested is None:
            flat[name] = value
        elif value is not None:
            flat.update(_add_prefix(nested.prefix, value))
    return flat


def _add_prefix(prefix: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in plain.items()}


def _restore_nesting(table: RecordTable, flat: dict[str, Any]) -> dict[str, Any]:
    plain = dict(flat)
    for name, nested in table.nested.items():
        if flat.get(nested.marker) is None:
            plain[name] = None
            continue
        start = len(nested.prefix)
        inside = {key[start:]: value for key, value in flat.items() if key.startswith(nested.prefix)}
        plain[name] = {key: value for key, value in inside.items() if value is not None}
    return plain


def _convert_to_column(table: RecordTable, name: str, value: Any) -> SqlValue:
    if value is None:
        return None
    if name in table.json:
        return dump(value)
    if name in table.boolean:
        return int(value)
    return encode_sql_text(value) if isinstance(value, str) else value


def _convert_from_column(table: RecordTable, name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogatepass")
    if value is not None and name in table.json:
        return json.loads(value)
    if value is not None and name in table.boolean:
        return bool(value)
    return value
