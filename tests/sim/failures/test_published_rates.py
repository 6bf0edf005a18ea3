"""Consistency of table 7 with the sums of its authors and with derived figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from prerun_rounds.binomial import compute_interval

from slurmwrap.diagnosis.taxonomy import FAILURES
from slurmwrap.sim.failures.assumptions import REHEARSED
from slurmwrap.sim.failures.published_rates import (
    CLASSIFIED,
    FAILING_JOBS,
    LATE_THREADS,
    PHILLY,
    PRERUN_ROUNDS,
    LateThreads,
    PrerunRound,
    compute_rehearsed_interval,
    get_demand_column,
)


def test_demand_columns_add_up_to_the_trials_in_every_row() -> None:
    assert [c.reason for c in PHILLY if sum(c.by_demand) != c.trials] == []


def test_the_whole_table_has_the_published_number_of_trials_and_rows() -> None:
    assert (len(PHILLY), sum(cause.trials for cause in PHILLY)) == (22, 39_776)


def test_shares_of_run_time_add_up_to_100_percent() -> None:
    assert sum(cause.share for cause in PHILLY) == pytest.approx(100, abs=0.05)


def test_the_eight_most_common_reasons_repeat_as_in_the_paper() -> None:
    top = sorted(PHILLY, key=lambda cause: -cause.trials)[:8]
    trials = sum(cause.trials for cause in top)
    per_job, per_user = trials / sum(c.jobs for c in top), trials / sum(c.users for c in top)
    assert (int(per_job * 10) / 10, round(per_user, 1)) == (2.3, 38.8)


def test_every_reason_has_a_category_of_the_taxonomy() -> None:
    assert {cause.category for cause in PHILLY} <= set(FAILURES)


def test_the_share_of_failing_jobs_equals_the_published_counts() -> None:
    assert pytest.approx(17_581 / 96_260) == FAILING_JOBS


@pytest.mark.parametrize(("gpus", "column"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (128, 2)])
def test_the_column_of_a_gpu_demand(gpus: int, column: int) -> None:
    assert get_demand_column(gpus) == column


def read_results(page: str) -> list[list[str]]:
    """The rows of the first table below "Results": one for each round."""
    text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
    results = text.partition("## Results")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in results.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0].isdigit()]


def test_the_rounds_of_the_classifier_are_those_in_the_documentation() -> None:
    rows = [
        (int(row[2]), round(float(row[3]) * int(row[2])), round(float(row[6]) * int(row[2])))
        for row in read_results("diagnosis-rounds.md")
    ]
    assert rows == list(CLASSIFIED)


def test_the_rounds_of_the_pre_run_that_the_study_uses_are_the_first_in_the_documentation() -> None:
    rows = read_results("prerun-rounds.md")
    found = [PrerunRound(sound=int(r[2]), failed=int(r[4]), visible=int(r[5]), stopped=int(r[6])) for r in rows]
    assert len(PRERUN_ROUNDS) >= 2 and found[: len(PRERUN_ROUNDS)] == list(PRERUN_ROUNDS)


def read_late_threads() -> list[dict[str, str]]:
    path = Path(__file__).parents[2] / "data" / "failures" / "late_threads.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_late_threads_are_the_python_errors_of_the_list() -> None:
    rows = read_late_threads()
    assert len({row["thread"] for row in rows}) == len(rows)
    labels = [row["label"] for row in rows if row["category"] in REHEARSED]
    rehearsed, unclear = labels.count("rehearsal"), labels.count("unclear")
    other = len(labels) - rehearsed - unclear
    assert LateThreads(rehearsed=rehearsed, other=other, unclear=unclear) == LATE_THREADS


def test_only_threads_about_code_that_is_due_later_changed_their_label_and_say_how_they_are_reached() -> None:
    rows = read_late_threads()
    changed = [row for row in rows if row["first_label"]]
    assert {(row["first_label"], row["label"], row["place"]) for row in changed} == {
        ("time-or-scale", "rehearsal", "interval")
    }
    assert {row["reached_by"] for row in changed} == {"interval block", "after the loop"}
    assert [row["thread"] for row in rows if row["reached_by"] and not row["first_label"]] == []
    # The numbers that the comment on LATE_THREADS tells.
    errors = [row for row in rows if row["category"] in REHEARSED]
    first = [row["first_label"] or row["label"] for row in errors]
    due = [row["label"] for row in errors if row["place"] == "interval"]
    assert (first.count("rehearsal"), len(due), due.count("rehearsal")) == (15, 20, 5)


def test_the_interval_of_the_rehearsed_share_is_the_exact_one() -> None:
    number = LATE_THREADS.rehearsed + LATE_THREADS.other
    assert compute_rehearsed_interval() == pytest.approx(compute_interval(LATE_THREADS.rehearsed, number), abs=1e-6)
