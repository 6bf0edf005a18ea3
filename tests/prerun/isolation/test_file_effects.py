"""Which files one command line changes; the lines of whole scripts are in test_touches.py."""

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
def test_what_cannot_be_told_is_unknown_and_odd_command_lines_do_no_harm(
    words: list[str], expected: tuple[str, ...]
) -> None:
    assert find_changed_paths(words, "") == expected


def test_every_shimmed_command_has_a_rule() -> None:
    assert {"rm", "mv", "cp", "rsync", "git", "pip", "mkdir"} <= set(SHIMMED)
    assert not {"python", "tee", "bash"} & set(SHIMMED)
