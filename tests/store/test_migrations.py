"""A database of an older version is migrated completely and has the layout of a new database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.store import database, db_creation, db_maintenance, sqlite_connection
from slurmwrap.store.database import Database
from slurmwrap.store.db_maintenance import check
from slurmwrap.store.migrations import MIGRATIONS, VERSION, split_statements

RECORD = JobRun(
    attempt=RunKey(cluster="lab", job_id=81, submit_time=100),
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
OBSERVATION = Observation(
    nonce="a" * 32, cluster="lab", job_id=81, context=Context.EPILOG, at=711.0, node="n1", uid=0, facts={"uid": 1001}
)
LATER_MIGRATION = (
    "ALTER TABLE profiles ADD COLUMN watts REAL",
    "CREATE INDEX strikes_by_node ON strikes (node)",
)


def simulate_release(monkeypatch: pytest.MonkeyPatch, *steps: tuple[str, ...]) -> None:
    """Simulate a later slurmwrap whose schema has further migrations."""
    for module in (sqlite_connection, database, db_creation, db_maintenance):
        monkeypatch.setattr(module, "VERSION", VERSION + len(steps))
    added = tuple(lambda step=step: step for step in steps)
    monkeypatch.setattr(db_creation, "MIGRATIONS", (*MIGRATIONS, *added))


@pytest.fixture
def old_database(tmp_path: Path) -> Path:
    """A database of the current version with one run and one observation."""
    path = tmp_path / "old.db"
    with Database.open(path) as store:
        store.save_attempt(RECORD)
        store.ingest(OBSERVATION)
    return path


def read_layout(path: Path) -> tuple[set[tuple[str, str]], dict[str, list[tuple[Any, ...]]]]:
    """Return tables, indexes, views and triggers, and the columns of each table."""
    with closing(sqlite3.connect(path)) as found:
        things = set(found.execute("SELECT type, name FROM sqlite_master"))
        tables = {name for kind, name in things if kind == "table"}
        return things, {name: found.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}


def test_an_older_database_is_migrated_and_keeps_its_rows(
    old_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_release(monkeypatch, LATER_MIGRATION, ("CREATE TABLE racks (name TEXT)",))
    Database.open(tmp_path / "new.db").close()
    with Database.open(old_database) as store:
        assert store.attempts() == (RECORD,)
        assert store.observations("lab", 81) == (OBSERVATION,)
        store.save_profile(ResourceProfile(key="train", gpu_type="a100", gpus_per_node=8))
    assert read_layout(old_database) == read_layout(tmp_path / "new.db")
    found = check(old_database)
    assert (found.version, [fault for fault in found.faults if "mode" not in fault]) == (VERSION + 2, [])
    with closing(sqlite3.connect(old_database)) as opened:
        assert opened.execute("SELECT version FROM migrations").fetchall() == [(n + 1,) for n in range(VERSION + 2)]


def test_a_readonly_open_does_not_migrate_and_reports_the_older_version(
    old_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_release(monkeypatch, LATER_MIGRATION)
    with closing(sqlite3.connect(old_database)) as opened:  # as if a later migration had added it
        opened.execute("ALTER TABLE gpu_faults DROP COLUMN text")
    with Database.open(old_database, readonly=True) as store, pytest.raises(StoreError, match="of an older version"):
        store.node_history(0.0)
    assert check(old_database, thorough=False).version == VERSION


def test_a_failed_migration_leaves_the_database_unchanged(old_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_layout(old_database)
    simulate_release(monkeypatch, LATER_MIGRATION, ("CREATE TABLE profiles (in_the_way)",))
    with pytest.raises(StoreError, match="already exists"):
        Database.open(old_database)
    assert read_layout(old_database) == before
    assert check(old_database, thorough=False).version == VERSION


def test_a_script_is_split_into_statements() -> None:
    script = "-- one; two\nCREATE TABLE a ( -- x;\n  b\n);\nCREATE TRIGGER c AFTER INSERT ON a BEGIN\nSELECT 1;\nEND;\n"
    assert [statement.splitlines()[-1] for statement in split_statements(script)] == [");", "END;"]
