"""Savings of placement: runs of the same work with close and distant nodes, from a real SQLite database."""

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
SWITCHES_CHANGE: Mapping[str, Any] = {
    "option": "switches",
    "old": None,
    "new": "1@5:00",
    "where": "added",
    "reason": "one switch",
}
SUCCESS = Diagnosis(category="success", domain="", decision="stop", confidence=1.0, signature="")


def make_run(
    number: int,
    nodes: tuple[str, ...],
    steps_per_s: float,
    *,
    changes: tuple[Mapping[str, Any], ...] = (),
    at: int = SINCE + 1000,
    script: str = "5" * 64,
    variant: str = "b64",
) -> tuple[JobRun, Submission]:
    """Make a run of one hour on 16 GPUs, submitted ten minutes before its start."""
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
        diagnosis=SUCCESS,
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


def make_report_input(*runs: tuple[JobRun, Submission]) -> dict[str, Any]:
    return {
        "attempts": tuple(attempt for attempt, _ in runs),
        "submissions": tuple(submission for _, submission in runs),
        "since": SINCE,
        "until": UNTIL,
        "switch_of": SWITCHES,
    }


def compute_placement_saving(*runs: tuple[JobRun, Submission]) -> Saving:
    return night_of(**make_report_input(*runs)).savings[1]


def test_twenty_pairs_of_the_same_work_give_an_estimate() -> None:
    near = [make_run(n, NEAR, 5.0 if n % 2 else 4.0, changes=(SWITCHES_CHANGE,)) for n in range(1, 21)]
    # before the report period, within a week
    far = [make_run(n, FAR, 4.0, at=SINCE - 200_000) for n in range(101, 121)]
    found = compute_placement_saving(*near, *far)
    assert found.gpu_hours == pytest.approx(10 * 16 * (5 / 4 - 1))
    assert (found.what, found.formula, found.n, found.note, found.spared) == ("placement", "placement-2", 20, "", True)
    assert found.low is not None and found.high is not None
    assert 0.0 <= found.low < 40.0 < found.high


def test_nineteen_pairs_give_no_estimate() -> None:
    near = [make_run(n, NEAR, 5.0, changes=(SWITCHES_CHANGE,)) for n in range(1, 21)]
    far = [make_run(n, FAR, 4.0) for n in range(101, 120)]
    assert compute_placement_saving(*near, *far) == Saving(
        what="placement",
        formula="placement-2",
        gpu_hours=None,
        n=19,
        needed=20,
        note="needs jobs that count their steps (gsub --count-steps) and ran near and far",
    )


def test_step_counted_runs_are_read_from_the_database() -> None:
    kept = {**SWITCHES_CHANGE, "old": "1", "new": "1"}  # a remark: the option was not changed
    no_steps = make_run(6, NEAR, 5.0)
    runs = [
        make_run(1, NEAR, 5.0, changes=(SWITCHES_CHANGE,)),
        make_run(2, FAR, 4.0, changes=(kept,)),
        make_run(3, NEAR, 5.0, changes=({**SWITCHES_CHANGE, "option": "exclude"},)),
        # ended before the period: used only for comparison
        make_run(4, NEAR, 5.0, changes=(SWITCHES_CHANGE,), at=SINCE - 90_000),
        # too old to know whether placement chose its nodes
        make_run(5, NEAR, 5.0, changes=(SWITCHES_CHANGE,), at=UNTIL - 8 * 86_400),
        (replace(no_steps[0], measurement=Measurement(seconds=3600)), no_steps[1]),
    ]
    paced = figures_of(**make_report_input(*runs)).paced
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


def test_a_placed_run_is_paired_with_the_distant_run_nearest_in_time() -> None:
    first, second = paced(NEAR, 10.0, placed=True, speed=3.0), paced(NEAR, 20.0, placed=True)
    early, late, last = (paced(FAR, ended, speed=2.0) for ended in (4.0, 12.0, 90.0))
    assert find_pairs([late, second, early, last, first], SWITCHES) == [Pair(first, late), Pair(second, early)]
    assert Pair(first, late).gpu_hours == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("close", "apart", "expected"),
    [
        (("n0",), NEAR, 1),  # one node and one switch
        (("n0",), FAR, 1),
        (NEAR, ("n2", "n3"), 0),  # equally close
        (FAR, NEAR, 0),  # the placed run spans more switches
        (NEAR, ("n3", "n99"), 0),  # the switch of a node is not known
        (("n0", "n99"), FAR, 0),
    ],
)
def test_one_node_is_closer_than_one_switch_and_that_than_several(
    close: tuple[str, ...], apart: tuple[str, ...], expected: int
) -> None:
    assert len(find_pairs([paced(close, 1.0, placed=True), paced(apart, 2.0)], SWITCHES)) == expected


def test_runs_of_other_work_and_runs_without_placement_are_not_paired() -> None:
    assert find_pairs([paced(NEAR, 1.0, placed=True), paced(FAR, 2.0, work="b")], SWITCHES) == []
    assert find_pairs([paced(NEAR, 1.0), paced(FAR, 2.0)], SWITCHES) == []


def test_a_distant_run_is_paired_only_once() -> None:
    near = [paced(NEAR, float(n), placed=True) for n in range(5)]
    assert len(find_pairs([*near, paced(FAR, 2.0)], SWITCHES)) == 1


@pytest.mark.parametrize(("nodes", "expected"), [(NEAR, SWITCHES), (NEAR[:1], {})])
def test_switches_are_read_if_a_step_counted_run_before_the_period_had_two_nodes(
    nodes: tuple[str, ...], expected: dict[str, str]
) -> None:
    figures = figures_of(**make_report_input(make_run(1, nodes, 5.0, at=SINCE - 90_000)))
    assert (len(figures.paced), figures.switch_of) == (1, expected)
