"""How a directory is known as a lab, and what is never taken for one."""

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


def state_in(directory: Path) -> LabState:
    own = Daemon(name="slurmctld", pid=os.getpid(), started=started_at(os.getpid()))
    means = Means(release=(24, 11), root=False, no_devices="no mknod")
    return LabState(spec=LabSpec(directory=directory), means=means, daemons=(own,), notes=("a note",), ready=True)


def test_state_survives_the_file(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    write_state(LabDirectories(tmp_path), state)
    assert read_state(LabDirectories(tmp_path)) == state


@pytest.mark.parametrize("prepare", [lambda path: path.mkdir(), lambda path: None], ids=["empty", "absent"])
def test_directory_that_is_absent_or_empty_is_no_lab(tmp_path: Path, prepare: object) -> None:
    prepare(tmp_path / "lab")  # type: ignore[operator]
    assert read_state(LabDirectories(tmp_path / "lab")) is None


def test_crash_between_the_two_halves_of_the_first_write_is_no_foreign_content(tmp_path: Path) -> None:
    (tmp_path / "lab.tmp").write_text("{", encoding="utf-8")
    assert read_state(LabDirectories(tmp_path)) is None


def test_directory_with_other_files_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "results.csv").touch()
    with pytest.raises(LabError, match=r"results\.csv"):
        read_state(LabDirectories(tmp_path))
    with pytest.raises(LabError, match=r"results\.csv"):
        down(LabDirectories(tmp_path))
    assert (tmp_path / "results.csv").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"version": 99}', '{"version": 1}', "\x00"])
def test_state_file_of_something_else_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "lab.json").write_text(text, encoding="utf-8")
    with pytest.raises(LabError, match=r"lab\.json"):
        down(LabDirectories(tmp_path))
    assert (tmp_path / "lab.json").read_text(encoding="utf-8") == text


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lab").touch()
    with pytest.raises(LabError):
        down(LabDirectories(tmp_path / "lab"))
    assert (tmp_path / "lab").exists()


def test_lab_runs_while_its_controller_lives(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    dead = replace(state, daemons=(replace(state.daemons[0], started=1),))
    other = replace(state, daemons=(replace(state.daemons[0], name="n0"),))
    assert (state.running, dead.running, other.running) == (True, False, False)


def test_pid_that_was_given_to_another_process_is_not_ours() -> None:
    own = Daemon(name="munged", pid=os.getpid(), started=started_at(os.getpid()))
    assert (alive(own), alive(replace(own, started=own.started + 1))) == (True, False)
    assert not alive(Daemon(name="munged", pid=2**22 + 1, started=0))  # above pid_max: never there


def test_second_command_on_the_same_lab_is_told_to_wait(tmp_path: Path) -> None:
    with (
        locked(LabDirectories(tmp_path)),
        pytest.raises(LabError, match="another lab command"),
        locked(LabDirectories(tmp_path)),
    ):
        pass
    with locked(LabDirectories(tmp_path)):
        pass
