"""A file of an older version is brought to the newest one, whole, and looks like one that was made anew."""

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
LATER = (
    "ALTER TABLE profiles ADD COLUMN watts REAL",
    "CREATE INDEX strikes_by_node ON strikes (node)",
)


def release(monkeypatch: pytest.MonkeyPatch, *steps: tuple[str, ...]) -> None:
    """Make this slurmwrap a later one, whose schema has further steps."""
    for module in (sqlite_connection, database, db_creation, db_maintenance):
        monkeypatch.setattr(module, "VERSION", VERSION + len(steps))
    added = tuple(lambda step=step: step for step in steps)
    monkeypatch.setattr(db_creation, "MIGRATIONS", (*MIGRATIONS, *added))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of today's version with one run and one observation."""
    path = tmp_path / "old.db"
    with Database.open(path) as store:
        store.save_attempt(RECORD)
        store.ingest(OBSERVATION)
    return path


def read_layout(path: Path) -> tuple[set[tuple[str, str]], dict[str, list[tuple[Any, ...]]]]:
    """Tables, indexes, views and triggers; and the columns."""
    with closing(sqlite3.connect(path)) as found:
        things = set(found.execute("SELECT type, name FROM sqlite_master"))
        tables = {name for kind, name in things if kind == "table"}
        return things, {name: found.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}


def test_an_older_file_becomes_the_newest_with_its_rows(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(monkeypatch, LATER, ("CREATE TABLE racks (name TEXT)",))
    Database.open(tmp_path / "new.db").close()
    with Database.open(old) as store:
        assert store.attempts() == (RECORD,)
        assert store.observations("lab", 81) == (OBSERVATION,)
        store.save_profile(ResourceProfile(key="train", gpu_type="a100", gpus_per_node=8))
    assert read_layout(old) == read_layout(tmp_path / "new.db")
    found = check(old)
    assert (found.version, [fault for fault in found.faults if "mode" not in fault]) == (VERSION + 2, [])
    with closing(sqlite3.connect(old)) as opened:
        assert opened.execute("SELECT version FROM migrations").fetchall() == [(1,), (2,), (3,)]


def test_a_file_that_is_only_read_is_not_migrated_and_says_so(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release(monkeypatch, LATER)
    with closing(sqlite3.connect(old)) as opened:  # as if a later step had added it
        opened.execute("ALTER TABLE gpu_faults DROP COLUMN text")
    with Database.open(old, readonly=True) as store, pytest.raises(StoreError, match="of an older version"):
        store.node_history(0.0)
    assert check(old, thorough=False).version == VERSION


def test_a_migration_that_fails_leaves_the_old_version_whole(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_layout(old)
    release(monkeypatch, LATER, ("CREATE TABLE profiles (in_the_way)",))
    with pytest.raises(StoreError, match="already exists"):
        Database.open(old)
    assert read_layout(old) == before
    assert check(old, thorough=False).version == VERSION


def test_a_script_is_split_at_the_ends_of_its_statements() -> None:
    script = "-- one; two\nCREATE TABLE a ( -- x;\n  b\n);\nCREATE TRIGGER c AFTER INSERT ON a BEGIN\nSELECT 1;\nEND;\n"
    assert [statement.splitlines()[-1] for statement in split_statements(script)] == [");", "END;"]
