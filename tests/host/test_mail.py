"""Mail sent by SMTP to a server on loopback; a server that is unreachable or refuses gives a readable error."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from smtp_server import Server

from slurmwrap.errors import StoreError
from slurmwrap.host.mail import Attachment, Mailer


@pytest.fixture
def server() -> Iterator[Server]:
    smtp_server = Server()
    yield smtp_server
    smtp_server.close()


def test_a_message_is_delivered_and_a_line_break_in_the_subject_adds_no_header(server: Server) -> None:
    name = "train\r\nBcc: everyone@example.org"
    Mailer(server=server.address, sender="slurmwrap@example.org").send("ada@example.org", f"job {name}", "Zeile ü\n")
    (message,) = server.messages()
    payload = message.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert (message["To"], message["Subject"], message["Bcc"], message["Auto-Submitted"]) == (
        "ada@example.org",
        "job train??Bcc: everyone@example.org",
        None,
        "auto-generated",
    )
    assert payload.decode("utf-8").replace("\r\n", "\n") == "Zeile ü\n"


def test_an_unreachable_server_is_named_in_the_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StoreError, match=f"mail to ada by 127.0.0.1:{port}: "):
        Mailer(server=f"127.0.0.1:{port}", sender="s@example.org").send("ada", "subject", "text")


def test_a_refusal_by_the_server_is_reported() -> None:
    server = Server(greeting=b"554 no mail today\r\n")
    with pytest.raises(StoreError, match="no mail today"):
        Mailer(server=server.address, sender="s@example.org").send("ada", "subject", "text")
    server.close()


def test_a_port_that_is_not_a_number_is_reported() -> None:
    with pytest.raises(StoreError, match="invalid literal"):
        Mailer(server="mail.example.org:smtp", sender="s@example.org").send("ada", "subject", "text")


def test_a_message_may_have_html_and_attachments_next_to_its_text(server: Server) -> None:
    page = Attachment(name="night.html", subtype="html", text="<p>whole</p>\n")
    Mailer(server=server.address, sender="s@example.org").send(
        ("ada@example.org", "bob@example.org"), "night", "text\n", html="<p>short</p>\n", attached=(page,)
    )
    (message,) = server.messages()
    assert message["To"] == "ada@example.org, bob@example.org"
    assert str(message["Message-ID"]).endswith("@example.org>")
    parts = [(part.get_content_type(), part.get_filename(), part.get_payload(decode=True)) for part in message.walk()]
    assert parts == [
        ("multipart/mixed", None, None),
        ("multipart/alternative", None, None),
        ("text/plain", None, b"text\r\n"),
        ("text/html", None, b"<p>short</p>\r\n"),
        ("text/html", "night.html", b"<p>whole</p>\r\n"),
    ]
