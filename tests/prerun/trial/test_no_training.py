"""When a trial stops waiting for an optimizer step."""

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
    """What the static analysis expects of the code."""

    may_train: bool = False
    uncounted: bool = False
    distributed: bool = False

    def see(self, cmdline: object, cwd: str) -> None:
        """Ignores the processes of the trial."""


def make_detector(directory: Path, **expected: bool) -> NoTrainingDetector:
    return NoTrainingDetector(str(directory), Expected(**expected), began=0.0, no_training_s=40.0)  # type: ignore[arg-type]


def find_reason(
    detector: NoTrainingDetector,
    seconds: float,
    reading: StepReading = NOTHING,
    *,
    python: bool = True,
    cores: float = 1.0,
) -> str:
    """The first reason to end the trial, with one sample per second."""
    for at in range(int(seconds) + 1):
        detector.take(ActivitySample(at=float(at), cpu_s=at * cores, io_bytes=0.0, python=python, blocked=False))
        if why := detector.ended(float(at), reading):
            return f"{at}: {why}"
    return ""


def test_a_program_without_training_code_ends_after_no_training_s(tmp_path: Path) -> None:
    assert find_reason(make_detector(tmp_path), 60) == "40: nothing in its code trains"


def test_the_reason_says_that_torch_is_used_without_an_optimizer(tmp_path: Path) -> None:
    (tmp_path / "torch").touch()
    assert "torch is used without an optimizer" in find_reason(make_detector(tmp_path), 60)


def test_a_program_that_may_train_is_not_ended(tmp_path: Path) -> None:
    assert find_reason(make_detector(tmp_path, may_train=True), 600, cores=0.0) == ""


@pytest.mark.parametrize("source", ["optimizer", "keras", "backward"])
def test_a_program_that_trains_is_not_ended_whatever_its_code_says(tmp_path: Path, source: str) -> None:
    assert find_reason(make_detector(tmp_path), 600, StepReading(count=1, source=source)) == ""


def test_a_program_that_created_an_optimizer_is_not_ended(tmp_path: Path) -> None:
    (tmp_path / "optimizer").touch()
    assert find_reason(make_detector(tmp_path), 600) == ""


@pytest.mark.parametrize(("cores", "what"), [(0.0, "it only sleeps"), (1.0, "no Python is in it")])
def test_a_program_without_python_is_ended(tmp_path: Path, cores: float, what: str) -> None:
    found = find_reason(make_detector(tmp_path), 60, python=False, cores=cores)
    assert found.startswith("25: ") and what in found


def test_batches_without_an_optimizer_count_as_an_evaluation(tmp_path: Path) -> None:
    long_flow = StepReading(count=50, source="dataloader", first=5.0, last=5.0 + AT_WORK_S)
    short_flow = StepReading(count=50, source="dataloader", first=5.0, last=25.0)
    assert "50 batches" in find_reason(make_detector(tmp_path, may_train=True), 60, long_flow)
    assert find_reason(make_detector(tmp_path, may_train=True), 60, short_flow) == ""
    # JAX has no optimizer of torch
    assert find_reason(make_detector(tmp_path, may_train=True, uncounted=True), 60, long_flow) == ""


def test_listening_ports_of_the_given_processes_are_listed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in list_listening_ports([psutil.Process()])
    assert list_listening_ports([]) == ()


def test_a_process_that_waits_for_a_disk_does_not_count_as_sleeping(tmp_path: Path) -> None:
    detector = make_detector(tmp_path)
    for at in range(int(IDLE_S) + 15):
        detector.take(ActivitySample(at=float(at), cpu_s=0.0, io_bytes=0.0, python=False, blocked=True))
    assert "only sleeps" not in detector.ended(30.0, NOTHING)


@pytest.mark.parametrize(("cores", "serves"), [(0.0, True), (0.5, False)])
def test_an_idle_process_that_listens_on_a_port_counts_as_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: float, serves: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(module, "list_listening_ports", lambda processes: (8000,))
    detector, why = make_detector(tmp_path, may_train=True), ""
    while now < 120 and not why:
        detector.look(ActivitySample(at=now, cpu_s=now * cores, io_bytes=0.0, python=True, blocked=False), ())
        why, now = detector.ended(now, NOTHING), now + 1.0
    assert ("it listens on port 8000 and does nothing else" in why) is serves


def test_open_ports_are_searched_every_three_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    now = 100.0
    monkeypatch.setattr(module, "list_listening_ports", lambda processes: times.append(now) or ())
    detector = NoTrainingDetector(str(tmp_path), Expected(), began=now, no_training_s=40.0)  # type: ignore[arg-type]
    for _ in range(8):
        detector.look(ActivitySample(at=now, cpu_s=now, io_bytes=0.0, python=True, blocked=False), ())
        now += 1.0
    assert times == [103.0, 106.0]
