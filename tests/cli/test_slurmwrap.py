"""The root command: help, version, and what errors become."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmwrap import __version__
from slurmwrap.cli.slurmwrap import app


def slurmwrap(home: Path, *words: str, code: str = "") -> tuple[int, str, str]:
    run = code or "from slurmwrap.cli.slurmwrap import main; main()"
    environ = {
        **os.environ,
        "XDG_STATE_HOME": str(home),
        "SLURMWRAP_CONFIG": str(home / "none.toml"),
        "HOME": str(home),
    }
    done = subprocess.run(
        [sys.executable, "-c", run, *words], capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def test_version(tmp_path: Path) -> None:
    assert slurmwrap(tmp_path, "--version") == (0, f"slurmwrap {__version__}\n", "")


def test_help_teaches_by_example_and_fits_80_columns(tmp_path: Path) -> None:
    code, out, err = slurmwrap(tmp_path, "--help")
    assert (code, err) == (0, "")
    for line in ("slurmwrap why", "slurmwrap report --since 7d", "slurmwrap lab up"):
        assert line in out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    commands = ("why", "history", "report", "classify", "reconcile", "lab", "hooks")
    assert [name for name in commands if f"\n  {name} " not in out] == []


def test_an_unknown_command_is_named(tmp_path: Path) -> None:
    code, out, err = slurmwrap(tmp_path, "wyh")
    assert (code, out) == (2, "")
    assert "No such command 'wyh'" in err


def test_an_expected_error_is_one_line_a_hint_and_its_own_code(tmp_path: Path) -> None:
    state = tmp_path / "slurmwrap"
    state.mkdir()
    (state / "user.db").write_bytes(b"scrambled eggs" * 500)
    code, out, err = slurmwrap(tmp_path, "history")
    assert (code, out) == (6, "")
    assert err.splitlines()[0] == f"slurmwrap: error: database {state}/user.db is damaged"
    assert err.splitlines()[1].startswith("slurmwrap: nothing was changed; restore a backup")
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("why", "x"), 255, "'x' is no job id"),
        (("why", "12_"), 1, "nothing is known of job 12_"),
        (("why", "81"), 1, "nothing is known of job 81"),
        (("history", "--since", "yesterday"), 255, "--since 'yesterday' is neither a period nor a date"),
    ],
)
def test_each_error_has_its_code(tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    found = slurmwrap(tmp_path, *words)
    assert (found[0], found[1]) == (code, "")
    assert message in found[2]


def test_a_fault_of_ours_is_70_and_keeps_the_traceback_in_a_file(tmp_path: Path) -> None:
    broken = """
from slurmwrap.cli import slurmwrap
@slurmwrap.app.command()
def crash() -> None:
    raise RuntimeError("two\\x1b[31m\\nlines")
slurmwrap.main()
"""
    code, out, err = slurmwrap(tmp_path, "crash", code=broken)
    assert (code, out) == (70, "")
    assert "RuntimeError" in err
    assert "\x1b" not in err
    (log,) = (tmp_path / "slurmwrap").glob("*.log")
    assert str(log) in err
    assert log.read_text().startswith("Traceback (most recent call last):\n")
    assert ", in crash\nRuntimeError: two" in log.read_text()


def test_ctrl_c_is_130(tmp_path: Path) -> None:
    interrupted = """
from slurmwrap.cli import slurmwrap
@slurmwrap.app.command()
def wait() -> None:
    raise KeyboardInterrupt
slurmwrap.main()
"""
    assert slurmwrap(tmp_path, "wait", code=interrupted)[:2] == (130, "")


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    chatty = """
import sys
from slurmwrap.cli import slurmwrap
@slurmwrap.app.command()
def talk() -> None:
    for _ in range(100_000):
        print("x" * 100)
slurmwrap.main()
"""
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", chatty, "talk"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    ) as talker:
        assert talker.stdout is not None and talker.stderr is not None
        talker.stdout.readline()
        talker.stdout.close()
        assert talker.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_help_tells_a_users_commands_from_an_administrators(tmp_path: Path) -> None:
    _, out, _ = slurmwrap(tmp_path, "--help")
    lists = {part.splitlines()[0]: part for part in out.split("\n\n") if part.splitlines()[-1].startswith("  ")}
    named = {
        title: [line.split()[0] for line in part.splitlines()[1:] if line.startswith("  ") and line[2] != " "]
        for title, part in lists.items()
        if "ommands" in title or "users" in title
    }
    assert list(named) == ["Commands for your jobs:", "More for users:", "Commands for administrators:"]
    assert named["Commands for your jobs:"] == ["watch", "why", "history", "report", "prerun", "profile"]
    everything = [name for names in named.values() for name in names]
    assert len(everything) == len(set(everything)) == len(app.registered_commands) + len(app.registered_groups)


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("profile", "list")])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words]
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    said = "slurmwrap: error: the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, said)
