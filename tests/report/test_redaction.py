"""`why --json --redact`: names, hosts, directories and secrets are gone, and the text still makes sense."""

from __future__ import annotations

import pytest

from slurmwrap.report.redaction import redact_document

RUN = {
    "user": "ada",
    "uid": 1001,
    "account": "physics",
    "name": "secret-model",
    "nodes": ["gpu[07-08]"],
    "work_dir": "/home/ada/secret-model",
    "signal": 9,
    "exit_code": 1,
    "diagnosis": {
        "evidence": [
            "gpu07: rank 3 of ada: ConnectionError to 10.1.2.3 (gpu08.cluster.example)",
            "wandb: mail ada.lovelace@example.org, WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567",
            "File /home/ada/secret-model/train.py line 3, canada is no user",
        ]
    },
}


def test_named_people_and_hosts_get_the_same_placeholder_everywhere() -> None:
    plain = redact_document({"address": "81", "attempts": [RUN]})
    run = plain["attempts"][0]
    assert (run["user"], run["uid"], run["account"], run["name"]) == ("user1", -1, "account1", "job-name1")
    assert run["nodes"] == ["node1,node2"]
    first, second, third = run["diagnosis"]["evidence"]
    assert first == "node1: rank 3 of user1: ConnectionError to <address> (node2.cluster.example)"
    assert second == "wandb: mail <mail>, WANDB_API_KEY=<secret>"
    assert third == "File /home/user1/job-name1/train.py line 3, canada is no user"
    assert (run["signal"], run["exit_code"], plain["address"]) == (9, 1, "81")


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwx",
        "Authorization: Bearer eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4",
        "git clone https://bob:hunter2hunter2@git.example/x",
        "password: hunter2hunter2",
        "key sk-proj-abcdefghijklmnop1234",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_text_that_looks_like_a_secret_is_removed(text: str) -> None:
    cleaned = redact_document({"text": text})["text"]
    assert "<secret>" in cleaned
    assert not any(part in cleaned for part in ("hunter2", "abcdefghij", "SflKxw", "ABCDEFGHIJ"))


def test_a_document_without_names_is_unchanged() -> None:
    plain = {"kind": "x", "list": [1, 2.5, None, True], "text": "CUDA out of memory. Tried to allocate 2.00 GiB"}
    assert redact_document(plain) == plain
