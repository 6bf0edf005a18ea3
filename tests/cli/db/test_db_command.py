"""`slurmwrap db` on a real database, as text and as JSON; Datasette where it is installed."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote

import pytest
from in_process import Runner
from synthetic_year import fill
from waiting import allow, wait_until

from slurmwrap.cli import db
from slurmwrap.cli.db import app
from slurmwrap.errors import SlurmwrapError, StoreError, UsageError
from slurmwrap.store.database import Database
from slurmwrap.store.migrations import VERSION
from slurmwrap.store.schema_docs import describe_tables


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "site.db"
    fill(path, days=45, jobs_per_day=20, until=time.time())
    return path


def run(*words: str) -> str:
    result = Runner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_path_is_the_configured_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMWRAP_CONFIG", str(tmp_path / "none.toml"))
    assert run("path") == f"{tmp_path}/slurmwrap/user.db\n"


def test_backup_into_a_folder_dates_the_copy_and_removes_old_copies(site: Path, tmp_path: Path) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"site-2020010{day}-030000.db").touch()
    others = ["site-1-before-upgrade.db", "site-20200101.db", "site-20200101-030000.db.gz", "mysite-20200101-030000.db"]
    for name in others:
        (tmp_path / name).touch()
    message = run("backup", str(tmp_path), "--keep", "2", "--file", str(site))
    made = sorted({p.name for p in tmp_path.iterdir()} - set(others))
    assert len(made) == 2
    assert all((tmp_path / name).exists() for name in others)
    assert made[0] == "site-20200103-030000.db"
    assert re.fullmatch(rf"{tmp_path}/{made[1]}: [\d.]+ [KM]iB, checked\nremoved .*0101.*\nremoved .*0102.*\n", message)
    with pytest.raises(UsageError, match="--keep needs a folder"):
        run("backup", str(tmp_path / "one.db"), "--keep", "2", "--file", str(site))


def test_prune_and_migrate_do_not_create_a_missing_database(tmp_path: Path) -> None:
    for words in (["prune"], ["prune", "--dry-run"], ["migrate"]):
        with pytest.raises(StoreError, match="there is no database at"):
            run(*words, "--file", str(tmp_path / "typo.db"))
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_sound_database_as_text_and_as_json(site: Path) -> None:
    message = run("check", str(site))
    assert message.startswith(f"{site}: schema {VERSION}, WAL, ")
    assert message.endswith("\n\nsound\n")
    found = json.loads(run("check", "--quick", "--json", str(site)))
    assert (found["path"], found["faults"]) == (str(site), [])
    assert {"name", "rows", "bytes"} == set(found["tables"][0])


def test_check_exits_with_1_when_the_database_is_not_sound(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    copy.write_bytes(site.read_bytes())
    copy.chmod(0o640)
    result = Runner().invoke(app, ["check", "--quick", str(copy)])
    assert result.exit_code == 1
    assert result.output.endswith("\n\nnot sound\n")
    with pytest.raises(StoreError, match="cannot be opened"):
        run("check", str(tmp_path / "none.db"))


def test_prune_dry_run_counts_the_rows_that_prune_then_deletes(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site.db"
    run("backup", str(copy), "--file", str(site))
    before = copy.read_bytes()
    planned = json.loads(run("prune", "--dry-run", "--json", "--keep", "40d", "--detail", "30d", "--file", str(copy)))
    assert copy.read_bytes() == before
    done = json.loads(run("prune", "--json", "--keep", "40d", "--detail", "30d", "--file", str(copy)))
    assert planned["dry_run"] and not done["dry_run"]
    assert done["rows"]["attempts"] == planned["rows"]["attempts"] > 10
    assert "nothing" in run("prune", "--keep", "40d", "--detail", "30d", "--file", str(copy))
    assert "written anew: " in run("prune", "--vacuum", "--keep", "40d", "--detail", "30d", "--file", str(copy))
    with Database.open(copy, readonly=True) as store:
        ends = [record.end_time for record in store.attempts() if record.end_time is not None]
    assert min(ends) >= time.time() - 40 * 86_400 - 600


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--keep", "soon"), "--keep 'soon' is no number of days"),
        (("--keep", "0d"), "--keep '0d' is no number of days"),
        (("--keep", "10d"), "details cannot be kept for 35 days of runs that go after 10"),
    ],
)
def test_prune_refuses_invalid_periods(site: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        run("prune", "--dry-run", *words, "--file", str(site))


def test_migrate_reports_the_schema_and_refuses_a_missing_database(site: Path, tmp_path: Path) -> None:
    assert run("migrate", "--file", str(site)) == f"{site}: schema {VERSION}, nothing to do\n"
    with pytest.raises(StoreError, match=r"no database at .* yet"):
        run("migrate", "--file", str(tmp_path / "none.db"))


def test_serve_without_datasette_names_the_extra_to_install(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SlurmwrapError, match="Datasette is not installed here") as caught:
        run("serve", "--file", str(site))
    assert "slurmwrap[datasette]" in caught.value.hint


# Datasette


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def datasette_address(site: Path) -> str:
    """The address of a running Datasette."""
    pytest.importorskip("datasette", reason="needs the extra 'datasette'")
    port = _free_port()
    words = ["-m", "slurmwrap.cli.slurmwrap", "db", "serve", "--port", str(port), "--file", str(site)]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"{address}/-/versions.json", timeout=allow(5)).close()
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return False
            return True

        wait_until(answers, "Datasette answers", pause=0.1)
        yield address
    finally:
        process.terminate()
        process.wait(allow(20))


def _json(address: str) -> dict:
    with urllib.request.urlopen(address, timeout=allow(30)) as answer:
        assert answer.status == 200
        return json.load(answer)


def test_datasette_shows_every_table_with_its_description(datasette_address: str) -> None:
    listed = {table["name"]: table for table in _json(f"{datasette_address}/site.json")["tables"]}
    for one in describe_tables():
        with urllib.request.urlopen(f"{datasette_address}/site/{one.name}?_size=3", timeout=allow(30)) as answer:
            page = answer.read().decode()
        assert one.meaning[1:].split("`")[0].split('"')[0].split("'")[0] in page
        if one.name in listed and one.name not in db._HIDDEN:
            assert listed[one.name]["hidden"] is False
    assert {name for name, table in listed.items() if table["hidden"]} >= set(db._HIDDEN)


def test_every_predefined_datasette_query_answers(datasette_address: str) -> None:
    queries = {query["name"]: query for query in _json(f"{datasette_address}/site.json")["queries"]}
    assert len(queries) == 8
    assert set(queries).isdisjoint(one.name for one in describe_tables())  # a query would hide the table of its name
    answers = {
        name: _json(f"{datasette_address}/site/{quote(name)}.json?days=40&user=&_shape=objects") for name in queries
    }
    assert [name for name, answer in answers.items() if not answer["ok"] or answer.get("error")] == []
    rows = {name: len(answer["rows"]) for name, answer in answers.items()}
    assert rows["failures_by_category"] > 3 and rows["failed_runs"] > 20 and rows["users"] > 3
    assert rows["preruns_that_failed"] > 0


def _status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=allow(30)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


def test_datasette_refuses_writes_and_the_download_of_the_file(datasette_address: str) -> None:
    assert _status(f"{datasette_address}/site.json?sql={quote('SELECT 1')}") == 200
    assert _status(f"{datasette_address}/site.json?sql={quote('DELETE FROM attempts')}") == 400
    assert _status(f"{datasette_address}/site.db") in (403, 404)
