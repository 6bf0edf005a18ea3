"""The step counter's files, read by a reconciler as their user: whose word counts, and a directory that hangs."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from slurmwrap.host.read_user_file import LATE_S, StepFiles
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
LINE = "7 optimizer 10.0 13.0 0 0\n"


def run_of(uid: int) -> JobRun:
    return JobRun(attempt=RunKey(cluster="c", job_id=41, submit_time=1), uid=uid)


def wrote(directory: Path, uid: int) -> str:
    directory.mkdir(mode=0o755)
    path = directory / "41.0.n1.700"
    path.write_text(LINE)
    os.chown(path, uid, -1)
    return str(directory)


@ROOT
def test_root_reads_with_the_users_rights_and_only_what_is_his(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    his, roots, shut = wrote(open_dir / "his", nobody), wrote(open_dir / "roots", 0), wrote(open_dir / "shut", nobody)
    (open_dir / "shut").chmod(0o700)
    found = [StepFiles()(run_of(nobody), place).get("count") for place in (his, roots, shut, "his", "/dev/zero")]
    assert found == [7, None, None, None, None]


@ROOT
def test_nobody_is_read_for_root_or_for_an_unknown_user(open_dir: Path) -> None:
    place = wrote(open_dir / "x", 4_000_000)
    assert [dict(StepFiles()(run_of(uid), place)) for uid in (-1, 4_000_000)] == [{}, {}]


def test_a_directory_that_does_not_answer_holds_up_one_run_and_is_asked_again_later(open_dir: Path) -> None:
    uid, shift = os.geteuid(), [-60.0]  # a clock that is behind gives the child no time at all
    place = wrote(open_dir / "mine", uid)
    read = StepFiles(clock=lambda: time.monotonic() + shift[0])
    found = [read(run_of(uid), place).get("count")]
    for shift[0] in (60.0, LATE_S + 60.0):
        found.append(read(run_of(uid), place).get("count"))
    assert found == [None, None, 7]
