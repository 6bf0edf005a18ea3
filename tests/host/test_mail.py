"""Mail goes to a real SMTP conversation on loopback; a server that is not there, or refuses, is an error in words."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message

import pytest

from slurmwrap.errors import StoreError
from slurmwrap.host.mail import Mailer


class Server:
    """Speaks just enough SMTP (RFC 5321) for one message."""

    def __init__(self, greeting: bytes = b"220 ready\r\n") -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.greeting = greeting
        self.received: list[Message] = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(self.greeting)
            for line in lines:
                word = line.split()[0].upper()
                if word == b"DATA":
                    connection.sendall(b"354 go on\r\n")
                    self.received.append(message_from_bytes(b"".join(iter(lines.readline, b".\r\n"))))
                connection.sendall(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                if word == b"QUIT":
                    return

    def close(self) -> None:
        self.listener.close()
        self.thread.join(5)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def test_a_message_arrives_with_its_text_and_no_header_of_a_users_making(server: Server) -> None:
    name = "train\r\nBcc: everyone@example.org"
    Mailer(server=server.address, sender="slurmwrap@example.org").send("ada@example.org", f"job {name}", "Zeile ü\n")
    server.thread.join(5)
    (message,) = server.received
    payload = message.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert (message["To"], message["Subject"], message["Bcc"], message["Auto-Submitted"]) == (
        "ada@example.org",
        "job train??Bcc: everyone@example.org",
        None,
        "auto-generated",
    )
    assert payload.decode("utf-8").replace("\r\n", "\n") == "Zeile ü\n"


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StoreError, match=f"mail to ada by 127.0.0.1:{port}: "):
        Mailer(server=f"127.0.0.1:{port}", sender="s@example.org").send("ada", "subject", "text")


def test_a_refusal_of_the_server_is_told() -> None:
    server = Server(greeting=b"554 no mail today\r\n")
    with pytest.raises(StoreError, match="no mail today"):
        Mailer(server=server.address, sender="s@example.org").send("ada", "subject", "text")
    server.close()


def test_a_port_that_is_no_number_is_an_error_in_words() -> None:
    with pytest.raises(StoreError, match="invalid literal"):
        Mailer(server="mail.example.org:smtp", sender="s@example.org").send("ada", "subject", "text")
