"""store/atomic_write.py: files are replaced atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmwrap.store.atomic_write import replace_file, write_output_file


def test_a_file_is_replaced_and_no_temporary_file_remains(tmp_path: Path) -> None:
    path = tmp_path / "page"
    write_output_file(path, "old")
    write_output_file(path, "new \udc80", 0o640)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new \\udc80", 0o640)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_output_file(tmp_path / "folder" / "none" / "page", "x")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "page"]


def test_an_output_fifo_is_written_to_and_stays_a_fifo(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output_file(pipe, "page")
    assert (os.read(reader, 100), stat.S_ISFIFO(pipe.stat().st_mode)) == (b"page", True)
    os.close(reader)


def test_replace_file_replaces_a_fifo(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    replace_file(pipe, "page", 0o600)
    assert (pipe.read_bytes(), stat.S_IMODE(pipe.stat().st_mode)) == (b"page", 0o600)


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "folder", "page")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_an_error_while_pieces_are_written_keeps_the_old_file(tmp_path: Path) -> None:
    def make_pieces() -> Iterator[str]:
        yield "half"
        raise ValueError("no more")

    path = tmp_path / "page"
    replace_file(path, iter(("one ", "two")), 0o600)
    with pytest.raises(ValueError, match="no more"):
        replace_file(path, make_pieces())
    assert (path.read_text(), [one.name for one in tmp_path.iterdir()]) == ("one two", ["page"])
