"""Webhooks on loopback: four formats, hostile text, servers that refuse or hang, an address that stays secret."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import allow
from webhook_server import WebServer

from slurmwrap.errors import ConfigError, StoreError
from slurmwrap.host import webhook
from slurmwrap.host.webhook import WebhookMessage, choose_format, format_message, make_webhook, parse_address

HOSTILE = WebhookMessage(
    subject="job <!channel> @all *x*\nTo: you", text="a\n```\n<@U1> & @here \x1b[31m\udc80", facts={"event": "test"}
)
SECRET = "/services/T0/B0/qwertzuiop"


@pytest.fixture
def server() -> Iterator[WebServer]:
    web_server = WebServer()
    yield web_server
    web_server.close()


def test_a_message_is_posted_once_with_the_query_of_the_address(server: WebServer) -> None:
    make_webhook(server.url("/workflows/1/invoke?sig=abc"), "json").send(HOSTILE)
    ((path, body),) = server.posted
    assert path == "/workflows/1/invoke?sig=abc"
    assert body == {
        "event": "test",
        "subject": "job <!channel> @all *x*?To: you",
        "text": "a\n```\n<@U1> & @here \\x1b[31m\\x80",
    }


@pytest.mark.parametrize("form", ["slack", "mattermost"])
def test_text_of_a_job_mentions_nobody_and_stays_in_its_code_block(form: str) -> None:
    text = json.loads(format_message(form, HOSTILE))["text"]
    assert text.count("```") == 2 and text.endswith("```")
    assert not any(word in text for word in ("<!", "@U1", "@all", "@here", "\x1b"))


def test_a_card_for_teams_shows_text_as_it_is() -> None:
    (attached,) = json.loads(format_message("teams", HOSTILE))["attachments"]
    assert attached["contentType"] == "application/vnd.microsoft.card.adaptive"
    runs = [block["inlines"][0] for block in attached["content"]["body"]]
    assert {run["type"] for run in runs} == {"TextRun"}
    assert [run["text"] for run in runs] == ["job <!channel> @all *x*?To: you", *HOSTILE_LINES]


HOSTILE_LINES = ["a", "```", "<@U1> & @here \\x1b[31m\\x80"]


def test_a_long_text_is_cut() -> None:
    text = json.loads(format_message("json", WebhookMessage(subject="s", text="line\n" * 10_000)))["text"]
    assert len(text) < 7000 and text.endswith("[...]")


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T0/B0/x", "slack"),
        ("https://discord.com/api/webhooks/1/x/slack", "slack"),
        ("https://chat.example.org/hooks/abcdefghijklmnopqrstuvwxyz", "mattermost"),
        ("https://example.org/chat/hooks/abcdefghijklmnopqrstuvwxyz", "mattermost"),
        ("https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/c/d", "teams"),
        ("https://prod-1.westus.logic.azure.com:443/workflows/a/triggers/manual/paths/invoke?sig=b", "teams"),
        ("https://default1.2f.environment.api.powerplatform.com/powerautomate/automations/direct/workflows/a", "teams"),
        ("https://evil-logic.azure.com.example.org/workflows/a", "json"),
        ("https://ci.example.org/hooks/build", "json"),
    ],
)
def test_the_format_follows_from_the_address(url: str, form: str) -> None:
    assert choose_format(parse_address(url)) == form
    assert make_webhook(url, "json").format == "json"


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ((302, {"Location": "https://elsewhere.example.org/"}, b""), "it redirects (302), which is not followed"),
        ((404, {}, f"no_service {SECRET} qwertzuiop \x1b".encode()), "404 Not Found: no_service … … \\x1b"),
        ((429, {}, b""), "429 Too Many Requests"),
    ],
)
def test_a_refusal_is_reported_without_the_address(
    server: WebServer, answer: tuple[int, dict[str, str], bytes], wanted: str
) -> None:
    server.answer = answer
    with pytest.raises(StoreError) as raised:
        make_webhook(server.url(SECRET)).send(HOSTILE)
    assert str(raised.value) == f"webhook at 127.0.0.1: {wanted}"
    assert server.requests == 1


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 200 OK\r\nX-", b"SSH-2.0-OpenSSH\r\n"])
def test_a_server_that_hangs_or_speaks_no_http_ends_at_the_deadline(
    greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(greeting)
            over.wait(allow(20))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        with pytest.raises(StoreError, match=r"^webhook at 127\.0\.0\.1: (no answer|it did not|no valid answer)"):
            make_webhook(f"http://127.0.0.1:{listener.getsockname()[1]}{SECRET}").send(HOSTILE)
    finally:
        over.set()
        thread.join(allow(20))
        listener.close()


def test_a_server_without_a_valid_certificate_gets_nothing(server: WebServer) -> None:
    with pytest.raises(StoreError, match=r"^webhook at 127\.0\.0\.1: .*SSL"):
        make_webhook(server.url(SECRET).replace("http:", "https:")).send(HOSTILE)
    assert server.posted == []


def test_proxies_of_the_environment_are_ignored(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    make_webhook(server.url(SECRET)).send(HOSTILE)
    assert server.requests == 1
    with pytest.raises(StoreError, match="Connection refused"):
        make_webhook(server.url(SECRET), "json", "127.0.0.1:1").send(HOSTILE)


@pytest.mark.parametrize(
    "url",
    [
        f"http://example.org{SECRET}",
        f"ftp://example.org{SECRET}",
        f"https://ada:pw@example.org{SECRET}",
        f"https://example.org:port{SECRET}",
        f"https://[::1{SECRET}",
        f"https://example.org{SECRET} x",
        f"https://example.org{SECRET}ü",
        f"example.org{SECRET}",
    ],
)
def test_an_unusable_address_is_an_error_that_does_not_contain_it(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_webhook(url)
    assert "qwertzuiop" not in f"{raised.value} {raised.value.hint}" and "pw" not in str(raised.value)
    assert "qwertzuiop" not in repr(make_webhook(f"https://example.org{SECRET}"))


def test_the_address_may_be_in_a_file_that_only_its_owner_may_write(tmp_path: Path) -> None:
    path = tmp_path / "url"
    path.write_text(f"https://example.org{SECRET}\n")
    path.chmod(0o600)
    assert make_webhook(str(path)).address.path == SECRET
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="others may write it"):
        make_webhook(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        make_webhook(str(tmp_path / "none"))
