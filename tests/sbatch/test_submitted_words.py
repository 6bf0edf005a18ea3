"""The words of the sbatch call: those of the user, followed by changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.command_line import (
    add_plugin_names,
    build_names,
    parse_own_options,
    remove_quiet,
    scan,
    select_words_for_sbatch,
    split_command_line,
)
from slurmwrap.sbatch.job_request import JobRequest, OptionChange
from slurmwrap.sbatch.option_table import NONE, OWN, REQUIRED, SBATCH
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.rewrite import list_submitted_options, render

SCRIPT = b"#!/bin/sh\n#SBATCH --mem=500G --requ\n"


def ask(*argv: str, **environ: str) -> JobRequest:
    return parse_request(argv, environ=environ, cwd="/", read_script=lambda _: SCRIPT, read_stdin=lambda: SCRIPT)


def change_to(option: str, value: str) -> OptionChange:
    return OptionChange(option=option, value=value, reason="Because.")


def options(request: JobRequest, *wishes: OptionChange) -> tuple[str, ...]:
    return list_submitted_options(request, render(request, wishes))


# --- the user's words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-N2", "a.sh"], ("-N2",)),
        (["-HN", "2", "--exclus", "--prerun", "off", "-J", "--", "a.sh", "-c4"], ("-HN", "2", "--exclus", "-J", "--")),
        (["-J", "x", "--", "-odd.sh"], ("-J", "x")),
        (["--no-tune", "--", "a.sh"], ()),
        (["--wrap", "hostname"], ("--wrap", "hostname")),
        ([], ()),
        (["a.sh", "-N2", ":", "--no-tune"], ()),
    ],
)
def test_options_are_submitted_as_typed_without_gsub_options(argv, words) -> None:
    assert split_command_line(argv).option_words == words
    assert options(ask(*argv)) == words


def test_changes_follow_the_typed_words_and_script_and_variables_stay() -> None:
    request = ask("-c", "2", "a.sh", SBATCH_TIMELIMIT="5")
    wishes = (
        change_to("mem", "216G"),
        change_to("time", "7"),
        change_to("cpus-per-task", "4"),
        change_to("exclude", "n1"),
        change_to("hold", ""),
    )
    assert options(request, *wishes) == (
        *("-c", "2", "--mem=216G", "--time=7", "--cpus-per-task=4", "--exclude=n1", "--hold"),
    )


def test_a_change_that_only_gives_a_reason_adds_no_word() -> None:
    assert options(
        ask("-c2", "a.sh"), OptionChange(option="mem", value=None, reason="Unknown."), change_to("requeue", "")
    ) == ("-c2",)


def test_other_components_follow_the_options_added_to_the_first() -> None:
    request = ask("-N1", "--prerun=wait", ":", "-n3", ":", "-c2", "a.sh", "x")
    assert options(request, change_to("begin", "now+600")) == ("-N1", "--begin=now+600", ":", "-n3", ":", "-c2")


def test_a_request_without_typed_words_is_spelled_out() -> None:
    from dataclasses import replace

    assert options(replace(ask("-c2", "a.sh"), words=None), change_to("exclude", "n1")) == (
        "--cpus-per-task=2",
        "--exclude=n1",
    )


@pytest.mark.parametrize("name", ["a.sh", "./a.sh", "sub/../a.sh", "/a.sh"])
def test_the_script_keeps_the_name_that_was_typed(name: str) -> None:
    assert ask("-c2", name).script.word == name


# --- without --quiet -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("-Q",), ()),
        (("--quiet", "--qui"), ()),
        (("-QN2", "-HQQk"), ("-N2", "-Hk")),
        (("-QJQ",), ("-JQ",)),
        (("-J", "-Q", "-Q"), ("-J", "-Q")),
        (("--comment", "--quiet"), ("--comment", "--quiet")),
        (("-N1", ":", "-Q", "-n2"), ("-N1", ":", "-n2")),
    ],
)
def test_quiet_is_removed_at_any_position_and_nothing_else(words: tuple[str, ...], left: tuple[str, ...]) -> None:
    assert remove_quiet(words) == left


_FLAGS = [option.short for option in SBATCH if option.short and option.argument is NONE and option.short not in "hV"]


@settings(max_examples=settings.default.max_examples // 3)
@given(
    st.lists(st.lists(st.sampled_from(_FLAGS), min_size=1, max_size=4).map(lambda few: "-" + "".join(few)), max_size=5)
)
def test_without_quiet_the_other_options_stay_in_the_same_order(words: list[str]) -> None:
    before, after = (scan(list(some), build_names()) for some in (words, remove_quiet(words)))
    assert [one.option for one in after.given] == [one.option for one in before.given if one.option != "quiet"]


# --- the words of a call that is passed through ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prerun=off", "--bogus", "a.sh"], ("--bogus", "a.sh")),
        (["--no-tune", "-y", "--explain", "a.sh"], ("-y", "a.sh")),
        (["--plugin=1", "--prerun", "off", "-N2", "--json", "a.sh", "--json"], ("--plugin=1", "-N2", "a.sh", "--json")),
        (["--plugin", "5", "--json"], ("--plugin", "5", "--json")),
        (["--mem", "--force"], ("--mem", "--force")),
        (["--force", "--mem"], ("--mem",)),
        (["-N1", ":", "--no-place", "--bogus", ":", "--force", "a.sh"], ("-N1", ":", "--bogus", ":", "a.sh")),
    ],
)
def test_gsub_options_are_removed_from_a_call_that_sbatch_refuses(argv: list[str], words: tuple[str, ...]) -> None:
    assert select_words_for_sbatch(argv) == words


def test_gsub_options_are_found_after_known_plugin_options() -> None:
    argv = ["--plugin", "5", "--json", "a.sh", "--json"]
    assert select_words_for_sbatch(argv, add_plugin_names({"plugin": REQUIRED})) == ("--plugin", "5", "a.sh", "--json")


def test_gsub_options_are_located_in_a_call_that_cannot_be_parsed() -> None:
    found = parse_own_options(["-N2", ":", "--bogus", "--prerun", "only", "a.sh", "--json"])
    assert [(one.option, one.value, one.word, one.value_word) for one in found] == [("prerun", "only", 3, 4)]


_OURS = st.sampled_from([f"--{own.name}" + ("=1" if own.argument is not NONE else "") for own in OWN])
_THEIRS = st.sampled_from(
    ["-N2", "-HN", "2", "--mem=1G", "--part", "-koff", "--", ":", "-Q", "--wrap", "a.sh", "--bogus"]
)


@given(st.lists(st.one_of(_OURS, _THEIRS), max_size=8))
def test_for_a_valid_call_the_words_are_the_call_without_gsub_options(argv: list[str]) -> None:
    try:
        expected = split_command_line(argv).without_own
    except UsageError:
        return
    assert select_words_for_sbatch(argv) == expected
