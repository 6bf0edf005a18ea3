"""The newest checkpoint in a working directory, by the names of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmwrap.host.read_user_file import _find_newest_checkpoint

BEGAN = 1_700_000_000.0


def write(path: Path, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (at, at))


def find(root: Path) -> float | None:
    return _find_newest_checkpoint(os.fsencode(root), 81, os.getuid(), BEGAN, 0).get("at")


@pytest.mark.parametrize(
    "name", ["out/checkpoint-500/weights.bin", "last.pt", "a/b/model.safetensors", "ckpt.json", "runs/step_100.msgpack"]
)
def test_names_of_checkpoints(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, BEGAN + 5)
    assert find(tmp_path) == BEGAN + 5
    write(tmp_path / "later.ckpt", BEGAN + 9)
    assert find(tmp_path) == BEGAN + 9


def test_what_is_no_new_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "train.py", BEGAN + 5)
    write(tmp_path / "slurm-81.out", BEGAN + 5)
    write(tmp_path / "old.pt", BEGAN - 5)
    write(tmp_path / ".cache" / "x.pt", BEGAN + 5)
    write(tmp_path / "a/b/c/d" / "deep.pt", BEGAN + 5)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write(outside / "other.pt", BEGAN + 5)
    (tmp_path / "link.pt").symlink_to(outside / "other.pt")
    (tmp_path / "checkpoints").symlink_to(outside)
    assert find(tmp_path) is None
    assert find(tmp_path / "missing") is None
