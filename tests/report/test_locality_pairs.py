"""What placement saved: runs of the same work near and far, as a real SQLite database holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from night_figures import figures_of, night_of

from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.submission import Submission
from slurmwrap.report.night_report import Saving
from slurmwrap.report.report_inputs import StepCountedRun
from slurmwrap.report.savings import Pair, find_pairs

UNTIL = 1_700_604_800
SINCE = UNTIL - 86_400
SWITCHES = {f"n{number}": "leaf0" if number < 4 else "leaf1" for number in range(8)}
NEAR, FAR = ("n0", "n1"), ("n3", "n4")
ASKED: Mapping[str, Any] = {
    "option": "switches",
    "old": None,
    "new": "1@5:00",
    "where": "added",
    "reason": "one switch",
}
WELL = Diagnosis(category="success", domain="", decision="stop", confidence=1.0, signature="")


def run(
    number: int,
    nodes: tuple[str, ...],
    steps_per_s: float,
    *,
    changes: tuple[Mapping[str, Any], ...] = (),
    at: int = SINCE + 1000,
    script: str = "5" * 64,
    variant: str = "b64",
) -> tuple[JobRun, Submission]:
    """One hour on 16 GPUs, submitted ten minutes before it starts."""
    start = at + 600 + number
    attempt = JobRun(
        attempt=RunKey(cluster="lab", job_id=number, submit_time=at + number),
        user="ada",
        uid=1001,
        gpus=16,
        nodes=nodes,
        start_time=start,
        end_time=start + 3600,
        measurement=Measurement(seconds=3600, steps=100, steps_per_s=steps_per_s),
        diagnosis=WELL,
    )
    submission = Submission(
        cluster="lab",
        job_id=number,
        uid=1001,
        user="ada",
        at=float(at + number),
        script_sha256=script,
        profile_variant=variant,
        gpus=16,
        changes=changes,
    )
    return attempt, submission


def given(*runs: tuple[JobRun, Submission]) -> dict[str, Any]:
    return {
        "attempts": tuple(attempt for attempt, _ in runs),
        "submissions": tuple(submission for _, submission in runs),
        "since": SINCE,
        "until": UNTIL,
        "switch_of": SWITCHES,
    }


def placement(*runs: tuple[JobRun, Submission]) -> Saving:
    return night_of(**given(*runs)).savings[1]


def test_twenty_pairs_of_the_same_work_are_an_estimate() -> None:
    near = [run(n, NEAR, 5.0 if n % 2 else 4.0, changes=(ASKED,)) for n in range(1, 21)]
    far = [run(n, FAR, 4.0, at=SINCE - 200_000) for n in range(101, 121)]  # before the period, within the week
    found = placement(*near, *far)
    assert found.gpu_hours == pytest.approx(10 * 16 * (5 / 4 - 1))
    assert (found.what, found.formula, found.n, found.note, found.spared) == ("placement", "placement-2", 20, "", True)
    assert found.low is not None and found.high is not None
    assert 0.0 <= found.low < 40.0 < found.high


def test_nineteen_are_none() -> None:
    near = [run(n, NEAR, 5.0, changes=(ASKED,)) for n in range(1, 21)]
    far = [run(n, FAR, 4.0) for n in range(101, 120)]
    assert placement(*near, *far) == Saving(
        what="placement",
        formula="placement-2",
        gpu_hours=None,
        n=19,
        needed=20,
        note="needs jobs that count their steps (gsub --count-steps) and ran near and far",
    )


def test_what_the_database_tells_of_each_run() -> None:
    kept = {**ASKED, "old": "1", "new": "1"}  # a remark: nothing was changed
    no_steps = run(6, NEAR, 5.0)
    runs = [
        run(1, NEAR, 5.0, changes=(ASKED,)),
        run(2, FAR, 4.0, changes=(kept,)),
        run(3, NEAR, 5.0, changes=({**ASKED, "option": "exclude"},)),
        run(4, NEAR, 5.0, changes=(ASKED,), at=SINCE - 90_000),  # ended before the period: only to compare with
        run(5, NEAR, 5.0, changes=(ASKED,), at=UNTIL - 8 * 86_400),  # of which it is no longer known who placed it
        (replace(no_steps[0], measurement=Measurement(seconds=3600)), no_steps[1]),
    ]
    paced = figures_of(**given(*runs)).paced
    work = (1001, "5" * 64, "b64", 16)
    assert sorted(paced, key=lambda one: one.ended) == [
        StepCountedRun(work, NEAR, 16 * 3600.0, 5.0, SINCE - 90_000 + 604 + 3600.0, False),
        StepCountedRun(work, NEAR, 16 * 3600.0, 5.0, SINCE + 1000 + 601 + 3600.0, True),
        StepCountedRun(work, FAR, 16 * 3600.0, 4.0, SINCE + 1000 + 602 + 3600.0, False),
        StepCountedRun(work, NEAR, 16 * 3600.0, 5.0, SINCE + 1000 + 603 + 3600.0, False),
    ]


def paced(
    nodes: tuple[str, ...], ended: float, *, placed: bool = False, work: str = "a", speed: float = 1.0
) -> StepCountedRun:
    return StepCountedRun((1, work, "", 16), nodes, 3600.0, speed, ended, placed)


def test_each_has_the_farther_run_that_ended_nearest_to_it() -> None:
    first, second = paced(NEAR, 10.0, placed=True, speed=3.0), paced(NEAR, 20.0, placed=True)
    early, late, last = (paced(FAR, ended, speed=2.0) for ended in (4.0, 12.0, 90.0))
    assert find_pairs([late, second, early, last, first], SWITCHES) == [Pair(first, late), Pair(second, early)]
    assert Pair(first, late).gpu_hours == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("close", "apart", "expected"),
    [
        (("n0",), NEAR, 1),  # one node and one switch
        (("n0",), FAR, 1),
        (NEAR, ("n2", "n3"), 0),  # as close
        (FAR, NEAR, 0),  # what was placed lay farther
        (NEAR, ("n3", "n99"), 0),  # its network is not known
        (("n0", "n99"), FAR, 0),
    ],
)
def test_closer_is_one_node_then_one_switch(close: tuple[str, ...], apart: tuple[str, ...], expected: int) -> None:
    assert len(find_pairs([paced(close, 1.0, placed=True), paced(apart, 2.0)], SWITCHES)) == expected


def test_other_work_is_no_counterpart_nor_is_a_run_that_nobody_placed() -> None:
    assert find_pairs([paced(NEAR, 1.0, placed=True), paced(FAR, 2.0, work="b")], SWITCHES) == []
    assert find_pairs([paced(NEAR, 1.0), paced(FAR, 2.0)], SWITCHES) == []


def test_one_far_run_serves_one_near_run() -> None:
    near = [paced(NEAR, float(n), placed=True) for n in range(5)]
    assert len(find_pairs([*near, paced(FAR, 2.0)], SWITCHES)) == 1
