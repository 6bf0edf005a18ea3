"""Mails to job owners: one per array and cause. A mail server that does not answer delays a pass only once."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.config.load_config import Config, Mail
from slurmwrap.host import mail
from slurmwrap.model.evidence import Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.reconcile.notifications import MailingPublisher
from slurmwrap.store.published_files import WHY, FilePublisher

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="gpu.oom_torch")


def failed(job_id: int) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=1)
    plain = JobRun(attempt=attempt, address=str(job_id), name="train", uid=os.getuid(), decision="stop")
    return replace(plain, diagnosis=DIAGNOSIS)


def task(number: int, **changes: object) -> JobRun:
    """A task of array 77 that the store has as reconciled."""
    plain = replace(failed(1000 + number), address=f"77_{number}", reconciled=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def plain(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
    return payload


def calls_at(server: socket.socket) -> int:
    """The number of connections to a server that answers none."""
    server.setblocking(False)
    calls = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            calls += 1
    return calls


def test_a_mail_server_that_does_not_answer_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "TIMEOUT_S", 1.2)
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        config = replace(Config(), mail=Mail(server=f"127.0.0.1:{silent_server.getsockname()[1]}"))
        publisher = MailingPublisher(FilePublisher(tmp_path, "", plain), config, messages.append)
        for job_id in (81, 82, 83):
            publisher.tell_owner(failed(job_id), ())
        assert calls_at(silent_server) == 1
    assert len(messages) == 1 and messages[0].startswith("not mailed: mail to ")
    assert len(list((tmp_path / WHY / "0").iterdir())) == 3


class FakeMailer:
    """A mailer that records (subject, first line) of each mail in `sent`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, str]] = []
        monkeypatch.setattr(mail.Mailer, "send", self.send)

    def send(self, to: str, subject: str, text: str) -> None:
        self.sent.append((subject, text.splitlines()[0]))


def make_publisher(folder: Path, runs: Sequence[JobRun] = ()) -> MailingPublisher:
    config = replace(Config(), mail=Mail(server="mail.example.org"))
    return MailingPublisher(FilePublisher(folder, "", plain), config, print, lambda array: runs)


def test_array_tasks_that_fail_with_the_same_cause_are_one_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailer, publisher = FakeMailer(monkeypatch), make_publisher(tmp_path)
    for number in (12, *range(3, 12)):
        publisher.tell_owner(task(number), ())
    assert mailer.sent == []
    publisher.end_pass()
    named = "10 tasks of array 77 so far: 77_3, 77_4, 77_5, 77_6, 77_7, 77_8, 77_9, 77_10, ..."
    first = ("Slurm array 77 train: 10 tasks failed: out of GPU memory", named)
    assert mailer.sent == [first]
    other = replace(DIAGNOSIS, category="cpu_oom", signature="slurm.state_out_of_memory")
    publisher.tell_owner(task(20), ())  # a later failure with the same cause is not mailed again
    publisher.tell_owner(task(21, diagnosis=other), ())
    publisher.tell_owner(task(22, decision="retry"), ())
    publisher.end_pass()
    publisher.end_pass()
    second = ("Slurm job 77_21 train failed: out of host memory", "1 task of array 77 so far: 77_21")
    assert mailer.sent == [first, second]


def test_a_mail_is_not_sent_again_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailer = FakeMailer(monkeypatch)
    others = [task(1, uid=4711), task(2, diagnosis=replace(DIAGNOSIS, signature="other")), task(3, reconciled=False)]
    old = replace(task(4), attempt=RunKey(cluster="lab", job_id=4, submit_time=1 + 90 * 86400))
    for folder, runs, sent in (("a", [*others, old, task(9)], 1), ("b", [*others, task(5)], 1)):
        publisher = make_publisher(tmp_path / folder, runs)
        publisher.tell_owner(task(9), ())
        publisher.end_pass()
        assert len(mailer.sent) == sent
