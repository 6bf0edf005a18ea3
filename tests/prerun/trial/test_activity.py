"""When a trial stands still, and where its programs say that they wait."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from waiting import allow

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome
from slurmwrap.prerun.trial import activity
from slurmwrap.prerun.trial.activity import ActivitySample, InactivityDetector, count_network_bytes
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

STILL = ActivitySample(at=0.0, cpu_s=7.0, io_bytes=1000.0, python=True, blocked=False)


def find_end(monkeypatch: pytest.MonkeyPatch, network: Iterator[int] | None = None, **moving: float) -> float | None:
    """The second at which a trial with this change per second is ended; None if it still runs after 10 minutes."""
    monkeypatch.setattr(activity, "count_network_bytes", lambda processes: next(network or itertools.repeat(5)))
    detector = InactivityDetector(no_activity_s=90.0)
    for at in range(600):
        sample = replace(
            STILL,
            at=float(at),
            cpu_s=STILL.cpu_s + at * moving.get("cpu_s", 0.0),
            io_bytes=STILL.io_bytes + at * moving.get("io_bytes", 0.0),
            blocked=bool(moving.get("blocked")),
        )
        if detector.look(
            sample,
            steps=int(at * moving.get("steps", 0.0)),
            output_bytes=int(at * moving.get("output", 0.0)),
            gpu=moving.get("gpu"),
        ):
            return float(at)
    return None


def test_a_trial_without_any_activity_ends_after_the_configured_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_end(monkeypatch) == 90.0


def test_threads_that_poll_do_not_count_as_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_end(monkeypatch, cpu_s=0.005, io_bytes=1000.0, gpu=0.0) == 90.0


@pytest.mark.parametrize(
    "moving",
    [
        {"cpu_s": 0.05},
        {"io_bytes": 10_000.0},
        {"gpu": 0.3},
        {"steps": 0.02},
        {"output": 0.02},
        {"blocked": 1.0},
        {"cpu_s": -0.05},  # a process ended
    ],
    ids=lambda moving: next(iter(moving)),
)
def test_each_kind_of_activity_keeps_the_trial_running(
    monkeypatch: pytest.MonkeyPatch, moving: dict[str, float]
) -> None:
    assert find_end(monkeypatch, **moving) is None


def test_a_download_keeps_the_trial_running(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_end(monkeypatch, itertools.count(0, 1 << 20)) is None


def test_the_time_counts_from_the_last_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    received = itertools.chain((0, 1 << 20), itertools.repeat(2 << 20))
    assert find_end(monkeypatch, received) == 180.0


def test_bytes_of_a_tcp_connection_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = count_network_bytes([psutil.Process()])
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
            client.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(peer.recv(left))
            # Sent and acknowledged by one socket, received by the other.
            assert count_network_bytes([psutil.Process()]) - before >= 200_000


def test_processes_that_have_ended_count_no_bytes() -> None:
    class Ended:
        pid = 2**22 + 1

    assert count_network_bytes([Ended()]) == 0  # type: ignore[list-item]


WAITS = """
import threading

class Loader:
    def fetch(self):
        threading.Event().wait()

print("loading the data", flush=True)
Loader().fetch()
"""


def test_a_program_that_waits_for_ever_is_ended_with_the_place_where_it_waits(
    trial: Callable[..., TrialResult], job: Path
) -> None:
    (job / "train.py").write_text(f"import torch.optim\ntorch.optim.SGD()\n{WAITS}")
    result = trial("#!/bin/bash\npython train.py\n", no_activity_s=allow(2.0))
    found = judge(TrialSpec(trial_dir="/t", script="/t/s", chdir=str(job), no_activity_s=90.0), result, diagnose_run)
    assert (result.layer, found.outcome, found.layer, found.lasting) == (
        "no_activity", Outcome.INCONCLUSIVE, "no_activity", True,
    )  # fmt: skip
    assert found.reason == "no activity for 90 s after 'loading the data'; it waits in train.py:8 (fetch)"


def test_a_shell_that_waits_is_ended_without_a_place(trial: Callable[..., TrialResult], job: Path) -> None:
    (job / "train.py").write_text("import torch.optim\n")
    os.mkfifo(job / "answer")
    result = trial("#!/bin/bash\nread line < answer\npython train.py\n", no_activity_s=allow(1.0), no_training_s=600.0)
    found = judge(TrialSpec(trial_dir="/t", script="/t/s", chdir=str(job)), result, diagnose_run)
    assert (result.layer, found.reason) == ("no_activity", "no activity for 90 s after its start, without output")
