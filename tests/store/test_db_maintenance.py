"""Backup of a database while other processes write it, and the faults that a check finds, on real files."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from slurmwrap.errors import StoreError
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.store import db_maintenance
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import VERSION

RECORD = JobRun(attempt=RunKey(cluster="ada", job_id=1, submit_time=10), address="1", user="ada", end_time=20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Database.open(tmp_path / "site.db") as store:
        for number in range(300):
            store.save_attempt(replace(RECORD, attempt=RunKey(cluster="ada", job_id=number, submit_time=10)))
    return tmp_path / "site.db"


def read_job_ids(path: Path) -> list[int]:
    with Database.open(path, readonly=True) as store:
        return [record.attempt.job_id for record in store.attempts()]


def test_a_backup_is_complete_and_private_and_reports_progress(path: Path, tmp_path: Path) -> None:
    progress: list[float] = []
    copy = tmp_path / "copy.db"
    assert db_maintenance.backup(path, copy, progress=progress.append) == copy.stat().st_size
    assert read_job_ids(copy) == list(range(300))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert progress[-1] == 1.0
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "copy"))) == ["copy.db"]
    assert db_maintenance.check(copy).faults == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: root refuses some directories")
def test_root_refuses_a_backup_directory_writable_by_another_user(path: Path, tmp_path: Path) -> None:
    foreign, shared = tmp_path / "theirs", tmp_path / "shared"
    for folder, uid, mode in ((foreign, 1234, 0o755), (shared, 0, 0o777)):
        folder.mkdir()
        os.chown(folder, uid, uid)
        folder.chmod(mode)
        with pytest.raises(StoreError, match="root writes no copy into"):
            db_maintenance.backup(path, folder / "copy.db")
        assert list(folder.iterdir()) == []
    shared.chmod(0o1777)
    db_maintenance.backup(path, shared / "copy.db")
    assert [one.name for one in shared.iterdir()] == ["copy.db"]


def test_a_backup_is_consistent_while_another_process_writes(path: Path, tmp_path: Path) -> None:
    """Each transaction of the writer adds two rows: an odd number of rows would be half a transaction."""
    over, begun = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with Database.open(path) as store:
                number = 1000
                while not over.is_set():
                    with store.transaction():
                        for _ in range(2):
                            number += 1
                            key = RunKey(cluster="ada", job_id=number, submit_time=10)
                            store.save_attempt(replace(RECORD, attempt=key))
                    begun.set()
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(begun.is_set, "the other writes")
    try:
        for number in range(5):
            db_maintenance.backup(path, tmp_path / f"copy-{number}.db")
    finally:
        over.set()
        writer.join()
    assert failed == []
    counts = [len(read_job_ids(tmp_path / f"copy-{number}.db")) for number in range(5)]
    assert [count % 2 for count in counts] == [0] * 5
    assert counts == sorted(counts)
    assert counts[0] > 300


def test_an_existing_file_is_replaced_only_with_force(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    with pytest.raises(StoreError, match="exists already") as caught:
        db_maintenance.backup(path, copy)
    assert "--force" in caught.value.hint
    assert copy.read_text() == "mine"
    db_maintenance.backup(path, copy, force=True)
    assert read_job_ids(copy) == list(range(300))


def test_a_failed_backup_leaves_no_file(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used: No such file"):
        db_maintenance.backup(path, tmp_path / "missing" / "copy.db")
    broken = tmp_path / "broken.db"
    broken.write_bytes(path.read_bytes()[:30_000] + b"\xa5" * 60_000)
    with pytest.raises(StoreError, match=r"damaged|not sound"):
        db_maintenance.backup(broken, tmp_path / "copy.db")
    assert sorted(p.name for p in tmp_path.iterdir() if "copy" in p.name) == []


def test_a_damaged_page_is_reported_and_tables_are_not_read(path: Path, tmp_path: Path) -> None:
    content, broken = path.read_bytes(), tmp_path / "broken.db"
    size = int.from_bytes(content[16:18], "big")
    half = len(content) // size // 2 * size
    broken.write_bytes(content[:half] + b"\xa5" * size + content[half + size :])
    broken.chmod(0o600)
    found = db_maintenance.check(broken)
    assert found.faults and all(fault.startswith("damaged: ") for fault in found.faults)
    assert (found.tables, found.pruned, found.first_run) == ((), (), None)


def test_only_the_newest_backups_of_this_database_are_kept(tmp_path: Path) -> None:
    names = ["site-20261119-030000.db", "site-20261120-030000.db", "site-20261121-030000.db"]
    for name in (*names, "site.db", "user-20261119-030000.db", "notes.txt"):
        (tmp_path / name).touch()
    assert db_maintenance.rotate(tmp_path, "site", 2) == (tmp_path / names[0],)
    left = {"site-20261120-030000.db", "site-20261121-030000.db", "site.db", "user-20261119-030000.db", "notes.txt"}
    assert {p.name for p in tmp_path.iterdir()} == left


def test_a_sound_database_is_described(path: Path) -> None:
    found = db_maintenance.check(path)
    assert (found.version, found.newest_version, found.journal_mode) == (VERSION, VERSION, "wal")
    assert (found.first_run, found.last_run, found.faults, found.notes, found.pruned) == (20.0, 20.0, (), (), ())
    sizes = {table.name: table.rows for table in found.tables}
    assert (sizes["attempts"], sizes["runs"], sizes["strikes"]) == (300, 300, 0)
    largest = found.tables[0]
    assert (largest.name, largest.rows) == ("attempts", 300)
    assert largest.bytes is None or largest.bytes > 8192


def test_faults_are_reported_with_their_fix(path: Path) -> None:
    with Database.open(path) as store:
        ruled = PlannedAction(rule="retry", action=SlurmAction(verb=Verb.RELEASE, target="7"))
        store.intend(RunKey(cluster="ada", job_id=7, submit_time=10), ruled, "act", 5.0)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM attempts WHERE job_id = 7")
        connection.execute("PRAGMA user_version = 0")
        connection.commit()
    path.chmod(0o644)
    assert db_maintenance.check(path).faults == (
        "1 rows of actions point to a run that is not there",
        f"its schema has version 0, this slurmwrap needs {VERSION}: run 'slurmwrap db migrate'",
        f"other users may open it (mode 0644), and it holds users' log lines: chmod 600 {path}",
    )


def test_an_index_that_differs_from_its_table_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'end_time', 'start_time') WHERE name = 'attempts_by_end'"
        )
        connection.commit()
    faults = db_maintenance.check(path).faults
    assert faults
    assert all("attempts_by_end" in fault for fault in faults)
    assert db_maintenance.check(path, thorough=False).faults == ()
