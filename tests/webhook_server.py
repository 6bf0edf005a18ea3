"""A web server for a few requests, on loopback: it keeps what was posted, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebServer:
    """Accepts POST requests. `answer`: status, headers and body of each answer."""

    def __init__(self, status: int = 200, body: bytes = b"ok", headers: Mapping[str, str] | None = None) -> None:
        self.posted: list[tuple[str, Any]] = []  # path with query, JSON body
        self.requests = 0
        self.answer = (status, dict(headers or {}), body)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner.requests += 1
                data = self.rfile.read(int(self.headers["Content-Length"]))
                owner.posted.append((self.path, json.loads(data)))
                code, more, text = owner.answer
                self.send_response(code)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def url(self, path: str = "/hooks/secret-key") -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
