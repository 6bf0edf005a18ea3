"""A mail server for one message, on loopback."""

from __future__ import annotations

import socket
import threading
from email import message_from_bytes
from email.message import Message

from waiting import allow


class Server:
    """Speaks just enough SMTP (RFC 5321) for one message."""

    def __init__(self, greeting: bytes = b"220 ready\r\n") -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.greeting = greeting
        self.received: list[Message] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)  # a failed test must not hold the session
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

    def messages(self) -> list[Message]:
        """The received messages, once the connection is closed."""
        self.thread.join(allow(10))
        return self.received

    def close(self) -> None:
        self.listener.close()
        self.thread.join(allow(5))
