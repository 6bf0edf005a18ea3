"""--retry-on: exit codes and signals, clear errors, and the endings of runs that it names."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.retry_on import find_named_ending, parse_retry_on


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("93", ("93",)),
        ("93, SIGUSR1", ("93", "SIGUSR1")),
        ("usr1,SIGUSR1,093,93", ("SIGUSR1", "93")),
        ("255,kill", ("255", "SIGKILL")),
    ],
)
def test_codes_and_signals_are_read(value: str, wanted: tuple[str, ...]) -> None:
    assert parse_retry_on(value) == wanted


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ("0", "--retry-on: 0 is success", "from 1 to 255"),
        ("256", "--retry-on: 256 is no exit code", "from 1 to 255"),
        ("93,,7", "--retry-on: '' is neither an exit code nor a signal", "SIGUSR1"),
        ("SIGUSR3", "--retry-on: 'SIGUSR3' is neither an exit code nor a signal", "Did you mean SIGUSR"),
        ("-9", "--retry-on: '-9' is neither", "from 1 to 255"),
        ("²", "--retry-on: '²' is neither", "from 1 to 255"),
        ("TERM", "--retry-on: SIGTERM ends a job that was cancelled", "exit code of its own"),
    ],
)
def test_a_wrong_value_is_named(value: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_retry_on(value)
    assert str(raised.value).startswith(message) and hint in raised.value.hint


def parse(*words: str, script: str = "", **environ: str):
    content = f"#!/bin/sh\n{script}\n".encode()
    return parse_request(words, environ=environ, cwd="/", read_script=lambda _: content, read_stdin=lambda: content).own


def test_script_variable_and_command_line_set_it_in_this_order() -> None:
    line = "#GSUB --retry-on=93,SIGUSR1"
    assert parse("x.sh", script=line).retry_on == ("93", "SIGUSR1")
    assert parse("x.sh", script=line, GSUB_RETRY_ON="7").retry_on == ("7",)
    assert parse("--retry-on", "8", "x.sh", script=line, GSUB_RETRY_ON="7").retry_on == ("8",)
    with pytest.raises(UsageError, match=r"^x.sh:2: --retry-on: 'what' is neither"):
        parse("x.sh", script="#GSUB --retry-on=what")
    with pytest.raises(UsageError, match=r"^GSUB_RETRY_ON: --retry-on: 0 is success"):
        parse("x.sh", GSUB_RETRY_ON="0")


def test_again_belongs_on_the_command_line() -> None:
    assert parse("--again=77", "x.sh").again == "77"
    with pytest.raises(UsageError, match="unrecognized option '--again"):
        parse("x.sh", script="#GSUB --again=77")


@pytest.mark.parametrize(
    ("exit_code", "signal", "wanted"),
    [
        (93, 0, "exit code 93"),
        (0, 10, "SIGUSR1"),
        (138, 0, "SIGUSR1"),  # as a shell reports it
        (1, 0, ""),
        (0, 9, ""),
        (93, 9, ""),
    ],
)
def test_an_ending_is_found_by_code_or_signal(exit_code: int, signal: int, wanted: str) -> None:
    assert find_named_ending(("93", "SIGUSR1"), exit_code, signal) == wanted
    assert find_named_ending((), exit_code, signal) == ""
