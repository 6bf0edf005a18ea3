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


@pytest.mark.parametrize(
    "text",
    [
        '{"api_key": "hunter2hunter2"}',
        "{'password': 'hunter2hunter2'}",
        "python train.py --hub-token hunter2hunter2 --lr 0.1",
        "--api-key=hunter2hunter2",
        "curl -H 'Authorization: Bearer hunter2hunter2'",
        "AWS_SECRET_ACCESS_KEY=hunter2hunter2",
        "WANDB_API_KEY = hunter2hunter2",
    ],
)
def test_a_secret_in_a_dict_an_option_or_a_header_is_removed(text: str) -> None:
    cleaned = redact_document({"text": text})["text"]
    assert "<secret>" in cleaned and "hunter2" not in cleaned


@pytest.mark.parametrize("unit", [".a", "a-", "1.", "token= ", "eyJaaaaaaaaa.", "xoxb-", "://a:", "/home/"])
def test_a_long_line_of_a_user_costs_work_in_proportion_to_its_length(unit: str) -> None:
    """With quadratic work this would take minutes."""
    redact_document({"user": "ada", "text": unit * (400_000 // len(unit))})
