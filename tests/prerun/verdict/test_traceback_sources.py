"""Source files that a traceback names."""

from __future__ import annotations

import os
from pathlib import Path

from slurmwrap.prerun.verdict.python_traceback import read


def test_a_small_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert read(str(tmp_path / "a.py")) == "x = 1\n"


def test_large_missing_and_special_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "big.py").open("wb") as stream:
        stream.truncate(3_000_000)
    names = ("pipe.py", "big.py", "none.py", "")
    assert [read(str(tmp_path / name)) for name in names] == [None] * 4
    assert read("a\0b") is None
