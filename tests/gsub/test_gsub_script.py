"""The installed gsub passes its caller's environment on; a fake sbatch reports what it received."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.gsub import gsub_script

REPORTING_SBATCH = """#!/bin/sh
for descriptor in 0 1 2; do [ -e /proc/$$/fd/$descriptor ] && open="$open $descriptor"; done
{ echo "args=$*"; echo "open=$open"; echo "ignored=$(sed -n 's/SigIgn:.//p' /proc/$$/status)"; env; } > "$TOLD"
exit 7
"""
FOREIGN_MODULE = "raise SystemExit('not ours')\n"
NAMES = ("enum", "types", "typing", "re", "signal", "dataclasses", "slurmwrap")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the fake sbatch and with modules that gsub must not import."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(FOREIGN_MODULE)
    (tmp_path / "stand-in").write_text(REPORTING_SBATCH)
    (tmp_path / "stand-in").chmod(0o755)
    return tmp_path


def report_of_sbatch(place: Path, *, redirect: str = "", **variables: str) -> dict[str, str]:
    """What the fake sbatch received when gsub was called with `--hold x` in `place`."""
    environ = {"PATH": "/usr/bin:/bin", "GSUB_SBATCH": str(place / "stand-in"), "TOLD": str(place / "told")}
    argv = f'exec "$0" "$@" {redirect}'
    done = subprocess.run(
        ["bash", "-c", argv, sys.executable, gsub_script.__file__, "--hold", "x"],
        cwd=place, env={**environ, **variables}, capture_output=True, text=True, timeout=allow(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    lines = (place / "told").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONPATH": ":/nowhere"},
        {"PYTHONPATH": "."},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONINSPECT": "1"},
        {"PYTHONIOENCODING": "utf-16", "PYTHONOPTIMIZE": "2"},
        {"LC_CTYPE": "C.UTF-8"},
        {"LC_CTYPE": "C"},
    ],
)
def test_caller_variables_reach_sbatch_and_do_not_affect_gsub(place: Path, variables: dict[str, str]) -> None:
    found = report_of_sbatch(place, **variables)
    assert found["args"] == "--hold x"
    assert {name: found.get(name) for name in variables} == variables


def test_python_changes_neither_an_empty_environment_nor_the_signals(place: Path) -> None:
    found = report_of_sbatch(place)
    assert "LC_CTYPE" not in found
    assert int(found["ignored"], 16) & (1 << 12) == 0  # SIGPIPE


@pytest.mark.parametrize(("redirect", "left"), [("<&-", "1 2"), (">&-", "0 2"), ("2>&-", "0 1"), ("<&- >&- 2>&-", "")])
def test_file_descriptors_closed_by_the_caller_are_closed_for_sbatch(place: Path, redirect: str, left: str) -> None:
    assert report_of_sbatch(place, redirect=redirect)["open"].strip() == left


def test_slurmwrap_is_found_when_it_is_only_on_pythonpath(tmp_path: Path) -> None:
    package = Path(gsub_script.__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(package), "GSUB_SBATCH": "/bin/echo"}
    done = subprocess.run(
        [sys.executable, "-S", gsub_script.__file__, "--hold", "x"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "--hold x\n", "")


@pytest.mark.parametrize(
    ("named", "said", "code"), [("nowhere", "No such file or directory", 127), ("a", "Permission denied", 126)]
)
def test_the_error_names_an_sbatch_that_cannot_be_started(tmp_path: Path, named: str, said: str, code: int) -> None:
    (tmp_path / "a").write_text("#!/bin/sh\n")
    environ = {"PATH": "/usr/bin:/bin", "GSUB_SBATCH": str(tmp_path / named)}
    argv = [sys.executable, gsub_script.__file__, "--hold", "x"]
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"gsub: error: {tmp_path / named}: {said}\n")
