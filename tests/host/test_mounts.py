"""Finding the mount point of a path in a mount table."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.host.mounts import TABLE, find_mount_point

LINES = r"""/dev/sda1 / ext4 rw 0 0
fs1:/export /gpfs/fs1 nfs4 rw,hard 0 0
fs1:/deep /gpfs/fs1/deep nfs4 rw,hard 0 0
fs2 /with\040blank lustre rw 0 0
broken
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.write_text(LINES)
    return path


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/gpfs/fs1/ada/x.pt", "/gpfs/fs1"),
        ("/gpfs/fs1", "/gpfs/fs1"),
        ("/gpfs/fs1/deep/x", "/gpfs/fs1/deep"),
        ("/gpfs/fs10/x", ""),
        ("/with blank/x", "/with blank"),
        ("/home/ada", ""),
        ("", ""),
    ],
)
def test_the_longest_mount_point_of_a_path_is_found(table: Path, path: str, point: str) -> None:
    assert find_mount_point(path, table) == point


def test_without_a_mount_table_no_mount_point_is_found(tmp_path: Path) -> None:
    assert find_mount_point("/gpfs/fs1", tmp_path / "none") == ""


def test_the_mount_table_of_this_machine_is_read() -> None:
    assert find_mount_point("/proc/self", TABLE) == "/proc"
