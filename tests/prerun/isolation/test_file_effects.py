"""Which files one command line changes; test_script_writes.py tests the lines of whole scripts."""

from __future__ import annotations

import pytest

from slurmwrap.prerun.isolation.file_effects import SHIMMED, UNKNOWN, find_changed_paths


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rm", "-rf", f"{UNKNOWN}/x"], (UNKNOWN,)),
        (["cp", "a", "b"], (UNKNOWN,)),
        (["xargs", "rm"], (UNKNOWN,)),
        ([UNKNOWN, "a"], ()),
        ([], ()),
        (["rm"], ()),
        (["tar"], ()),
        (["git"], ()),
        (["find"], ()),
        (["curl", "-o"], ()),
        (["cp", "--help"], ()),
    ],
)
def test_unknown_paths_and_incomplete_command_lines_are_handled(words: list[str], expected: tuple[str, ...]) -> None:
    assert find_changed_paths(words, "") == expected


def test_every_shimmed_command_has_a_rule() -> None:
    assert {"rm", "mv", "cp", "rsync", "git", "pip", "mkdir"} <= set(SHIMMED)
    assert not {"python", "tee", "bash"} & set(SHIMMED)
