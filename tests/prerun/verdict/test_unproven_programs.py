"""Programs of a script with exit code 0 that did not run to their end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.verdict.unproven_programs import find_unproven_reason

ONE = (7, ("one.py", "--lr", "3"))


def find_reason(
    body: str, starts: Sequence[tuple[int, Sequence[str]]] = (), alive: Sequence[int] = (), output: str = ""
) -> str:
    return find_unproven_reason(
        list_started_programs(f"#!/bin/bash\n{body}\n", "/w", ()), starts, frozenset(alive), output
    )


def test_a_program_that_ran_to_its_end_has_no_reason() -> None:
    assert find_reason("python one.py &\nwait", [ONE]) == ""
    assert find_reason("python -m pkg.one", [(7, ("-m", "pkg.one"))]) == ""
    assert find_reason("python - <<'EOF'\nprint(1)\nEOF", [(7, ("-",))]) == ""


def test_a_script_without_python_has_no_reason() -> None:
    assert find_reason("srun hostname") == ""


def test_a_failed_redirection_is_the_reason() -> None:
    output = "/t/slurm_script: line 2: out/log.txt: No such file or directory\ndone\n"
    reason = "'python one.py' (line 2) did not run: out/log.txt: No such file or directory"
    assert find_reason("python one.py > out/log.txt; echo done", output=output) == reason
    assert find_reason("./md > out/log.txt; echo done", output=output) == reason.replace("python one.py", "./md")
    assert find_reason("echo begin > out/log.txt; hostname", output=output) == ""  # only the output of echo was lost


def test_a_program_left_in_the_background_is_the_reason() -> None:
    reason = (
        "'python one.py' (line 2) ran in the background, and Slurm ends it with the script: add `wait` as its last line"
    )
    assert find_reason("python one.py &", [ONE], alive=[7]) == reason
    assert find_reason("python one.py &") == reason  # Slurm ended it before Python started


@pytest.mark.parametrize("body", ["[ -f done ] || python one.py", "false && python one.py"])
def test_a_program_that_was_not_seen_to_run_is_the_reason(body: str) -> None:
    assert find_reason(body, [(7, ("pip", "list"))]) == "'python one.py' (line 2) was not seen to run"


@pytest.mark.parametrize("body", ["apptainer exec x.sif python one.py", "python -I one.py", "env -i python one.py"])
def test_a_program_that_cannot_be_observed_has_no_reason(body: str) -> None:
    assert find_reason(body) == ""
