"""What a script that ended with 0 did not show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.verdict.unproven_programs import find_unproven_reason

ONE = (7, ("one.py", "--lr", "3"))


def unproven(
    body: str, starts: Sequence[tuple[int, Sequence[str]]] = (), alive: Sequence[int] = (), output: str = ""
) -> str:
    return find_unproven_reason(
        list_started_programs(f"#!/bin/bash\n{body}\n", "/w", ()), starts, frozenset(alive), output
    )


def test_a_program_that_ran_to_its_end_is_proof() -> None:
    assert unproven("python one.py &\nwait", [ONE]) == ""
    assert unproven("python -m pkg.one", [(7, ("-m", "pkg.one"))]) == ""
    assert unproven("python - <<'EOF'\nprint(1)\nEOF", [(7, ("-",))]) == ""


def test_a_script_without_python_needs_none() -> None:
    assert unproven("srun hostname") == ""


def test_a_redirection_that_fails_is_said() -> None:
    said = "/t/slurm_script: line 2: out/log.txt: No such file or directory\ndone\n"
    why = "'python one.py' (line 2) did not run: out/log.txt: No such file or directory"
    assert unproven("python one.py > out/log.txt; echo done", output=said) == why
    assert unproven("./md > out/log.txt; echo done", output=said) == why.replace("python one.py", "./md")
    assert unproven("echo begin > out/log.txt; hostname", output=said) == ""  # nothing of weight was lost


def test_a_program_left_in_the_background_is_said() -> None:
    why = (
        "'python one.py' (line 2) ran in the background, and Slurm ends it with the script: add `wait` as its last line"
    )
    assert unproven("python one.py &", [ONE], alive=[7]) == why
    assert unproven("python one.py &") == why  # Slurm was quicker than Python's start


@pytest.mark.parametrize("body", ["[ -f done ] || python one.py", "false && python one.py"])
def test_a_program_that_was_not_seen_is_said(body: str) -> None:
    assert unproven(body, [(7, ("pip", "list"))]) == "'python one.py' (line 2) was not seen to run"


@pytest.mark.parametrize("body", ["apptainer exec x.sif python one.py", "python -I one.py", "env -i python one.py"])
def test_what_cannot_be_seen_is_not_missed(body: str) -> None:
    assert unproven(body) == ""
