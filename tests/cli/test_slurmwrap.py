"""The root command: help, version, errors and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from slurmwrap import __version__
from slurmwrap.cli import slurmwrap as command
from slurmwrap.cli.slurmwrap import app, main
from slurmwrap.console import set_colour_mode
from slurmwrap.errors import SlurmError


@pytest.fixture
def slurmwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`slurmwrap(*words)` runs the console script and returns exit code, standard output and standard error."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMWRAP_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["slurmwrap", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def raise_in_command(monkeypatch: pytest.MonkeyPatch):
    """`raise_in_command(error)`: every command of slurmwrap raises this error."""

    def install(error: BaseException) -> None:
        crashing = typer.Typer()

        @crashing.command()
        def crash() -> None:
            raise error

        monkeypatch.setattr(command, "app", crashing)

    return install


def test_version_prints_the_version() -> None:
    argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"slurmwrap {__version__}\n", "")


def test_the_help_has_examples_and_fits_80_columns(slurmwrap) -> None:
    code, out, err = slurmwrap("--help")
    assert (code, err) == (0, "")
    for line in ("slurmwrap why", "slurmwrap report --since 7d", "slurmwrap lab up"):
        assert line in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_the_help_groups_commands_for_users_and_for_administrators(slurmwrap) -> None:
    _, out, _ = slurmwrap("--help")
    lists = {part.splitlines()[0]: part for part in out.split("\n\n") if part.splitlines()[-1].startswith("  ")}
    commands_by_title = {
        title: [line.split()[0] for line in part.splitlines()[1:] if line.startswith("  ") and line[2] != " "]
        for title, part in lists.items()
        if "ommands" in title or "users" in title
    }
    assert list(commands_by_title) == ["Commands for your jobs:", "More for users:", "Commands for administrators:"]
    assert commands_by_title["Commands for your jobs:"] == [
        "watch",
        "why",
        "job",
        "history",
        "report",
        "prerun",
        "profile",
    ]
    everything = [name for names in commands_by_title.values() for name in names]
    assert everything == typer.main.get_command(app).list_commands(None)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("wyh",), 2, "No such command 'wyh'"),
        (("why", "x"), 2, "'x' is no job id"),
        (("why", "12_"), 1, "nothing is known of job 12_"),
        (("why", "81"), 1, "nothing is known of job 81"),
        (("history", "--since", "yesterday"), 2, "--since 'yesterday' is neither a period nor a date"),
    ],
)
def test_each_error_has_its_exit_code(slurmwrap, words: tuple[str, ...], code: int, message: str) -> None:
    ended, out, err = slurmwrap(*words)
    assert (ended, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ("why", "x", "--json"),
            {
                "error": "UsageError",
                "message": "'x' is no job id",
                "hint": "write 81, or 77_2 for a task of array 77",
                "exit_code": 2,
            },
        ),
        (
            ("why", "--json", "--bogus"),
            {
                "error": "UsageError",
                "message": "No such option: --bogus (Possible options: --verbose)",
                "hint": "slurmwrap why --help",
                "exit_code": 2,
            },
        ),
        (
            ("wyh", "--json"),
            {
                "error": "UsageError",
                "message": "No such command 'wyh'. Did you mean 'why'?",
                "hint": "slurmwrap --help",
                "exit_code": 2,
            },
        ),
    ],
)
def test_with_json_an_error_is_printed_as_a_json_document(
    slurmwrap, words: tuple[str, ...], error: dict[str, object]
) -> None:
    code, out, err = slurmwrap(*words)
    assert json.loads(out) == {"kind": "slurmwrap.error", "schema": 1, **error}
    assert code == error["exit_code"]
    assert str(error["message"]) in err


def test_json_after_two_dashes_is_an_argument_and_not_the_option(slurmwrap, raise_in_command) -> None:
    raise_in_command(RuntimeError("no disk"))
    code, out, _ = slurmwrap("--json")
    assert (code, json.loads(out)["message"]) == (2, "No such option: --json")
    code, out, _ = slurmwrap("--", "--json")
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    ("words", "left", "color", "pager"),
    [
        (["why", "81"], ["why", "81"], "auto", True),
        (["--color=always", "why"], ["why"], "always", True),
        (["why", "--color", "never", "81"], ["why", "81"], "never", True),
        (["why", "--no-pager"], ["why"], "auto", False),
        (["lab", "run", "--", "ls", "--color=never"], ["lab", "run", "--", "ls", "--color=never"], "auto", True),
    ],
)
def test_color_and_pager_options_are_accepted_anywhere_before_two_dashes(
    words: list[str], left: list[str], color: str, pager: bool
) -> None:
    assert command.take_output_options(words) == (left, color, pager)


@pytest.mark.parametrize("words", [("--color=blue", "why"), ("why", "--color")])
def test_an_invalid_color_is_a_usage_error(slurmwrap, words: tuple[str, ...]) -> None:
    code, out, err = slurmwrap(*words)
    assert (code, out) == (2, "")
    assert "--color takes auto, always or never" in err
    code, out, _ = slurmwrap("--json", *words)
    assert (code, json.loads(out)["error"]) == (2, "UsageError")


def test_exit_code_255_of_slurm_is_no_usage_error(slurmwrap, raise_in_command) -> None:
    raise_in_command(SlurmError("slurm_load_jobs error: Unexpected message received", exit_code=255))
    code, _, err = slurmwrap()
    assert code == 255
    assert "slurm_load_jobs error" in err


@pytest.mark.parametrize(("word", "coloured"), [("--color=always", True), ("--color=never", False)])
def test_color_always_writes_colour_codes_without_a_terminal(slurmwrap, word: str, coloured: bool) -> None:
    try:
        code, out, err = slurmwrap("config", "show", word)
    finally:
        set_colour_mode("auto")
    assert (code, err) == (0, "")
    assert ("\033[" in out) is coloured


def test_an_expected_error_has_one_line_a_hint_and_an_exit_code(slurmwrap, tmp_path: Path) -> None:
    state = tmp_path / "slurmwrap"
    state.mkdir()
    (state / "user.db").write_bytes(b"scrambled eggs" * 500)
    code, out, err = slurmwrap("history")
    assert (code, out) == (6, "")
    first, second = err.splitlines()
    assert first == f"slurmwrap: error: database {state}/user.db is damaged"
    assert second.startswith("slurmwrap: nothing was changed; restore a backup")


def test_an_unexpected_error_exits_with_70_and_saves_the_traceback(slurmwrap, raise_in_command, tmp_path: Path) -> None:
    raise_in_command(RuntimeError("two\x1b[31m\nlines"))
    code, out, err = slurmwrap()
    assert (code, out) == (70, "")
    assert "RuntimeError" in err
    assert "\x1b" not in err
    (log,) = (tmp_path / "slurmwrap").glob("*.log")
    assert str(log) in err
    assert log.read_text().startswith("Traceback (most recent call last):\n")
    assert ", in crash\n    raise error\nRuntimeError: two" in log.read_text()


def test_ctrl_c_exits_with_130(slurmwrap, raise_in_command) -> None:
    raise_in_command(KeyboardInterrupt())
    assert slurmwrap() == (130, "", "")


# All commands run in one process, which opens a new standard output for each.
WRITE_TO_FULL_DISK_AND_CLOSED_PIPE = """
import os, sys
from slurmwrap.cli import slurmwrap
@slurmwrap.app.command()
def talk() -> None:
    for _ in range(1000):
        print("x" * 100)
def gone() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer
def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)
for place, words in ((full, "--version"), (full, "--help"), (full, "profile list"), (gone, "talk")):
    os.dup2(place(), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.argv = ["slurmwrap", *words.split()]
    try:
        slurmwrap.main()
    except SystemExit as ended:
        print(words, ended.code, file=sys.stderr)
"""


def test_a_full_disk_is_one_error_line_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", WRITE_TO_FULL_DISK_AND_CLOSED_PIPE], stderr=subprocess.PIPE, text=True, env=environ
    )
    no_space = "slurmwrap: error: the output could not be written: No space left on device"
    assert done.stderr.splitlines() == [
        no_space,
        "--version 74",
        no_space,
        "--help 74",
        no_space,
        "profile list 74",
        "talk 1",
    ]
    assert list(tmp_path.glob("**/*.log")) == []
