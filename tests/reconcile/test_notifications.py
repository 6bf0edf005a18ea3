"""Messages about failed jobs: one per array and cause. A server that does not answer delays a pass only once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from webhook_server import WebServer

from slurmwrap.config.load_config import Config, Mail, Notify, SiteSection
from slurmwrap.host import mail
from slurmwrap.model.evidence import Citation, Diagnosis, RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.protocols import Publisher
from slurmwrap.reconcile.messenger import make_site_messenger, make_user_messenger
from slurmwrap.reconcile.notifications import make_site_publisher, make_user_publisher
from slurmwrap.store.published_files import WHY, FilePublisher

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="gpu.oom_torch")


MAILS = replace(Config(), mail=Mail(server="mail.example.org"))


def failed(job_id: int) -> JobRun:
    attempt = RunKey(cluster="lab", job_id=job_id, submit_time=1)
    plain = JobRun(attempt=attempt, address=str(job_id), name="train", uid=os.getuid(), decision="stop")
    return replace(plain, diagnosis=DIAGNOSIS)


def cited(text: str) -> Diagnosis:
    return replace(DIAGNOSIS, evidence=(Citation(source="slurm-81.out", line=1, text=text),))


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
        publisher = make_publisher(tmp_path, (), config, messages.append)
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


def make_publisher(
    folder: Path,
    runs: Sequence[JobRun] = (),
    config: Config = MAILS,
    say: Callable[[str], None] = print,
) -> Publisher:
    messenger = make_site_messenger(config, say)
    return make_site_publisher(FilePublisher(folder, "", plain), messenger, lambda array: runs)


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


@pytest.fixture
def server() -> Iterator[WebServer]:
    web_server = WebServer()
    yield web_server
    web_server.close()


def with_url(url: str, **changes: object) -> Config:
    return replace(Config(), notify=replace(Notify(url=url, format="json"), **changes))  # type: ignore[arg-type]


def test_a_sites_webhook_gets_no_text_of_the_user(tmp_path: Path, server: WebServer) -> None:
    publisher = make_publisher(tmp_path, (), with_url(server.url()))
    told = cited("PASSWORD=1")
    publisher.tell_owner(replace(failed(81), diagnosis=told, name="my secret", gpus=8), ())
    for number in (1, 2):
        publisher.tell_owner(task(number, diagnosis=told, name="my secret"), ())
    publisher.end_pass()
    bodies = [body for _, body in server.posted]
    assert [one["subject"] for one in bodies] == [
        "Slurm job 81 of root failed: out of GPU memory",
        "Slurm array 77, 2 tasks of root failed: out of GPU memory",
    ]
    assert bodies[1]["text"] == "77_1, 77_2\nIt ran 0 s.\n\nslurmwrap why 77_1"
    assert bodies[1]["jobs"] == ["77_1", "77_2"] and bodies[1]["category"] == "gpu_oom"
    assert not any("secret" in str(one) or "PASSWORD" in str(one) for one in bodies)


def test_show_evidence_and_a_users_own_webhook_get_the_report(tmp_path: Path, server: WebServer) -> None:
    run = replace(failed(81), diagnosis=cited("CUDA out of memory. Tried"))
    shown = with_url(server.url(), show_evidence=True)
    user = make_user_messenger(with_url(server.url()), print, own_url=True)
    for publisher in (make_publisher(tmp_path, (), shown), make_user_publisher(None, user, lambda array: ())):
        assert publisher is not None
        publisher.tell_owner(run, ())
        publisher.tell_owner(replace(run, incident="i1"), ())  # it is added to an incident later
    (_, first), (_, second) = server.posted
    assert first == second and first["subject"] == "Slurm job 81 train failed: out of GPU memory"
    assert "CUDA out of memory. Tried" in first["text"]


def test_a_user_leaves_the_sites_webhook_to_the_sites_reconciler(server: WebServer) -> None:
    config = with_url(server.url())
    site = replace(config, site=SiteSection(published="/srv"))
    assert make_user_messenger(site, print, own_url=False) is None
    assert make_user_messenger(site, print, own_url=True) is not None
    assert make_user_messenger(config, print, own_url=False) is not None
    assert make_user_messenger(Config(), print, own_url=False) is None


def test_a_webhook_that_fails_is_left_alone_and_the_next_message_counts_the_lost_ones(
    tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    publisher = make_publisher(tmp_path, (), with_url(server.url("/hooks/qwertzuiop")), said.append)
    server.answer = (500, {}, b"broken")
    for job_id in (81, 82, 83):
        publisher.tell_owner(failed(job_id), ())
    assert server.requests == 1
    assert said == [
        "not sent: webhook at 127.0.0.1: 500 Internal Server Error: broken; nothing is sent there for 300 s"
    ]
    server.answer = (200, {}, b"")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 301)
    publisher.tell_owner(failed(84), ())
    monkeypatch.undo()
    assert server.posted[-1][1]["left_out"] == 3
    assert server.posted[-1][1]["text"].endswith("\n3 messages before this one could not be sent.")


def test_a_user_with_many_failures_does_not_fill_the_channel(tmp_path: Path, server: WebServer) -> None:
    publisher = make_publisher(tmp_path, (), with_url(server.url(), per_hour=2))
    for job_id in (81, 82, 83):
        publisher.tell_owner(failed(job_id), ())
    publisher.tell_owner(replace(failed(84), uid=4711), ())
    assert [body["jobs"] for _, body in server.posted] == [["81"], ["82"], ["84"]]


def test_a_wrong_address_is_reported_and_sends_nothing() -> None:
    said: list[str] = []
    assert make_site_messenger(with_url("http://example.org/qwertzuiop"), said.append) is None
    assert len(said) == 1 and said[0].startswith("no messages are sent: notify.url: ") and "qwertz" not in said[0]
