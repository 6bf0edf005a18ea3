"""Regression tests for faults of gsub found with Slurm's own sbatch tests (docs/sbatch-tests.md)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB
from realslurm import Lab, command_environment
from waiting import allow

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]


def run_with_silent_stdin(lab: Lab, home: Path, *argv: str, **more: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a call whose standard input stays open without data."""
    quiet, _writer = os.pipe()
    try:
        done = subprocess.run(
            argv, stdin=quiet, capture_output=True, text=True, cwd=home, user=ALICE, group=ALICE, extra_groups=[],
            env={**command_environment(ALICE), **lab.env, **more}, timeout=allow(60),
        )  # fmt: skip
    finally:
        os.close(quiet)
        os.close(_writer)
    return done.returncode, re.sub(r"\d+", "N", done.stdout), done.stderr


@pytest.mark.parametrize("mode", ["off", "auto"])
@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("-t2", "-N1", ":", "-N1", "--wrap", "true"), (0, "Submitted batch job N\n", "")),
        (("-t2", "--wrap", "true", "-N1", ":", "-N1"), (0, "Submitted batch job N\n", "")),
        (
            ("-a0-1", "-t1", "-N1", ":", "-N1", "--wrap", "true"),
            (1, "", "sbatch: error: Batch job submission failed: Invalid job array specification\n"),
        ),
    ],
)
def test_wrap_is_the_script_of_all_components_at_any_position(
    lab: Lab, home: Path, words: tuple[str, ...], answer: tuple[int, str, str], mode: str
) -> None:
    """gsub once read the script of `-N1 : -N1 --wrap …` from standard input and blocked."""
    asked = {"SBATCH_GPUS_PER_NODE": "1", "GSUB_PRERUN": mode}
    assert run_with_silent_stdin(lab, home, "sbatch", *words, **asked) == answer
    exit_code, stdout, stderr = run_with_silent_stdin(lab, home, GSUB, *words, **asked)
    others = [line for line in stderr.splitlines(keepends=True) if not line.startswith("gsub: ")]
    assert (exit_code, stdout, "".join(others)) == answer


def test_usage_ends_as_sbatchs_and_help_has_one_usage_line(lab: Lab, home: Path) -> None:
    """One program reads `--usage` to its end and found an unknown line; another counts `Usage:`."""
    usage = run_with_silent_stdin(lab, home, GSUB, "--usage")[1]
    assert usage.endswith("executable [args...]\n")
    assert run_with_silent_stdin(lab, home, GSUB, "--help")[1].count("Usage:") == 1
