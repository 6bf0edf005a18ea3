"""Findings about running jobs, compared with how the runs ended."""

from __future__ import annotations

import pytest

from slurmwrap.model.running_job import DIVERGED, IDLE, PARTLY_DEAD, STUCK, WILL_NOT_FINISH
from slurmwrap.report.early_results import count_early_rows, judge_found_run, list_early_cases, make_early_agreement
from slurmwrap.report.night_report import Agreement
from slurmwrap.report.report_inputs import FoundRun


def found(kind: str, state: str = "FAILED", **changes: object) -> FoundRun:
    plain = FoundRun(
        kind=kind, action="", at=1000.0, gone_at=None, address="81", user="alice", name="train", gpus=8, state=state,
        category="", end_time=8200.0 if state else None, evidence="no step for 12 min",
    )  # fmt: skip
    return plain._replace(**changes)


@pytest.mark.parametrize(
    ("one", "result"),
    [
        (found(STUCK), "right"),
        (found(STUCK, "TIMEOUT"), "right"),
        (found(PARTLY_DEAD, "CANCELLED"), "right"),
        (found(STUCK, "COMPLETED"), "wrong"),
        (found(STUCK, "FAILED", gone_at=1300.0), "wrong"),
        (found(STUCK, ""), "open"),
        (found(DIVERGED, "CANCELLED", action="cancel"), "open"),
        (found(DIVERGED, "COMPLETED"), "wrong"),
        (found(DIVERGED, "COMPLETED", category="completed_with_error"), "right"),
        (found(IDLE, "COMPLETED"), "right"),
        (found(IDLE, "COMPLETED", gone_at=1300.0), "wrong"),
        (found(IDLE, "", gone_at=5000.0), "right"),
        (found(WILL_NOT_FINISH, "TIMEOUT"), "right"),
        (found(WILL_NOT_FINISH, "COMPLETED"), "wrong"),
        (found(WILL_NOT_FINISH, "FAILED"), "open"),
    ],
)
def test_a_finding_is_right_or_wrong_by_the_end_of_the_run(one: FoundRun, result: str) -> None:
    assert judge_found_run(one) == result


def test_rows_by_kind_and_the_newest_cases() -> None:
    all_found = [found(STUCK), found(STUCK, "COMPLETED"), found(DIVERGED, "", at=2000.0)]
    rows = count_early_rows(all_found)
    assert [(row.kind, row.findings, row.right, row.wrong, row.open, row.precision) for row in rows] == [
        ("diverged", 1, 0, 0, 1, None),
        ("stuck", 2, 1, 1, 0, 0.5),
    ]
    assert rows[1].gpu_hours_after == 16.0
    assert [case.kind for case in list_early_cases(all_found)] == ["diverged", "stuck", "stuck"]
    assert make_early_agreement(rows) == (Agreement(rule="early", agree=1, disagree=1, open=1),)
    assert make_early_agreement(()) == ()
