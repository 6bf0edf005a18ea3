"""What hooks, gsub and reconciler of an older release wrote is read by this one, and what a newer one adds is ignored.

tests/data/upgrade/README.md names the release. docs/records.md has the rule.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from fakes import job

from slurmwrap.diagnosis.build_evidence import join
from slurmwrap.errors import StoreError
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.node_hooks import prolog_gate
from slurmwrap.node_hooks.hook_settings import HookSettings
from slurmwrap.store import published_files
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.migrations import APPLICATION_ID, VERSION
from slurmwrap.store.spool_reader import PlainSpool, UntrustedRecord, parse

DATA = Path(__file__).resolve().parents[1] / "data" / "upgrade"
RECORDS = (DATA / "records.jsonl").read_bytes().splitlines()


def read_controller_records(tmp_path: Path) -> list[Observation]:
    directory = tmp_path / "controller"
    shutil.copytree(DATA / "controller", directory)
    directory.chmod(0o700)
    found = [one.item for one in PlainSpool(directory).collect()]
    assert all(isinstance(one, Observation) for one in found), found
    return [one for one in found if isinstance(one, Observation)]


def restore_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as old:
        old.executescript((DATA / "site.sql").read_text(encoding="utf-8"))
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA user_version = 1")


def read_layout(path: Path) -> dict[str, object]:
    with closing(sqlite3.connect(path)) as found:
        names = found.execute("SELECT type, name FROM sqlite_master").fetchall()
        return {name: found.execute(f"PRAGMA table_info({name})").fetchall() for _, name in names}


def test_records_of_older_hooks_are_joined_into_evidence(tmp_path: Path) -> None:
    found = [parse(one) for one in RECORDS]
    assert Counter(one.context for one in found) == {Context.PROLOG: 7, Context.EPILOG: 7, Context.SUBMIT: 3}
    controller = read_controller_records(tmp_path)
    assert [(one.job_id, one.facts["array_task_id"]) for one in controller] == [(2, None), (4, 2)]
    of_job = [one for one in (*found, *controller) if one.job_id == 2]
    evidence = join(RunKey(cluster="lab", job_id=2, submit_time=0), job(2, nodes=("n0",)), of_job)
    assert "RuntimeError: CUDA error" in evidence.logs[0].text
    assert (evidence.oom_kills, [one.context for one in of_job].count(Context.EPILOG_SLURMCTLD)) == (0, 1)


def test_a_submission_of_an_older_gsub_is_read() -> None:
    plain = next(parse(one) for one in RECORDS if b'"context":"submit"' in one).facts["submission"]
    assert "lot" in plain  # a field that has another name today
    found = record_from_json(Submission, plain)
    assert (found.job_id, found.gpus, found.holdout_group) == (1, 1, "")


def test_facts_and_fields_of_a_newer_release_are_ignored_and_a_new_context_is_rejected_with_the_reason() -> None:
    plain = json.loads(RECORDS[-1])
    newer = {**plain, "added": 1, "facts": {**plain["facts"], "added": {"a": [1]}}}
    assert parse(json.dumps(newer).encode()).facts["hooks"] == plain["facts"]["hooks"]
    with pytest.raises(UntrustedRecord, match="context 'added' is unknown: a newer slurmwrap sends it"):
        parse(json.dumps({**plain, "context": "added"}).encode())
    with pytest.raises(UntrustedRecord, match="unknown version: another slurmwrap sends it"):
        parse(json.dumps({**plain, "version": 2}).encode())


def test_an_older_database_is_migrated_with_its_rows(tmp_path: Path) -> None:
    path, new = tmp_path / "site.db", tmp_path / "new.db"
    restore_database(path)
    with closing(sqlite3.connect(path)) as old:
        old.execute("UPDATE submissions SET lot = 'drawn' WHERE job_id = 3")
        old.execute("INSERT INTO set_aside VALUES (7, 'no nonce', 2, 1.0, 2.0, 'x.obs')")
        old.commit()
    Database.open(new).close()
    with Database.open(path) as store:
        assert sorted(one.address for one in store.attempts()) == ["1", "2", "3", "4_1", "4_2"]
        assert len(store.observations("lab", 2)) == 4
        assert [(row["uid"], row["count"]) for row in store.count_rejected_entries()] == [(7, 2)]
        for one in (parse(line) for line in RECORDS):
            if one.context is not Context.SUBMIT:  # its nonce would get the uid of its sender
                store.ingest(one)  # the same records once more: nothing is stored twice
        assert len(store.observations("lab", 2)) == 4
    assert read_layout(path) == read_layout(new)
    with closing(sqlite3.connect(path)) as migrated:
        assert migrated.execute("SELECT job_id FROM submissions WHERE holdout_group = 'drawn'").fetchall() == [(3,)]
        assert migrated.execute("PRAGMA user_version").fetchone() == (VERSION,)


def test_a_database_without_a_needed_column_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    restore_database(path)
    with closing(sqlite3.connect(path)) as old:
        old.execute("ALTER TABLE profiles RENAME COLUMN key TO title")
        old.commit()
    before = read_layout(path)
    with pytest.raises(StoreError, match=r"it lacks profiles\.key"):
        Database.open(path)
    assert read_layout(path) == before


def test_published_files_of_an_older_reconciler_are_read(tmp_path: Path) -> None:
    for name in ("published.json", "faults.json", "gate-permit.json"):
        shutil.copyfile(DATA / name, tmp_path / name)
        (tmp_path / name).chmod(0o644)
    tmp_path.chmod(0o755)
    own = {0, os.geteuid()}
    published = published_files.read_published(tmp_path, own)
    assert published is not None and [one.gpu_type for one in published.profiles] == ["a100"]
    assert prolog_gate.believed(str(tmp_path), "gate-permit.json", own)["allowed"] is True
    assert prolog_gate.believed(str(tmp_path), "faults.json", own)["faults"] == []


def test_hooks_read_the_settings_of_older_and_newer_installations() -> None:
    needed = {"cluster": "lab", "spool": "/s", "node_state_dir": "/r", "munge": "/m", "munge_socket": ""}
    found = HookSettings("n0", {**needed, "kernel_log": "journal", "nvidia_proc": "/p", "added": 1})
    assert (found.gate, found.release, found.spool) == ("off", "", "/s")
