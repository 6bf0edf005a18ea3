"""A job cancelled by its pre-run is reported in its output file, at the next gsub call and by mail."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from slurmwrap.gsub.apply_verdict import HeldJob
from slurmwrap.gsub.cancelled_notice import (
    notify_of_cancelled_job,
    resolve_output_path,
    should_mail_failure,
    was_cancelled,
)
from slurmwrap.host.output_file import append_lines
from slurmwrap.model.job_run import PrerunRecord
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.sbatch.job_request import JobRequest, Origin, SbatchSetting, Script
from slurmwrap.store.job_notices import News, leave_notice, take_notices

REASON = "train.py:28: KeyError: 'lr'"
CANCEL = {"verb": "cancel", "target": "47", "option": "", "new": "", "reason": REASON, "error": None}
NOTICE_TEXT = f"""\
slurmwrap: job 47 was cancelled by the pre-run (job 48) before the start: {REASON}
slurmwrap: More: slurmwrap why 47
slurmwrap: Submit it without a pre-run: gsub --prerun=off train.sbatch
"""


def request(chdir: str | Path = "/work", **settings: str) -> JobRequest:
    given = tuple(
        SbatchSetting(option=name.replace("_", "-"), value=value, origin=Origin.COMMAND_LINE, where="command line")
        for name, value in settings.items()
    )
    script = Script(path="train.sbatch", name="train.sbatch", content=b"#!/bin/sh\n")
    return JobRequest(script=script, chdir=str(chdir), settings=given)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "/work/slurm-47.out"),
        ({"output": "log-%j.txt"}, "/work/log-47.txt"),
        ({"output": "/data/%x/%6j-%u-%N.out", "job_name": "sweep"}, "/data/sweep/000047-ada-n3.out"),
        ({"output": r"log\%j"}, "/work/log%j"),
        ({"output": "100%%-%A.out"}, "/work/100%-47.out"),
        ({"array": "7,3-9:2%2"}, "/work/slurm-47_3.out"),
        ({"array": "5-15:5", "output": "logs/%A/%3a.out"}, "/work/logs/47/005.out"),
    ],
)
def test_output_path_is_the_file_that_slurm_would_have_opened(settings: Mapping[str, str], path: str) -> None:
    assert resolve_output_path(request(**settings), 47, user="ada", node="n3") == path


def test_lines_are_appended_to_an_existing_output_file(tmp_path: Path) -> None:
    path = tmp_path / "slurm-47.out"
    path.write_text("an earlier job of that id, without a last line break")
    append_lines(str(path), "one\n")
    append_lines(str(path), "two\n")
    assert path.read_text() == "an earlier job of that id, without a last line break\none\ntwo\n"


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "device", "no folder", "NUL"])
def test_only_a_regular_file_is_written(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "out", tmp_path / "other"
    if kind == "link":
        other.write_text("other\n")
    if kind in ("link", "dangling"):
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    named = {"device": "/dev/null", "no folder": str(tmp_path / "none" / "out"), "NUL": str(path) + "\0"}
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError, match=r"."):
        append_lines(named.get(kind, str(path)), "text\n")
    assert sorted(tmp_path.iterdir()) == before
    assert not other.exists() or other.read_text() == "other\n"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, False),
        ({"mail_type": "FAIL"}, True),
        ({"mail_type": "begin,fail"}, True),
        ({"mail_type": "END,FAIL"}, False),
        ({"mail_type": "ALL"}, False),
        ({"mail_type": "NONE"}, False),
    ],
)
def test_failure_mail_is_sent_only_if_slurm_sends_none(asked: Mapping[str, str], sent: bool) -> None:
    assert should_mail_failure(request(**asked)) is sent


def held_job(asked: JobRequest) -> HeldJob:
    return HeldJob(
        request=asked, plan=PlacementPlan(), job_id=47, prerun_job_id=48, release_at="now", profile_key="",
        fingerprint="",
    )  # fmt: skip


def record(*changes: Mapping[str, str | None]) -> PrerunRecord:
    verdict = Verdict(outcome=Outcome.FAIL, layer="exit", reason=REASON)
    return PrerunRecord(cluster="lab", job_id=47, prerun_job_id=48, uid=1, at=5.0, verdict=verdict, changes=changes)


def test_a_cancelled_job_is_reported_in_output_file_mail_and_notice(tmp_path: Path) -> None:
    program, mailed = tmp_path / "mail", tmp_path / "mailed"
    program.write_text(f"#!/bin/sh\n{{ printf '%s\\n' \"$@\"; cat; }} > {mailed}\n")
    program.chmod(0o755)
    asked = request(tmp_path, mail_type="FAIL", mail_user="ada@example.org", job_name="tr\nain")
    messages: list[str] = []
    config = MappingProxyType({"MailProg": str(program)})
    notify_of_cancelled_job(
        held_job(asked), record(CANCEL), user="ada", node="n3", place=str(tmp_path / "state"), config=lambda: config,
        say=messages.append,
    )  # fmt: skip
    subject = "Slurm Job_id=47 Name=tr?ain Failed, cancelled by its pre-run"
    assert (tmp_path / "slurm-47.out").read_text() == NOTICE_TEXT
    assert mailed.read_text() == f"-s\n{subject}\nada@example.org\n{NOTICE_TEXT}"
    news = News(job_id=47, name="tr\nain", reason=REASON, at=5.0)
    assert take_notices(str(tmp_path / "state"), 3) == ((news,), 1)
    assert messages == []


@pytest.mark.parametrize("program", ["", "mail", "/nonexistent/mail"])
def test_the_notice_is_left_even_if_mail_and_output_file_fail(tmp_path: Path, program: str) -> None:
    messages: list[str] = []
    notify_of_cancelled_job(
        held_job(request(tmp_path / "none", mail_type="FAIL")), record(CANCEL), user="ada", node="n3",
        place=str(tmp_path), config=lambda: {"MailProg": program}, say=messages.append,
    )  # fmt: skip
    assert [line.partition(":")[0] for line in messages] == ["not written into the job's output file", "not mailed"]
    assert take_notices(str(tmp_path), 3)[1] == 1


def test_was_cancelled_is_true_only_if_slurm_accepted_the_cancellation() -> None:
    refused = {**CANCEL, "error": "Invalid job id specified"}
    comment = {**CANCEL, "verb": "update_job"}
    assert [was_cancelled(record(*changes)) for changes in ((), (comment,), (comment, refused), (comment, CANCEL))] == [
        *(False, False, False, True)
    ]


def test_only_the_newest_notices_are_reported_and_only_once(tmp_path: Path) -> None:
    news = [News(job_id=n, name="sweep", reason="x" * 5000, at=float(n)) for n in range(1, 7)]
    for one in news:
        leave_notice(str(tmp_path), one)
    (tmp_path / "news" / "000000000009-9").write_bytes(b"{not json")
    notices, in_all = take_notices(str(tmp_path), 3)
    assert ([one.job_id for one in notices], in_all, len(notices[0].reason)) == ([5, 6], 7, 1000)
    assert take_notices(str(tmp_path), 3) == ((), 0)
    assert not (tmp_path / "news").exists()
