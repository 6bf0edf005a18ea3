"""Which SQLite journal mode is selected for the file system of a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.store.sqlite_connection import find_filesystem, select_journal_mode

MOUNTS = r"""22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
30 22 0:26 / /home rw,nosuid shared:5 - nfs4 server:/export/home rw,vers=4.2
31 30 8:3 / /home/ada/fast\040disk rw - xfs /dev/sdb1 rw
32 22 0:27 / /scratch rw - fuse.juicefs JuiceFS:x rw
33 22 8:4 / /homework rw - btrfs /dev/sdc1 rw
34 22 0:30 / /over rw - ext4 /dev/sdd1 rw
35 34 0:31 / /over rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/home/ada/.local", "nfs4"),
        ("/home/ada/fast disk/x", "xfs"),
        ("/homework/x", "btrfs"),
        ("/over/x", "tmpfs"),
    ],
)
def test_the_deepest_and_newest_mount_decides_the_file_system(path: str, kind: str) -> None:
    assert find_filesystem(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    ("path", "mode"),
    [("/var/lib/x", "WAL"), ("/home/ada/user.db", "DELETE"), ("/scratch/user.db", "DELETE")],
)
def test_wal_is_used_on_local_disks_only(tmp_path: Path, path: str, mode: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert select_journal_mode(Path(path), tmp_path / "mountinfo") == mode


def test_without_mountinfo_the_disk_counts_as_local(tmp_path: Path) -> None:
    assert select_journal_mode(Path("/x"), tmp_path / "missing") == "WAL"
