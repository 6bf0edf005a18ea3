"""Long output on a terminal goes to a pager; JSON, files and short output do not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurmwrap.cli.terminal import find_pager

USER = 1000


@pytest.mark.parametrize(
    ("environ", "uid", "words"),
    [
        ({}, USER, ["less"]),
        ({"PAGER": "more -d"}, USER, ["more", "-d"]),
        ({"PAGER": ""}, USER, []),
        ({"PAGER": "cat"}, USER, []),
        ({"PAGER": "no-such-pager"}, USER, []),
        ({"PAGER": "'unbalanced"}, USER, []),
        ({"PAGER": "sh -c evil"}, 0, ["less"]),
        ({"PAGER": "sh -c evil", "SUDO_USER": "ada"}, USER, ["less"]),
    ],
)
def test_the_pager_is_PAGER_for_users_and_less_for_root(
    environ: Mapping[str, str], uid: int, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "no-such-pager" else f"/usr/bin/{name}")
    assert find_pager(environ, uid) == words


@pytest.fixture
def on_terminal(tmp_path: Path):
    """`on_terminal(*words)` returns the terminal output of `slurmwrap WORDS`, with a pager that marks its input."""
    pager = tmp_path / "less"
    pager.write_text("#!/bin/sh\necho PAGER secure=${LESSSECURE:-no} $LESS\nexec cat\n")
    pager.chmod(0o755)

    def run(*words: str, **more: str) -> str:
        main, terminal = pty.openpty()
        environ = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path),
            "SLURMWRAP_CONFIG": str(tmp_path / "none.toml"),
            "TERM": "xterm",
            **more,
        }
        environ.pop("PAGER", None)
        argv = [sys.executable, "-m", "slurmwrap.cli.slurmwrap", *words]
        process = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
        os.close(terminal)
        shown = b""
        try:
            while piece := os.read(main, 65536):
                shown += piece
        except OSError:
            # On Linux, reading from a terminal that no process has open fails with EIO.
            pass
        finally:
            os.close(main)
        assert process.wait() == 0, shown.decode()
        return shown.decode().replace("\r\n", "\n")

    return run


def test_long_output_goes_to_the_pager_complete_and_with_colour(on_terminal) -> None:
    shown = on_terminal("config", "show")
    secure = "1" if os.geteuid() == 0 else "no"
    assert shown.startswith(f"PAGER secure={secure} FRX\n")
    assert "\033[" in shown
    assert shown.count("PAGER secure") == 1
    for section in ("[prerun]", "[retention]", "[rules]"):
        assert section in shown


@pytest.mark.parametrize(
    "words",
    [
        ("config", "show", "prerun.grace_s"),
        ("config", "show", "--no-pager"),
        ("config", "show", "--json"),
        ("metrics", "--help"),
    ],
)
def test_short_output_json_and_no_pager_are_printed_without_a_pager(on_terminal, words: tuple[str, ...]) -> None:
    assert "PAGER" not in on_terminal(*words)


def test_short_output_is_printed_completely(on_terminal) -> None:
    assert "grace_s" in on_terminal("config", "show", "prerun.grace_s")
