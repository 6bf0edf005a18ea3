"""A copy of a database while others write it, and what a check finds: real files."""

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


def jobs(path: Path) -> list[int]:
    with Database.open(path, readonly=True) as store:
        return [record.attempt.job_id for record in store.attempts()]


def test_a_copy_holds_everything_is_one_private_file_and_is_told_of(path: Path, tmp_path: Path) -> None:
    heard: list[float] = []
    copy = tmp_path / "copy.db"
    assert db_maintenance.backup(path, copy, progress=heard.append) == copy.stat().st_size
    assert jobs(copy) == list(range(300))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert heard[-1] == 1.0
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "copy"))) == ["copy.db"]
    assert db_maintenance.check(copy).faults == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="what root may not do")
def test_root_copies_nothing_to_where_another_user_could_replace_it(path: Path, tmp_path: Path) -> None:
    theirs, shared = tmp_path / "theirs", tmp_path / "shared"
    for folder, uid, mode in ((theirs, 1234, 0o755), (shared, 0, 0o777)):
        folder.mkdir()
        os.chown(folder, uid, uid)
        folder.chmod(mode)
        with pytest.raises(StoreError, match="root writes no copy into"):
            db_maintenance.backup(path, folder / "copy.db")
        assert list(folder.iterdir()) == []
    shared.chmod(0o1777)
    db_maintenance.backup(path, shared / "copy.db")
    assert [one.name for one in shared.iterdir()] == ["copy.db"]


def test_a_copy_is_of_one_moment_while_others_write(path: Path, tmp_path: Path) -> None:
    """Each transaction of the writer adds two rows: a copy with an odd number would be half of one."""
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
    counts = [len(jobs(tmp_path / f"copy-{number}.db")) for number in range(5)]
    assert [count % 2 for count in counts] == [0] * 5
    assert counts == sorted(counts)
    assert counts[0] > 300


def test_a_file_that_is_there_is_not_replaced_unless_asked(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    with pytest.raises(StoreError, match="exists already") as caught:
        db_maintenance.backup(path, copy)
    assert "--force" in caught.value.hint
    assert copy.read_text() == "mine"
    db_maintenance.backup(path, copy, force=True)
    assert jobs(copy) == list(range(300))


def test_nothing_is_left_where_a_copy_cannot_be_made(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be used: No such file"):
        db_maintenance.backup(path, tmp_path / "missing" / "copy.db")
    broken = tmp_path / "broken.db"
    broken.write_bytes(path.read_bytes()[:30_000] + b"\xa5" * 60_000)
    with pytest.raises(StoreError, match=r"damaged|not sound"):
        db_maintenance.backup(broken, tmp_path / "copy.db")
    assert sorted(p.name for p in tmp_path.iterdir() if "copy" in p.name) == []


def test_a_damaged_page_is_a_fault_that_is_told_and_nothing_is_read_further(path: Path, tmp_path: Path) -> None:
    content, broken = path.read_bytes(), tmp_path / "broken.db"
    size = int.from_bytes(content[16:18], "big")
    half = len(content) // size // 2 * size
    broken.write_bytes(content[:half] + b"\xa5" * size + content[half + size :])
    broken.chmod(0o600)
    found = db_maintenance.check(broken)
    assert found.faults and all(fault.startswith("damaged: ") for fault in found.faults)
    assert (found.tables, found.pruned, found.first_run) == ((), (), None)


def test_only_the_newest_copies_of_this_database_are_kept(tmp_path: Path) -> None:
    names = ["site-20261119-030000.db", "site-20261120-030000.db", "site-20261121-030000.db"]
    for name in (*names, "site.db", "user-20261119-030000.db", "notes.txt"):
        (tmp_path / name).touch()
    assert db_maintenance.rotate(tmp_path, "site", 2) == (tmp_path / names[0],)
    left = {"site-20261120-030000.db", "site-20261121-030000.db", "site.db", "user-20261119-030000.db", "notes.txt"}
    assert {p.name for p in tmp_path.iterdir()} == left


def test_a_sound_file_is_described(path: Path) -> None:
    found = db_maintenance.check(path)
    assert (found.version, found.newest_version, found.journal_mode) == (VERSION, VERSION, "wal")
    assert (found.first_run, found.last_run, found.faults, found.notes, found.pruned) == (20.0, 20.0, (), (), ())
    sizes = {table.name: table.rows for table in found.tables}
    assert (sizes["attempts"], sizes["runs"], sizes["strikes"]) == (300, 300, 0)
    largest = found.tables[0]
    assert (largest.name, largest.rows) == ("attempts", 300)
    assert largest.bytes is None or largest.bytes > 8192


def test_what_is_wrong_is_said(path: Path) -> None:
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


def test_an_index_that_does_not_fit_its_table_is_found(path: Path) -> None:
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
