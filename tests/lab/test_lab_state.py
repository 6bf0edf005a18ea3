"""How a directory is recognised as a lab, and which directories are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.errors import LabError
from slurmwrap.lab.daemons import Daemon, alive, started_at
from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_spec import LabSpec
from slurmwrap.lab.lab_state import LabState, down, locked, read_state, write_state
from slurmwrap.lab.render_slurm_conf import Means


def make_state(directory: Path) -> LabState:
    own = Daemon(name="slurmctld", pid=os.getpid(), started=started_at(os.getpid()))
    means = Means(release=(24, 11), root=False, no_devices="no mknod")
    return LabState(spec=LabSpec(directory=directory), means=means, daemons=(own,), notes=("a note",), ready=True)


def test_a_written_state_is_read_back_unchanged(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    write_state(LabDirectories(tmp_path), state)
    assert read_state(LabDirectories(tmp_path)) == state


@pytest.mark.parametrize("prepare", [lambda path: path.mkdir(), lambda path: None], ids=["empty", "absent"])
def test_an_absent_or_empty_directory_has_no_lab_state(tmp_path: Path, prepare: object) -> None:
    prepare(tmp_path / "lab")  # type: ignore[operator]
    assert read_state(LabDirectories(tmp_path / "lab")) is None


def test_a_temporary_state_file_left_by_a_crash_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "lab.tmp").write_text("{", encoding="utf-8")
    assert read_state(LabDirectories(tmp_path)) is None


def test_a_directory_with_other_files_is_refused_naming_a_file(tmp_path: Path) -> None:
    (tmp_path / "results.csv").touch()
    with pytest.raises(LabError, match=r"results\.csv"):
        read_state(LabDirectories(tmp_path))
    with pytest.raises(LabError, match=r"results\.csv"):
        down(LabDirectories(tmp_path))
    assert (tmp_path / "results.csv").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', '{"version": 1}', "\x00"])
def test_an_invalid_state_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text, encoding="utf-8")
    with pytest.raises(LabError, match=r"lab\.json"):
        down(LabDirectories(tmp_path))
    assert (tmp_path / "lab.json").read_text(encoding="utf-8") == text


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab").touch()
    with pytest.raises(LabError):
        down(LabDirectories(tmp_path / "lab"))
    assert (tmp_path / "lab").exists()


def test_a_lab_is_running_while_its_controller_is_alive(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    dead = replace(state, daemons=(replace(state.daemons[0], started=1),))
    other = replace(state, daemons=(replace(state.daemons[0], name="n0"),))
    assert (state.running, dead.running, other.running) == (True, False, False)


def test_a_reused_pid_does_not_count_as_the_daemon() -> None:
    own = Daemon(name="munged", pid=os.getpid(), started=started_at(os.getpid()))
    assert (alive(own), alive(replace(own, started=own.started + 1))) == (True, False)
    assert not alive(Daemon(name="munged", pid=2**22 + 1, started=0))  # above pid_max, so it cannot exist


def test_a_second_command_on_the_same_lab_is_refused(tmp_path: Path) -> None:
    with (
        locked(LabDirectories(tmp_path)),
        pytest.raises(LabError, match="another lab command"),
        locked(LabDirectories(tmp_path)),
    ):
        pass
    with locked(LabDirectories(tmp_path)):
        pass
