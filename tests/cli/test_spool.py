"""slurmwrap spool: list, show and clear, on real files."""

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
def separate_kept_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the answers of Slurm that gsub kept on this machine."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def user_spool(tmp_path: Path) -> Path:
    """A user's spool: two files wait, one is being written, two were rejected."""
    spool = tmp_path / "slurmwrap" / "spool"
    (spool / "rejected").mkdir(parents=True)
    for name in ("1.obs", "2.obs", ".3.obs", "wake", "rejected/a", "rejected/b"):
        (spool / name).write_text("x" * 100)
    with Database.open(tmp_path / "slurmwrap" / "user.db") as database:
        for number in range(3):
            item = RejectedEntry(name=f"n{number}", reason="it is not a MUNGE credential", uid=os.geteuid())
            database.save_rejected_entry(item, 1.8e9 + number)
    return spool


def test_list_counts_files_by_kind(slurmwrap: Run, user_spool: Path) -> None:
    rows = json.loads(slurmwrap("spool", "list", "--json").stdout)["rows"]
    assert [(row["what"], row["files"], row["size"]) for row in rows] == [
        ("unfinished", 1, 100),
        ("waiting", 2, 200),
        ("rejected", 2, 200),
    ]
    assert json.loads(slurmwrap("spool", "list", "--user", "nobody-of-that-name", "--json").stdout)["rows"] == []


def test_show_prints_rejected_records_with_the_reason(slurmwrap: Run, user_spool: Path) -> None:
    (row,) = json.loads(slurmwrap("spool", "show", "--json").stdout)["rows"]
    assert (row["count"], row["reason"], row["last_name"]) == (3, "it is not a MUNGE credential", "n2")
    assert "it is not a MUNGE credential" in slurmwrap("spool", "show").stdout


def test_clear_removes_only_rejected_files(slurmwrap: Run, user_spool: Path) -> None:
    assert slurmwrap("spool", "clear").stdout == "2 files removed\n"
    assert sorted(path.name for path in user_spool.iterdir()) == [".3.obs", "1.obs", "2.obs", "rejected", "wake"]
    assert len(json.loads(slurmwrap("spool", "show", "--json").stdout)["rows"]) == 1
    assert slurmwrap("spool", "clear", "--counts").stdout == "no files removed\n1 count forgotten\n"
    assert slurmwrap("spool", "show").stdout == "Nothing was refused.\n"


def test_clear_does_not_follow_a_symbolic_link_named_rejected(slurmwrap: Run, user_spool: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (user_spool / "rejected").rename(user_spool / "moved")
    (user_spool / "rejected").symlink_to(tmp_path / "precious")
    assert isinstance(slurmwrap("spool", "clear").exception, StoreError)
    assert (tmp_path / "precious" / "file").exists()


def test_an_empty_spool_is_reported(slurmwrap: Run) -> None:
    assert slurmwrap("spool", "list").stdout == "Nothing waits, and nothing was refused.\n"
    assert slurmwrap("spool", "show").stdout == "Nothing was refused.\n"
    assert slurmwrap("spool", "clear").stdout == "no files removed\n"


def test_kept_answers_and_traceback_files_are_listed_and_cleared(
    slurmwrap: Run, user_spool: Path, tmp_path: Path
) -> None:
    answers = tmp_path / f"slurmwrap-{os.geteuid()}"
    answers.mkdir(mode=0o700)
    (answers / "nodes").write_text("x")
    (tmp_path / "slurmwrap" / "fault-1-2.log").write_text("Traceback")
    rows = json.loads(slurmwrap("spool", "list", "--json").stdout)["rows"]
    assert [(row["what"], row["files"]) for row in rows[-2:]] == [("answers", 1), ("faults", 1)]
    assert slurmwrap("spool", "clear", "--answers", "--faults").stdout == "4 files removed\n"
    assert list(answers.iterdir()) == [] and not (tmp_path / "slurmwrap" / "fault-1-2.log").exists()


def test_names_and_reasons_of_planted_files_are_shown_without_control_characters(
    slurmwrap: Run, user_spool: Path
) -> None:
    evil = "a\nb\x1b]0;x\x07=cmd()"
    with Database.open(user_spool.parent / "user.db") as database:
        database.save_rejected_entry(RejectedEntry(name=evil, reason=f"x {evil}", uid=os.geteuid()), 1.9e9)
    shown = slurmwrap("spool", "show").stdout
    assert "a\\nb\\x1b]0;x\\x07=cmd()" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert slurmwrap("spool", "show", "--json").stdout.isascii()
