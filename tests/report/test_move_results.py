"""Moves of running jobs are compared with the runs that followed, and these are found in the database."""

from __future__ import annotations

from typing import Any

import pytest
from night_figures import night_of

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.report.move_results import compare_moves
from slurmwrap.report.night_report import Agreement

START = 1_700_000_000
HOUR = 3600


def run(
    job_id: int,
    start: int | None,
    end: int | None,
    *,
    submitted: int = 0,
    restarts: int = 0,
    speed: float | None = None,
    address: str = "",
    nodes: tuple[str, ...] = ("n1",),
) -> JobRun:
    """Seconds after START, at which the move was decided."""
    return JobRun(
        attempt=RunKey(cluster="lab", job_id=job_id, submit_time=START + submitted), user="ada", uid=1001, gpus=4,
        nodes=nodes, restarts=restarts, address=address or str(job_id),
        start_time=None if start is None else START + start, end_time=None if end is None else START + end,
        measurement=None if speed is None else Measurement(steps_per_s=speed),
        diagnosis=None if end is None else Diagnosis(
            category="cancelled", domain="", decision="none", confidence=1.0, signature=""
        ),
    )  # fmt: skip


def move(key: str = "feedback", mode: str = "act", of: JobRun | None = None, **changes: Any) -> ActionRecord:
    """The other job would start two hours later without the move, which costs 300 s."""
    given = {"value": "90", "figures": (("waits_s", 7200.0), ("cost_s", 300.0)), "done_at": START + 60.0, **changes}
    return ActionRecord(
        action_id=0, attempt=(of or MOVED).attempt, rule="move", mode=mode, verb="move", target="81", key=key,
        reason="", intended_at=float(START), **given,
    )  # fmt: skip


MOVED = run(81, -HOUR, 60, submitted=-HOUR)
AGAIN = run(81, 2000, 9000, submitted=60, restarts=1)
RUNS = run(81, 2000, None, submitted=60, restarts=1)
WAITED = run(90, 90, 1900, submitted=-100)
RESTARTED = move("restarted", of=AGAIN, value="1200")


def result(*runs: JobRun, actions: tuple[ActionRecord, ...]) -> str:
    found = compare_moves(actions, runs)
    assert len(found) == 1 and found[0].agree + found[0].disagree + found[0].open == 1
    return "right" if found[0].agree else "wrong" if found[0].disagree else "open"


@pytest.mark.parametrize(
    ("runs", "actions", "expected"),
    [
        ((WAITED, AGAIN), (move(),), "right"),
        ((WAITED, RUNS), (move(),), "open"),  # it may still begin at its start
        ((WAITED,), (move(),), "open"),
        ((WAITED, AGAIN), (move(), RESTARTED), "wrong"),
        ((run(90, 6950, 8000, submitted=-100), run(81, 8000, 9000, submitted=60, restarts=1)), (move(),), "wrong"),
        ((run(90, 2500, None, submitted=-100), AGAIN), (move(),), "wrong"),  # the moved job came first
        ((run(90, None, None, submitted=-100), AGAIN), (move(),), "wrong"),
        ((run(90, None, 500, submitted=-100), AGAIN), (move(),), "open"),  # cancelled while it waited
        ((AGAIN,), (move(),), "open"),
        ((WAITED, AGAIN), (move(figures=()),), "open"),  # of an older version
        ((run(90, 90, 1900, submitted=30), AGAIN), (move(),), "open"),  # another job with a reused id
    ],
)
def test_a_move_that_was_done(runs: tuple[JobRun, ...], actions: tuple[ActionRecord, ...], expected: str) -> None:
    assert result(MOVED, *runs, actions=actions) == expected


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        (run(90, 4000, None, submitted=-100), "right"),
        (run(90, 200, None, submitted=-100), "wrong"),
        (run(90, None, None, submitted=-100), "open"),
    ],
)
def test_a_move_that_was_only_advised(waiting: JobRun, expected: str) -> None:
    assert result(MOVED, waiting, actions=(move("fragmentation", "advise", done_at=None),)) == expected


@pytest.mark.parametrize(
    ("mode", "speed", "after", "expected"),
    [
        ("act", 1.0, run(81, 100, 900, restarts=1, submitted=60, speed=1.4), "right"),
        ("act", 1.0, run(81, 100, 900, restarts=1, submitted=60, speed=1.1), "wrong"),
        ("act", 1.0, run(81, 100, 900, restarts=1, submitted=60), "open"),
        ("advise", 1.0, run(81, 100, 900, restarts=1, submitted=60, speed=1.4, nodes=("n2",)), "right"),
        ("advise", 1.0, run(81, 100, 900, restarts=1, submitted=60, speed=1.4), "open"),  # on the same node
    ],
)
def test_a_slow_job(mode: str, speed: float, after: JobRun, expected: str) -> None:
    slow = run(81, -HOUR, 60, submitted=-HOUR, speed=speed)
    assert result(slow, after, actions=(move("slow", mode, value="n1", figures=()),)) == expected


def test_what_was_given_up_and_ends_of_leases_are_no_cases() -> None:
    assert compare_moves([move(error="job 90 no longer waits"), move("lease")], [MOVED, WAITED, AGAIN]) == ()


@pytest.mark.parametrize(("value", "address"), [("90", "90"), ("77_2", "77_2"), ("77_[2-9]", "77_3")])
def test_the_waiting_job_is_found_in_the_database(value: str, address: str) -> None:
    waited = run(90, 90, 1900, submitted=-100, address=address)
    other = run(91, 90, 1900, submitted=-100, address="77_20")
    signal = ActionRecord(
        action_id=7, attempt=MOVED.attempt, rule="move", mode="act", verb="signal", target="81", key="USR1", value="",
        reason="", intended_at=float(START),
    )  # fmt: skip
    report = night_of(
        attempts=(MOVED, AGAIN, waited, other), actions=(move(value=value), signal), since=START - 2 * HOUR,
        until=START + 4 * HOUR,
    )  # fmt: skip
    assert report.agreement == (Agreement(rule="move", agree=1),)
