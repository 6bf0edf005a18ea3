"""A file of every older version is brought to the newest one, whole, and looks like one that was made anew."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.model.evidence import Attempt, Diagnosis
from slurmwrap.model.run import AttemptRecord
from slurmwrap.policy.node_history import Exposure
from slurmwrap.store import schema
from slurmwrap.store.database import Database
from slurmwrap.store.db_maintenance import check
from slurmwrap.store.migrations import APPLICATION_ID, MIGRATIONS, VERSION

RECORD = AttemptRecord(
    attempt=Attempt(cluster="lab", job_id=81, submit_time=100),
    address="81",
    user="ada",
    uid=1001,
    account="vision",
    nodes=("n1",),
    gpus=8,
    start_time=110,
    end_time=710,
    time_limit_s=3600,
    mem_mib_per_node=65_536,
    state="FAILED",
    diagnosis=Diagnosis(
        category="gpu_oom",
        domain="U",
        decision="stop",
        confidence=0.9,
        signature="gpu.oom_torch",
        step=70,
        resumed=True,
    ),
    decision="stop",
    retry_at=800.0,
    reconciled=True,
)
OBSERVATION = {
    "nonce": "a" * 32,
    "cluster": "lab",
    "job_id": 81,
    "context": "epilog",
    "at": 711.0,
    "node": "n1",
    "uid": 0,
}


XID = "NVRM: Xid (PCI:0000:4b:00): 79, pid=1, GPU has fallen off the bus."
FACTS = {"uid": 1001, "kernel": [{"text": XID, "at": 700.0}, "odd", 7]}


def made_at(version: int, path: Path) -> None:
    """With one run and one observation, in the columns of that time; what had none is in `more`."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in (statement for step in MIGRATIONS[:version] for statement in step):
            connection.execute(statement)
        row = schema.to_row(schema.ATTEMPTS, RECORD)
        known = {column[1] for column in connection.execute("PRAGMA table_info(attempts)")}
        aside = {name: value for name, value in row.items() if name not in known and value not in (None, "")}
        row = {name: value for name, value in row.items() if name in known} | {"more": schema.dump(aside)}
        _insert(connection, "attempts", row)
        _insert(connection, "observations", {**OBSERVATION, "facts": schema.dump(FACTS)})
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names = ", ".join(row)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join(':' + name for name in row)})", row)


def layout(path: Path) -> tuple[set[tuple[str, str]], dict[str, list[tuple[Any, ...]]]]:
    """Tables, indexes, views and triggers; and the columns."""
    with closing(sqlite3.connect(path)) as connection:
        things = set(connection.execute("SELECT type, name FROM sqlite_master"))
        tables = {name for kind, name in things if kind == "table"}
        return things, {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}


@pytest.mark.parametrize("version", range(1, VERSION))
def test_every_older_version_becomes_the_newest_with_its_rows(version: int, tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    made_at(version, old)
    Database.open(new).close()
    with Database.open(old) as store:
        assert store.attempts() == (RECORD,)
        assert [(o.nonce, dict(o.facts)) for o in store.observations("lab", 81)] == [("a" * 32, FACTS)]
        history = store.node_history(0.0)
    assert history.exposure == (Exposure(node="n1", runs=1, hours=600 / 3600),)
    # Kernel lines have had a table of their own since step 4, which takes them out of what was there.
    assert [(fault.node, fault.job_id, fault.text) for fault in history.gpu_faults] == [("n1", 81, XID)] * (version < 4)
    assert layout(old) == layout(new)
    found = check(old)
    assert (found.version, [fault for fault in found.faults if "mode" not in fault]) == (VERSION, [])
    with closing(sqlite3.connect(old)) as connection:
        totals = connection.execute("SELECT metric, a, b, value FROM totals ORDER BY 1").fetchall()
        runs = connection.execute("SELECT end_time, job_id, run_s, gpus, outcome FROM runs").fetchall()
    assert ("attempts", "gpu_oom", "stop", 1.0) in totals and ("gpu_seconds", "gpu_oom", "", 4800.0) in totals
    assert runs == [(710, 81, 600, 8, 2)]


def test_a_file_that_is_only_read_is_not_migrated_and_says_so(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    made_at(4, old)
    with Database.open(old, readonly=True) as store, pytest.raises(StoreError, match="of an older version"):
        store.node_history(0.0)
    assert check(old, thorough=False).version == 4
