"""Findings about running jobs are sent in the pass that sees them, by mail and to a web server on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import START, FakeClock, FakeLogs, FakePublisher, FakeSlurm, job
from webhook_server import WebServer

from slurmwrap.config.load_config import Config, Mail, Notify
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.host import mail
from slurmwrap.host.webhook import make_webhook
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.running_job import STUCK, EarlyFinding
from slurmwrap.reconcile import Scope, Services, reconcile_once
from slurmwrap.reconcile.messenger import Messenger
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json


@pytest.fixture
def server() -> Iterator[WebServer]:
    web_server = WebServer()
    yield web_server
    web_server.close()


class Site:
    """A reconciler with running jobs, a database and a webhook."""

    def __init__(self, folder: Path, url: str = "", *, server: str = "", per_hour: int = 10) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm(clock=self.clock)
        self.store = Database.open(folder / "site.db", clock=self.clock)
        self.said: list[str] = []
        notify, mails = Notify(url=url, format="json", per_hour=per_hour), Mail(server=server)
        self.config = replace(Config(), notify=notify, mail=mails)
        self.restart()

    def restart(self) -> None:
        url = self.config.notify.url
        webhook = make_webhook(url, "json") if url else None
        self.messenger = Messenger(
            self.config, self.said.append, mails=True, webhook=webhook, shows_all=True, now=self.clock.now
        )

    def find(self, job_id: int, address: str = "", **changes: object) -> None:
        """Store a finding about a job that runs."""
        found = job(job_id, state="RUNNING", end_time=None, exit_code=None, uid=os.getuid())
        self.slurm.add(found)
        key = RunKey(cluster="lab", job_id=job_id, submit_time=found.submit_time)
        plain = EarlyFinding(
            attempt=key, kind=STUCK, at=self.clock.now(), n=700, evidence="step 12", uid=os.getuid(),
            address=address or str(job_id), mode="advise",
        )  # fmt: skip
        self.store.save_early_finding(replace(plain, **changes))  # type: ignore[arg-type]

    def run(self) -> None:
        services = Services(
            slurm=self.slurm, store=self.store, spools=(), logs=FakeLogs(), clock=self.clock,
            publisher=FakePublisher(), unpack=record_from_json, classify=diagnose_run,
            read_inputs=lambda uid, paths: (), config=self.config, scope=Scope(), messenger=self.messenger,
        )  # fmt: skip
        assert reconcile_once(services).errors == []
        self.messenger.end_pass()

    def notified(self) -> list[str]:
        return [one.address for one in self.store.early_findings() if one.notified]


def test_a_finding_is_sent_once_with_its_evidence(tmp_path: Path, server: WebServer) -> None:
    site = Site(tmp_path, server.url())
    site.find(81)
    site.find(82, mode="observe")
    site.run()
    site.run()
    ((_, body),) = server.posted
    assert body["subject"] == "Slurm job 81 train: it makes no progress" and "step 12" in body["text"]
    assert body["event"] == "early" and body["findings"][0]["jobs"] == ["81"]
    assert site.notified() == ["81"]


def test_a_task_that_is_found_later_is_marked_and_not_sent(tmp_path: Path, server: WebServer) -> None:
    site = Site(tmp_path, server.url())
    site.find(1001, "77_1")
    site.find(1002, "77_2")
    site.run()
    site.find(1003, "77_3")
    site.restart()
    site.run()
    assert [body["findings"][0]["jobs"] for _, body in server.posted] == [["77_1", "77_2"]]
    assert site.notified() == ["77_1", "77_2", "77_3"]


def test_a_server_that_is_down_does_not_block_passes_and_the_finding_is_sent_later(
    tmp_path: Path, server: WebServer
) -> None:
    site = Site(tmp_path, server.url())
    server.answer = (503, {}, b"")
    for job_id in (81, 82):
        site.find(job_id)
    site.run()
    site.run()
    assert server.requests == 1 and len(site.said) == 1 and site.notified() == []
    server.answer = (200, {}, b"")
    site.restart()
    site.run()
    assert [body["findings"][0]["jobs"] for _, body in server.posted[1:]] == [["81"], ["82"]]


def test_the_last_message_of_an_hour_is_a_summary_and_the_next_hour_continues(
    tmp_path: Path, server: WebServer
) -> None:
    site = Site(tmp_path, server.url(), per_hour=2)
    for job_id in range(81, 86):
        site.find(job_id)
    site.run()
    site.find(90)
    site.run()
    site.restart()  # the database shows what was sent
    site.run()
    assert [body["event"] for _, body in server.posted] == ["early", "early_summary"]
    assert [one["jobs"] for one in server.posted[1][1]["findings"]] == [["82"], ["83"], ["84"], ["85"]]
    site.clock.sleep(3601)
    site.run()
    assert server.posted[-1][1]["findings"][0]["jobs"] == ["90"] and len(server.posted) == 3


def test_a_finding_of_a_job_that_has_ended_is_sent_only_if_slurmwrap_acted(tmp_path: Path, server: WebServer) -> None:
    site = Site(tmp_path, server.url())
    site.find(81)
    site.find(82, action="cancel")
    site.slurm.records = {
        number: replace(one, state="CANCELLED", end_time=START) for number, one in site.slurm.records.items()
    }
    site.run()
    assert [body["findings"][0]["jobs"] for _, body in server.posted] == [["82"]]


def test_mail_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(mail.Mailer, "send", lambda self, to, subject, text: sent.append(f"{to}: {subject}"))
    site = Site(tmp_path, server="mail.example.org")
    site.find(81)
    site.run()
    assert sent == ["root: Slurm job 81 train: it makes no progress"] and site.notified() == ["81"]
