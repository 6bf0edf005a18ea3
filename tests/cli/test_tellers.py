"""A mail server that answers nobody holds the reconciler up once, not once per job."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from slurmwrap.cli.tellers import MailingPublisher
from slurmwrap.config import Config, Mail
from slurmwrap.diagnosis.evidence import Attempt, Diagnosis
from slurmwrap.host import mail
from slurmwrap.retry.attempt import AttemptRecord
from slurmwrap.store.published import WHY, FilePublisher

DIAGNOSIS = Diagnosis(category="gpu_oom", domain="U", decision="stop", confidence=0.9, signature="gpu.oom_torch")


def failed(job_id: int) -> AttemptRecord:
    attempt = Attempt(cluster="lab", job_id=job_id, submit_time=1)
    plain = AttemptRecord(attempt=attempt, address=str(job_id), name="train", uid=os.getuid(), decision="stop")
    return replace(plain, diagnosis=DIAGNOSIS)


def plain(payload: bytes, *, socket: str, uid_restriction: int | None = None) -> bytes:
    return payload


def calls_at(server: socket.socket) -> int:
    """How many connected, none of which was answered."""
    server.setblocking(False)
    calls = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            calls += 1
    return calls


def test_a_server_that_never_speaks_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "TIMEOUT_S", 1.2)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as mute:
        config = replace(Config(), mail=Mail(server=f"127.0.0.1:{mute.getsockname()[1]}"))
        publisher = MailingPublisher(FilePublisher(tmp_path, "", plain), config, said.append)
        for job_id in (81, 82, 83):
            publisher.tell_owner(failed(job_id), ())
        assert calls_at(mute) == 1
    assert len(said) == 1 and said[0].startswith("not mailed: mail to ")
    assert len(list((tmp_path / WHY / "0").iterdir())) == 3
