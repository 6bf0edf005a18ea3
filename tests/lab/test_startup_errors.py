"""The log line that is reported as the cause of a failed start."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.lab.lab_directories import LabDirectories
from slurmwrap.lab.lab_startup import cause, telling

NOISE = ("n0", "[2026-11-20T10:00:00] error: mpi/pmix_v4: init: can not load PMIx library")
FATAL = ("n1", "slurmd: fatal: Unable to initialize cgroup plugin")
REFUSED = ("n2", "error: Unable to register: Connection refused")
PLAIN = ("n2", "slurmd version 22.05.8 started")


@pytest.mark.parametrize(
    ("lines", "blamed"),
    [
        ([NOISE, FATAL, REFUSED], FATAL),  # the first fatal line, although other daemons report errors later
        ([NOISE, REFUSED, PLAIN], REFUSED),
        ([PLAIN], PLAIN),
        ([], None),
    ],
)
def test_the_first_fatal_or_error_line_is_chosen(lines: list[tuple[str, str]], blamed: tuple[str, str] | None) -> None:
    assert telling(lines) == blamed


def test_the_cause_names_the_daemon_and_is_read_from_log_and_stderr(tmp_path: Path) -> None:
    layout = LabDirectories(tmp_path)
    layout.logs.mkdir()
    layout.log("n3").write_text("slurmd started\n", encoding="utf-8")
    layout.errors("n3").write_bytes(b"slurmd: fatal: \xff no key\n\n")
    assert cause(layout, ("munged", "n3")) == ": slurmd of n3 said 'slurmd: fatal: \ufffd no key'"
    assert cause(layout, ("n4",)) == ""
