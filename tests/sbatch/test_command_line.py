"""Splitting a command line as sbatch splits it."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.command_line import split_command_line


def test_options_after_the_script_are_the_scripts() -> None:
    command = split_command_line(["-N1", "a.sh", "-c", "4", "--prerun=off"])
    assert (command.script, command.args) == ("a.sh", ("-c", "4", "--prerun=off"))
    assert command.without_own == command.argv


def test_own_options_are_taken_out_wherever_they_stand() -> None:
    command = split_command_line(["--prerun", "wait", "-N1", "--dry-run", "--mem=1G", "a.sh", "x"])
    assert command.without_own == ("-N1", "--mem=1G", "a.sh", "x")
    assert [(one.option, one.value, one.own) for one in command.given] == [
        ("prerun", "wait", True),
        ("nodes", "1", False),
        ("dry-run", None, True),
        ("mem", "1G", False),
    ]


def test_a_double_dash_ends_the_options() -> None:
    assert split_command_line(["--hold", "--", "--odd.sh"]).script == "--odd.sh"


def test_wrap_is_the_first_components_too_wherever_it_stands() -> None:
    command = split_command_line(["-t2", "-N1", ":", "-N2", "--wrap", "a  b"])
    assert command.first_component == ("-t2", "-N1", "--wrap=a  b")
    assert split_command_line(["--wrap=a", ":", "-N2"]).first_component == ("--wrap=a",)


def test_a_colon_between_options_makes_a_heterogeneous_job() -> None:
    command = split_command_line(["-N1", ":", "-N2", "--explain", "a.sh"])
    assert (command.hetjob, command.script) == (True, "a.sh")
    assert command.without_own == ("-N1", ":", "-N2", "a.sh")


def test_a_colon_among_the_arguments_does_not() -> None:
    command = split_command_line(["-N1", "a.sh", ":", "-N2", "a.sh"])
    assert (command.hetjob, command.args) == (False, (":", "-N2", "a.sh"))


def test_without_a_word_the_script_comes_from_elsewhere() -> None:
    assert split_command_line(["--wrap=hostname"]).script is None


@pytest.mark.parametrize("option", ["--help", "-h", "--usage", "--version", "-V"])
def test_nothing_after_an_answered_option_is_read(option: str) -> None:
    assert split_command_line([option, "--bogus"]).has("help", "usage", "version")


def test_a_refusal_is_a_usage_error_with_sbatchs_code_that_leaves_the_word_to_sbatch() -> None:
    with pytest.raises(UsageError) as caught:
        split_command_line(["--bogus", "--version"])
    assert (str(caught.value), caught.value.exit_code, caught.value.hint) == ("unrecognized option '--bogus'", 255, "")


@pytest.mark.parametrize("words", [["--prerun"], ["--dry-run=yes"], ["--pre-run=off"]])
def test_a_refusal_that_concerns_an_own_option_says_the_way_out(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        split_command_line(words)
    assert "gsub" in caught.value.hint


def test_a_colon_where_a_value_should_be_begins_a_component_as_in_sbatch() -> None:
    """22.05.8 drops it, takes a.sh for the comment and reads the script from stdin (measured)."""
    command = split_command_line(["--comment", ":", "a.sh", "--mem=9"])
    assert (command.hetjob, command.script) == (True, None)
