"""Where a trial may write: the same rule for the shims and for the guard inside Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.inject.slurmwrap_shadow import ShadowTrees
from slurmwrap.prerun.isolation.writable_paths import is_free, resolve_directories


@pytest.mark.parametrize(
    ("path", "free", "held", "expected"),
    [
        ("/tmp/x", ["/tmp"], [], True),
        ("/tmp", ["/tmp"], [], True),
        ("/tmpx", ["/tmp"], [], False),  # in neither list
        ("/tmp/job/x", ["/tmp"], ["/tmp/job"], False),  # the longer directory decides
        ("/tmp/job/scratch/x", ["/tmp", "/tmp/job/scratch"], ["/tmp/job"], True),
        ("/tmp/x", ["/tmp"], ["/tmp"], False),  # protected if both lists contain it
        ("/home/ada/x", ["/"], ["/home/ada"], False),
        ("/data/x", ["/"], ["/home/ada"], True),
    ],
)
def test_the_longest_directory_that_contains_a_path_decides(
    path: str, free: list[str], held: list[str], expected: bool
) -> None:
    assert is_free(path, free, held) is expected
    assert ShadowTrees("/trial", free, held).is_free(path) is expected


def test_links_in_directories_are_resolved_and_a_link_as_last_part_is_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "to").symlink_to("real")
    (tmp_path / "real" / "file").symlink_to("/elsewhere")
    assert resolve_directories(f"{tmp_path}/to/./file") == f"{tmp_path}/real/file"
    assert resolve_directories("/proc/self/fd/1") == "/proc/self/fd/1"
