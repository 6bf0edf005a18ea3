"""The step counter's files, read by the reconciler as the job's user: whose files count, and a directory that hangs."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.host.read_user_file import LATE_S, StepFiles
from slurmwrap.inject.slurmwrap_losses import HEADER, ROW
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import CountedLosses, LossPoint

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
LINE = "7 optimizer 10.0 13.0 0 0\n"


def run_of(uid: int) -> JobRun:
    return JobRun(attempt=RunKey(cluster="c", job_id=41, submit_time=1), uid=uid)


def write_steps(directory: Path, uid: int) -> str:
    directory.mkdir(mode=0o755)
    path = directory / "41.0.n1.700"
    path.write_text(LINE)
    os.chown(path, uid, -1)
    return str(directory)


@ROOT
def test_root_reads_only_step_files_that_the_user_owns_and_can_read(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    users, roots, closed = (
        write_steps(open_dir / "his", nobody),
        write_steps(open_dir / "roots", 0),
        write_steps(open_dir / "shut", nobody),
    )
    (open_dir / "shut").chmod(0o700)
    found = [StepFiles()(run_of(nobody), place).get("count") for place in (users, roots, closed, "his", "/dev/zero")]
    assert found == [7, None, None, None, None]


@ROOT
def test_no_step_file_is_read_for_an_unknown_user(open_dir: Path) -> None:
    place = write_steps(open_dir / "x", 4_000_000)
    assert [dict(StepFiles()(run_of(uid), place)) for uid in (-1, 4_000_000)] == [{}, {}]


def test_a_hanging_directory_delays_one_run_and_is_read_again_later(open_dir: Path) -> None:
    uid, shift = os.geteuid(), [-60.0]  # with a clock 60 s behind, the child has no time at all
    place = write_steps(open_dir / "mine", uid)
    read = StepFiles(clock=lambda: time.monotonic() + shift[0])
    found = [read(run_of(uid), place).get("count")]
    for shift[0] in (60.0, LATE_S + 60.0):
        found.append(read(run_of(uid), place).get("count"))
    assert found == [None, None, 7]


@ROOT
def test_losses_are_read_as_the_user_too(open_dir: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    places = [write_steps(open_dir / name, uid) for name, uid in (("his", nobody), ("roots", 0), ("shut", nobody))]
    for place, uid in zip(places, (nobody, 0, nobody), strict=True):
        path = Path(place, "41.0.n1.700.loss")
        path.write_text(HEADER % (1, 9, 2, 1, 40.0, 2) + ROW % (3, 10.0, 2.5) + ROW % (7, 40.0, 1.5))
        os.chown(path, uid, -1)
        os.utime(path, (1000.0, 1000.0))
    (open_dir / "shut").chmod(0o700)
    run = replace(run_of(nobody), start_time=960)
    found = [StepFiles().losses(run, place) for place in places]
    points = (LossPoint(at_s=10.0, step=3.0, loss=2.5), LossPoint(at_s=40.0, step=7.0, loss=1.5))
    assert found == [CountedLosses(points=points, taken=9, bad=2, bad_at_end=1), None, None]
