"""When no optimizer step is waited for any longer."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slurmwrap.model.trial_result import StepReading
from slurmwrap.prerun.trial import no_training as module
from slurmwrap.prerun.trial.no_training import (
    AT_WORK_S,
    IDLE_S,
    ActivitySample,
    NoTrainingDetector,
    list_listening_ports,
)

NOTHING = StepReading()


@dataclass
class Expected:
    """What the code was read to do."""

    may_train: bool = False
    uncounted: bool = False
    distributed: bool = False

    def see(self, cmdline: object, cwd: str) -> None:
        """No process is looked at here."""


def patience(directory: Path, **expected: bool) -> NoTrainingDetector:
    return NoTrainingDetector(str(directory), Expected(**expected), began=0.0, no_training_s=40.0)  # type: ignore[arg-type]


def told(
    one: NoTrainingDetector, seconds: float, reading: StepReading = NOTHING, *, python: bool = True, cores: float = 1.0
) -> str:
    """The first reason, of looks once a second."""
    for at in range(int(seconds) + 1):
        one.take(ActivitySample(at=float(at), cpu_s=at * cores, io_bytes=0.0, python=python, blocked=False))
        if why := one.ended(float(at), reading):
            return f"{at}: {why}"
    return ""


def test_a_program_in_which_nothing_trains_is_given_so_long_to_fail(tmp_path: Path) -> None:
    assert told(patience(tmp_path), 60) == "40: nothing in its code trains"


def test_torch_without_an_optimizer_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch").touch()
    assert "torch is used without an optimizer" in told(patience(tmp_path), 60)


def test_a_program_that_may_train_is_waited_for(tmp_path: Path) -> None:
    assert told(patience(tmp_path, may_train=True), 600, cores=0.0) == ""


@pytest.mark.parametrize("source", ["optimizer", "keras", "backward"])
def test_what_trains_is_waited_for_whatever_its_code_says(tmp_path: Path, source: str) -> None:
    assert told(patience(tmp_path), 600, StepReading(count=1, source=source)) == ""


def test_an_optimizer_that_was_made_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "optimizer").touch()
    assert told(patience(tmp_path), 600) == ""


@pytest.mark.parametrize(("cores", "what"), [(0.0, "it only sleeps"), (1.0, "no Python is in it")])
def test_without_python_there_is_nothing_to_count(tmp_path: Path, cores: float, what: str) -> None:
    found = told(patience(tmp_path), 60, python=False, cores=cores)
    assert found.startswith("25: ") and what in found


def test_batches_without_an_optimizer_are_an_evaluation_though_the_code_could_train(tmp_path: Path) -> None:
    flow = StepReading(count=50, source="dataloader", first=5.0, last=5.0 + AT_WORK_S)
    short = StepReading(count=50, source="dataloader", first=5.0, last=25.0)
    assert "50 batches" in told(patience(tmp_path, may_train=True), 60, flow)
    assert told(patience(tmp_path, may_train=True), 60, short) == ""
    assert told(patience(tmp_path, may_train=True, uncounted=True), 60, flow) == ""  # JAX has no optimizer of torch


def test_ports_are_those_of_the_processes_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in list_listening_ports([psutil.Process()])
    assert list_listening_ports([]) == ()


def test_waiting_for_a_disk_is_no_sleep(tmp_path: Path) -> None:
    one = patience(tmp_path)
    for at in range(int(IDLE_S) + 15):
        one.take(ActivitySample(at=float(at), cpu_s=0.0, io_bytes=0.0, python=False, blocked=True))
    assert "only sleeps" not in one.ended(30.0, NOTHING)


@pytest.mark.parametrize(("cores", "serves"), [(0.0, True), (0.5, False)])
def test_a_server_whose_code_could_train_is_known_by_its_port_and_its_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, serves: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "list_listening_ports", lambda processes: (8000,))
    monkeypatch.setattr(
        module,
        "take_activity_sample",
        lambda at, processes: ActivitySample(at=at, cpu_s=at * cores, io_bytes=0.0, python=True, blocked=False),
    )
    one, why = patience(tmp_path, may_train=True), ""
    while now < 120 and not why:
        one.look(now, ())
        why, now = one.ended(now, NOTHING), now + 1.0
    assert ("it listens on port 8000 and does nothing else" in why) is serves


def test_open_ports_are_looked_for_every_third_second_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    now = 100.0
    monkeypatch.setattr(module, "list_listening_ports", lambda processes: asked.append(now) or ())
    one = NoTrainingDetector(str(tmp_path), Expected(), began=now, no_training_s=40.0)  # type: ignore[arg-type]
    for _ in range(8):
        one.look(now, ())
        now += 1.0
    assert asked == [103.0, 106.0]
