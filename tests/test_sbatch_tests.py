"""The runner of Slurm's own sbatch tests (.ci/sbatch_tests), with made-up tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from sbatch_tests import outcomes, suite
from sbatch_tests.outcomes import Compared, Outcome, compare, of_expect, of_pytest, summary

_LOG = (
    "[2026-11-21 16:44:12.683] Command Run Command: /usr/bin/sinfo (run_command@globals:1109)\n"
    "\x1b[31m[2026-11-21 16:44:12.732] Fatal   No job came of it (fail@globals:431,test17.3:52)\x1b[0m\n"
    "[2026-11-21 16:44:12.733] Error   And more (fail@globals:431)\n"
)


@pytest.mark.parametrize(
    ("code", "log", "outcome"),
    [
        (0, _LOG, Outcome("test17.3", "pass")),
        (1, _LOG, Outcome("test17.3", "fail", "No job came of it")),
        (255, "[16:44] Warning Not as root (skip@globals:9)\n", Outcome("test17.3", "skip", "Not as root")),
        (1, "no word of why\n", Outcome("test17.3", "fail", "exit code 1")),
    ],
)
def test_an_expect_test_has_its_outcome_from_exit_code_and_first_error(code: int, log: str, outcome: Outcome) -> None:
    assert of_expect("test17.3", code, log) == outcome


def test_a_python_test_file_has_an_outcome_for_each_case() -> None:
    report = b"""<testsuites><testsuite><testcase name="a"/>
    <testcase name="b[x-1]"><failure message="not so&#10;more">trace</failure></testcase>
    <testcase name="c"><skipped message="needs a GPU"/></testcase>
    <testcase name="d"><error message="setup"/></testcase></testsuite></testsuites>"""
    assert of_pytest("t.py", report) == [
        Outcome("t.py::a", "pass"),
        Outcome("t.py::b[x-1]", "fail", "not so"),
        Outcome("t.py::c", "skip", "needs a GPU"),
        Outcome("t.py::d", "fail", "setup"),
    ]


def _runs(*gsub: str, sbatch: str = "pass") -> tuple[list[Compared], list[tuple[str, int]]]:
    asked: list[tuple[str, int]] = []

    def run(test: str, arm: str, attempt: int) -> list[Outcome]:
        asked.append((arm, attempt))
        return [Outcome(test, sbatch if arm == "sbatch" else gsub[attempt], "why")]

    return compare(run, "test1.1"), asked


def test_a_test_that_passes_with_gsub_runs_once_with_each_program() -> None:
    assert _runs("pass") == (
        [Compared("test1.1", "pass", "pass", "why", "why")],
        [("sbatch", 0), ("gsub", 0)],
    )


def test_a_test_that_fails_once_with_gsub_is_repeated_and_the_best_result_counts() -> None:
    found, asked = _runs("fail", "pass")
    assert [(one.gsub, one.counts) for one in found] == [("pass", False)]
    assert asked == [("sbatch", 0), ("gsub", 0), ("sbatch", 1), ("gsub", 1)]


@pytest.mark.parametrize("word", ["fail", "skip"])
def test_a_test_that_never_passes_with_gsub_is_counted(word: str) -> None:
    found, asked = _runs(word, word, word)
    assert [one.counts for one in found] == [True]
    assert len(asked) == 2 * outcomes.REPEATS
    assert "1 pass with sbatch and do not with gsub\n" in summary(found)


def test_a_test_that_fails_with_sbatch_too_is_not_counted() -> None:
    found, _ = _runs("fail", sbatch="fail")
    assert ([one.counts for one in found], summary(found).splitlines()[-1]) == (
        [False],
        "0 pass with sbatch and do not with gsub",
    )


def test_only_tests_that_submit_are_run_in_numerical_order(tmp_path: Path) -> None:
    (tmp_path / "expect").mkdir()
    (tmp_path / "python" / "tests").mkdir(parents=True)
    for name, text in {
        "test17.10": "$sbatch",
        "test17.9": "submit_job",
        "test1.1": "$srun",
        "test1.1.prog.c": "sbatch",
    }.items():
        (tmp_path / "expect" / name).write_text(text)
    (tmp_path / "python" / "tests" / "test_105_2.py").write_text("run('sbatch x')")
    assert suite.tests_of(tmp_path, "") == ["test17.9", "test17.10", "test_105_2.py"]
    assert suite.tests_of(tmp_path, "[.]9$") == ["test17.9"]
    assert suite.tests_of(tmp_path, "", python_alone=True) == ["test_105_2.py"]
