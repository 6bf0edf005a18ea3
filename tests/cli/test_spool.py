"""slurmwrap spool: what waits, what was not believed, and that clearing touches nothing else; real files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from slurmwrap.errors import StoreError
from slurmwrap.model.observation import RejectedEntry
from slurmwrap.store.database import Database

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_answers_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gsub kept of Slurm's answers on this machine is none of the test's."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's spool: two files wait, one is being written, two were not believed."""
    spool = tmp_path / "slurmwrap" / "spool"
    (spool / "rejected").mkdir(parents=True)
    for name in ("1.obs", "2.obs", ".3.obs", "wake", "rejected/a", "rejected/b"):
        (spool / name).write_text("x" * 100)
    with Database.open(tmp_path / "slurmwrap" / "user.db") as database:
        for number in range(3):
            item = RejectedEntry(name=f"n{number}", reason="it is not a MUNGE credential", uid=os.geteuid())
            database.save_rejected_entry(item, 1.8e9 + number)
    return spool


def test_heaps_are_counted_by_what_they_are(slurmwrap: Run, own: Path) -> None:
    rows = json.loads(slurmwrap("spool", "list", "--json").stdout)["rows"]
    assert [(row["what"], row["files"], row["size"]) for row in rows] == [
        ("unfinished", 1, 100),
        ("waiting", 2, 200),
        ("rejected", 2, 200),
    ]
    assert json.loads(slurmwrap("spool", "list", "--user", "nobody-of-that-name", "--json").stdout)["rows"] == []


def test_what_was_not_believed_is_shown_with_the_reason(slurmwrap: Run, own: Path) -> None:
    (row,) = json.loads(slurmwrap("spool", "show", "--json").stdout)["rows"]
    assert (row["count"], row["reason"], row["last_name"]) == (3, "it is not a MUNGE credential", "n2")
    assert "it is not a MUNGE credential" in slurmwrap("spool", "show").stdout


def test_clearing_removes_rejected_files_alone(slurmwrap: Run, own: Path) -> None:
    assert slurmwrap("spool", "clear").stdout == "2 files removed\n"
    assert sorted(path.name for path in own.iterdir()) == [".3.obs", "1.obs", "2.obs", "rejected", "wake"]
    assert len(json.loads(slurmwrap("spool", "show", "--json").stdout)["rows"]) == 1
    assert slurmwrap("spool", "clear", "--counts").stdout == "no files removed\n1 count forgotten\n"
    assert slurmwrap("spool", "show").stdout == "Nothing was refused.\n"


def test_a_link_in_the_place_of_rejected_is_not_followed(slurmwrap: Run, own: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (own / "rejected").rename(own / "moved")
    (own / "rejected").symlink_to(tmp_path / "precious")
    assert isinstance(slurmwrap("spool", "clear").exception, StoreError)
    assert (tmp_path / "precious" / "file").exists()


def test_nothing_there_is_said(slurmwrap: Run) -> None:
    assert slurmwrap("spool", "list").stdout == "Nothing waits, and nothing was refused.\n"
    assert slurmwrap("spool", "show").stdout == "Nothing was refused.\n"
    assert slurmwrap("spool", "clear").stdout == "no files removed\n"


def test_kept_answers_and_fault_logs_are_listed_and_cleared(slurmwrap: Run, own: Path, tmp_path: Path) -> None:
    answers = tmp_path / f"slurmwrap-{os.geteuid()}"
    answers.mkdir(mode=0o700)
    (answers / "nodes").write_text("x")
    (tmp_path / "slurmwrap" / "fault-1-2.log").write_text("Traceback")
    rows = json.loads(slurmwrap("spool", "list", "--json").stdout)["rows"]
    assert [(row["what"], row["files"]) for row in rows[-2:]] == [("answers", 1), ("faults", 1)]
    assert slurmwrap("spool", "clear", "--answers", "--faults").stdout == "4 files removed\n"
    assert list(answers.iterdir()) == [] and not (tmp_path / "slurmwrap" / "fault-1-2.log").exists()
