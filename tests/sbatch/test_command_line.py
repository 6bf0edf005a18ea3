"""Splitting a command line as sbatch splits it."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.command_line import split_command_line


def test_options_after_the_script_are_script_arguments() -> None:
    command = split_command_line(["-N1", "a.sh", "-c", "4", "--prerun=off"])
    assert (command.script, command.args) == ("a.sh", ("-c", "4", "--prerun=off"))
    assert command.without_own == command.argv


def test_gsub_options_are_removed_at_any_position() -> None:
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


def test_wrap_applies_to_the_first_component_at_any_position() -> None:
    command = split_command_line(["-t2", "-N1", ":", "-N2", "--wrap", "a  b"])
    assert command.first_component == ("-t2", "-N1", "--wrap=a  b")
    assert split_command_line(["--wrap=a", ":", "-N2"]).first_component == ("--wrap=a",)


def test_a_colon_between_options_makes_a_heterogeneous_job() -> None:
    command = split_command_line(["-N1", ":", "-N2", "--explain", "a.sh"])
    assert (command.hetjob, command.script) == (True, "a.sh")
    assert command.without_own == ("-N1", ":", "-N2", "a.sh")


def test_a_colon_among_the_script_arguments_makes_no_heterogeneous_job() -> None:
    command = split_command_line(["-N1", "a.sh", ":", "-N2", "a.sh"])
    assert (command.hetjob, command.args) == (False, (":", "-N2", "a.sh"))


def test_without_a_script_argument_there_is_no_script() -> None:
    assert split_command_line(["--wrap=hostname"]).script is None


@pytest.mark.parametrize("option", ["--help", "-h", "--usage", "--version", "-V"])
def test_options_after_help_or_version_are_not_checked(option: str) -> None:
    assert split_command_line([option, "--bogus"]).has("help", "usage", "version")


def test_an_unknown_option_is_a_usage_error_with_sbatchs_exit_code() -> None:
    with pytest.raises(UsageError) as caught:
        split_command_line(["--bogus", "--version"])
    assert (str(caught.value), caught.value.exit_code, caught.value.hint) == ("unrecognized option '--bogus'", 255, "")


@pytest.mark.parametrize("words", [["--prerun"], ["--dry-run=yes"], ["--pre-run=off"]])
def test_a_refusal_of_a_gsub_option_has_a_hint(words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        split_command_line(words)
    assert "gsub" in caught.value.hint


def test_a_colon_in_place_of_a_value_begins_a_component_as_in_sbatch() -> None:
    """sbatch 22.05.8 drops the colon, takes a.sh as the comment and reads the script from stdin (measured)."""
    command = split_command_line(["--comment", ":", "a.sh", "--mem=9"])
    assert (command.hetjob, command.script) == (True, None)
