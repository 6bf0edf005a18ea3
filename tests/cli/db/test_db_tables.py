"""`slurmwrap db rows`, `search`, `export` and `analyze` on a real database with hostile text of users."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import Runner

from slurmwrap.cli.db import app
from slurmwrap.errors import StoreError, UsageError
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.store.database import Database

NAMES = ("=cmd()", "two\x1b[31m\nlines", "b\udcffd", "plain")


def failed_run(
    number: int, text: str = "CUDA error: an illegal memory access was encountered", **named: object
) -> JobRun:
    category = "cuda_failure"
    diagnosis = Diagnosis(
        category=category, domain="AE", decision="stop", confidence=0.9, signature="cuda.illegal",
        evidence=(Citation(source="slurm.out", line=3, text=text),), advice="Run it with compute-sanitizer.",
    )  # fmt: skip
    key = RunKey(cluster="lab", job_id=number, submit_time=1_000)
    known = {
        "address": str(number),
        "user": "ada",
        "gpus": 8,
        "start_time": 2_000,
        "end_time": 5_600,
        "state": "FAILED",
    }
    return JobRun(attempt=key, diagnosis=diagnosis, **known | named)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "site.db"
    with Database.open(path) as database:
        for number, name in enumerate(NAMES, 81):
            database.save_attempt(failed_run(number, name=name, gpus=number - 80))
    return path


@pytest.fixture
def run(site: Path) -> Callable[..., str]:
    def run(*words: str) -> str:
        result = Runner().invoke(app, [*words, "--file", str(site)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_rows_are_a_table_with_escaped_control_characters(run: Callable[..., str]) -> None:
    output = run("rows", "attempts", "--columns", "address,name,gpus", "--order", "job_id")
    assert output.splitlines() == [
        "  address  name                gpus",
        "  81       =cmd()                 1",
        "  82       two\\x1b[31m\\nlines     2",
        "  83       b\\xffd                 3",
        "  84       plain                  4",
    ]


def test_rows_wider_than_the_terminal_are_shown_with_one_value_per_line(run: Callable[..., str]) -> None:
    output = run("rows", "attempts", "--order", "job_id desc", "--limit", "2")
    first, second = output.split("\n\n")
    assert re.search(r"^  address +84$", first, re.MULTILINE) and re.search(r"^  address +83$", second, re.MULTILINE)
    assert output.endswith("and 2 more (--limit 4 shows them)\n")
    assert [line for line in output.splitlines() if len(line) > 80] == []


def test_where_selects_rows_by_an_expression_with_parameters(run: Callable[..., str]) -> None:
    words = ("--columns", "job_id", "--nl", "--order", "job_id")
    chosen = {
        ("gpus > :n", "--param", "n", "2"): [83, 84],
        ("gpus > :n AND name = :name", "--param", ":n", "2", "--param", "name", "b\udcffd"): [83],
        ("gpus = 1 OR gpus = 4 -- comment",): [81, 84],
        ("name = ''",): [],
    }
    for (where, *param), wanted in chosen.items():
        lines = run("rows", "attempts", "--where", where, *param, *words).splitlines()
        assert [json.loads(line)["job_id"] for line in lines] == wanted, where


def test_rows_as_json_json_lines_and_csv(run: Callable[..., str]) -> None:
    words = ("rows", "attempts", "--columns", "job_id,name,retry_at", "--order", "job_id")
    found = [{"job_id": number, "name": name, "retry_at": None} for number, name in enumerate(NAMES, 81)]
    assert [json.loads(line) for line in run(*words, "--nl").splitlines()] == found
    head = {"kind": "slurmwrap.db_rows", "schema": 1}
    assert json.loads(run(*words, "--json")) == {**head, "rows": found, "more": 0}
    assert json.loads(run(*words, "--json", "--limit", "1")) == {**head, "rows": found[:1], "more": 3}
    assert run(*words, "--csv").splitlines() == [
        "job_id,name,retry_at",
        "81,'=cmd(),",
        "82,two\\x1b[31m\\nlines,",
        "83,b\\xffd,",
        "84,plain,",
    ]


INVALID_ARGUMENTS = {
    ("rows", "atempts"): ("TABLE 'atempts' is unknown", "did you mean attempts?"),
    ("rows", "attempts", "--columns", "job,gpu"): ("--columns 'job' is unknown", "did you mean job_id?"),
    ("rows", "attempts", "--order", "gpu"): ("--order 'gpu' is unknown", "did you mean gpus?"),
    ("rows", "attempts", "--order", "gpus; DROP"): ("--order 'gpus; DROP' is no column", "'COLUMN desc'"),
    ("rows", "attempts", "--csv", "--nl"): ("--csv and --nl exclude each other", "choose one"),
    ("rows", "attempts", "--where", "gpu > 1"): ("no such column: gpu", "expression of SQL"),
    ("rows", "attempts", "--where", "gpus >"): ("syntax error", "expression of SQL"),
    ("rows", "attempts", "--where", "gpus > :n"): ("binding", "--param"),
    ("rows", "attempts", "--where", "\udcff"): ("no valid UTF-8", "expression of SQL"),
    ("rows", "attempts", "--where", "1; DELETE FROM attempts"): ("syntax error", "expression of SQL"),
    ("rows", "attempts", "--where", "1) UNION SELECT 1 --"): ("syntax error", "expression of SQL"),
    ("rows", "attempts", "--where", "load_extension('x')"): ("not authorized", "expression of SQL"),
    ("search", "error", "..."): ("'...' has no letter or digit", ""),
    ("export", "/nonexistent", "--tables", "atempts"): ("--tables 'atempts' is unknown", "did you mean"),
    ("analyze", "strike"): ("TABLE 'strike' is unknown", "did you mean strikes?"),
    ("analyze", "failures"): ("'failures' is a view", "tables"),
}


@pytest.mark.parametrize("words", INVALID_ARGUMENTS)
def test_an_invalid_argument_is_refused_with_a_hint(run: Callable[..., str], words: tuple[str, ...]) -> None:
    message, hint = INVALID_ARGUMENTS[words]
    with pytest.raises(UsageError) as caught:
        run(*words)
    assert message in str(caught.value) and hint in caught.value.hint


def test_a_damaged_or_missing_database_is_an_error(tmp_path: Path) -> None:
    scrambled = tmp_path / "scrambled.db"
    scrambled.write_bytes(b"scrambled eggs" * 500)
    for words in (["rows", "attempts"], ["search", "x"], ["export", str(tmp_path / "out")], ["analyze"]):
        for path, message in ((scrambled, "is damaged"), (tmp_path / "none.db", "there is no database at")):
            with pytest.raises(StoreError, match=message):
                Runner().invoke(app, [*words, "--file", str(path)], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["scrambled.db"]


def test_search_shows_the_text_around_the_words(run: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    output = run("search", "accessing", "illegally", "--limit", "1").splitlines()
    assert output[0].split() == ["job", "category", "ended", "user"]
    assert output[1].split()[:2] == ["81", "cuda_failure"] and output[1].endswith("ada")
    assert output[2:] == [
        "      CUDA error: an illegal memory access was encountered",
        "and 3 more (--limit 4 shows them)",
    ]
    assert run("search", "nothing like it") == "No failure has all of these words.\n"
    found = json.loads(run("search", "illegal memory", "--json", "--limit", "3"))
    assert (found["kind"], found["more"]) == ("slurmwrap.db_search", 1)
    assert [(row["job"], row["snippet"]) for row in found["rows"]] == [
        (str(number), "CUDA error: an illegal memory access was encountered") for number in (81, 82, 83)
    ]


def test_export_writes_every_table_and_replaces_no_file_without_force(
    run: Callable[..., str], site: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    output = run("export", str(out)).splitlines()
    with sqlite3.connect(site) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{table}.csv" for table in tables)
    assert f"{out}/attempts.csv: 4 rows" in output and f"{out}/strikes.csv: no rows" in output
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    with (out / "attempts.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["'=cmd()", "two\\x1b[31m\\nlines", "b\\xffd", "plain"]
    (out / "attempts.csv").write_text("mine")
    (out / "strikes.csv").unlink()
    with pytest.raises(StoreError, match=r"attempts\.csv exists already") as caught:
        run("export", str(out), "--tables", "strikes,attempts")
    assert "--force" in caught.value.hint
    assert (out / "attempts.csv").read_text() == "mine" and not (out / "strikes.csv").exists()
    run("export", str(out), "--tables", "attempts", "--force")
    assert (out / "attempts.csv").read_text() != "mine"


def test_export_as_json_keeps_text_unescaped(run: Callable[..., str], tmp_path: Path) -> None:
    run("export", str(tmp_path), "--tables", "attempts,failures", "--nl")
    run("export", str(tmp_path), "--tables", "attempts", "--json")
    lines = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    document = json.loads((tmp_path / "attempts.json").read_text())
    assert [row["name"] for row in lines] == list(NAMES)
    assert document == {"kind": "slurmwrap.db_rows", "schema": 1, "rows": lines, "more": 0}
    assert len((tmp_path / "failures.jsonl").read_text().splitlines()) == 4


def test_export_into_a_missing_directory_is_an_error(run: Callable[..., str], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*/none/out: No such file or directory"):
        run("export", str(tmp_path / "none" / "out"))


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory is made by root")
def test_root_does_not_export_into_a_directory_of_another_user(run: Callable[..., str], tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(StoreError, match="root writes no copy into"):
        run("export", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_analyze_counts_the_values_of_each_column(run: Callable[..., str]) -> None:
    output = run("analyze", "attempts", "strikes")
    assert output.startswith("attempts: 4 rows\n  column ") and output.endswith("\n\nstrikes: no rows\n")
    lines = output.splitlines()
    at = next(place for place, line in enumerate(lines) if line.split()[:1] == ["user"])
    assert [line.split() for line in lines[at : at + 2]] == [["user", "0", "1"], ["most", "common:", "ada", "(4)"]]
    rows = {row["column"]: row for row in json.loads(run("analyze", "attempts", "--json"))["rows"]}
    assert rows["name"] == {
        "table": "attempts", "column": "name", "rows": 4, "nulls": 0, "blanks": 0, "distinct": 4,
        "most_common": [], "least_common": [],
    }  # fmt: skip
    assert (rows["retry_at"]["nulls"], rows["retry_at"]["distinct"]) == (4, 0)
    assert rows["retry_at"]["most_common"] == [{"value": None, "count": 4}]
