"""members/INDEX.json of a packed array: whatever a job of the user left there, the other members are still shown."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.submission import PackedArray
from slurmwrap.store.pack_results import read_members
from slurmwrap.store.serialize import to_json_dict

SOUND = PackMember(index=1, task="7_0", job_id="7", state="completed")


def write_link(path: Path) -> None:
    path.with_name("real").write_text(json.dumps(to_json_dict(SOUND)))
    path.symlink_to("real")


def write_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def write_fifo(path: Path) -> None:
    os.mkfifo(path)


def write_directory(path: Path) -> None:
    path.mkdir()


def write_nested(path: Path) -> None:
    path.write_text("[" * 60_000)


def write_huge(path: Path) -> None:
    os.truncate(os.open(path, os.O_WRONLY | os.O_CREAT), 10 << 30)


def write_truncated(path: Path) -> None:
    path.write_text(json.dumps(to_json_dict(SOUND))[:-5])


def write_other_types(path: Path) -> None:
    path.write_text(json.dumps(to_json_dict(SOUND) | {"index": "1; reboot", "output": [7]}))


def write_infinite(path: Path) -> None:
    path.write_text(json.dumps(to_json_dict(SOUND) | {"begin": float("inf")}))


def write_gigantic(path: Path) -> None:
    path.write_text(json.dumps(to_json_dict(SOUND) | {"exit_code": 10**4000}))


@pytest.mark.parametrize(
    "write",
    [
        write_link,
        write_device,
        write_fifo,
        write_directory,
        write_nested,
        write_huge,
        write_truncated,
        write_other_types,
        write_infinite,
        write_gigantic,
    ],
)
def test_a_planted_or_damaged_member_file_is_left_out(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "members").mkdir()
    write(tmp_path / "members" / "0.json")
    (tmp_path / "members" / "1.json").write_text(json.dumps(to_json_dict(SOUND)))
    assert read_members(PackedArray(directory=str(tmp_path), members=2, array="0-1")) == (SOUND,)
