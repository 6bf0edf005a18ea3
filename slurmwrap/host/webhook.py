"""Send a message to a webhook: one HTTPS POST with a deadline (adapter). No other module sends to a web server.

The address is a secret. It is in no message, error or log line; only the name of the host is shown.

Formats: Slack's incoming webhooks, Mattermost's, an Adaptive Card for the Workflows of Microsoft Teams, and plain JSON.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from slurmwrap.config.config_paths import find_other_writers
from slurmwrap.errors import ConfigError, StoreError
from slurmwrap.escape import harmless, marked, visible
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.node_hooks import deadline_child

if TYPE_CHECKING:
    from http.client import HTTPConnection

# For the whole exchange, name resolution included.
TIMEOUT_S = 10.0
_ANSWER_BYTES = 4096
# A part of the address with so many characters may be its key.
_LEAST_KEY = 6
# Most characters of a message: Slack cuts at 40,000, Mattermost refuses more than 16,383, Teams more than 28 KB.
_MOST_SUBJECT, _MOST_TEXT, _MOST_LINES = 200, 6000, 80
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SLACK = ("hooks.slack.com", "hooks.slack-gov.com")
_TEAMS = (
    ".webhook.office.com",
    ".logic.azure.com",
    ".logic.azure.us",
    ".api.powerplatform.com",
    ".powerautomate.com",
    ".flow.microsoft.com",
    "outlook.office.com",
)
_ZERO_WIDTH_SPACE = "\u200b"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookMessage:
    """A message: a subject, some lines of text, and facts for programs that read the format `json`."""

    subject: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook. `address`: its URL; `format`: slack, mattermost, teams or json; `proxy`: host:port, or ""."""

    address: SplitResult = field(repr=False)
    format: str
    proxy: str = ""

    @property
    def host(self) -> str:
        """Return the host's name, the only part of the address that may be shown."""
        return self.address.hostname or ""

    def send(self, message: WebhookMessage) -> None:
        """Send one message. Raise StoreError, without the address, if the server did not accept it in time.

        A child process sends it: neither the resolver nor a server that answers byte by byte can delay the caller
        beyond TIMEOUT_S.
        """
        body = format_message(self.format, message)
        self._exchange(lambda connection: self._post(connection, body))

    def connect(self) -> None:
        """Connect to the server and check its certificate, but send nothing. Raise StoreError if that fails."""
        self._exchange(lambda connection: connection.connect())

    def _post(self, connection: HTTPConnection, body: bytes) -> str:
        """Return "" if the server accepted the message, else why not."""
        path = self.address.path or "/"
        target = f"{path}?{self.address.query}" if self.address.query else path
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "slurmwrap", "Connection": "close"}
        connection.request("POST", target, body, headers)
        answer = connection.getresponse()
        if 200 <= answer.status < 300:
            return ""
        if 300 <= answer.status < 400:
            return f"it redirects ({answer.status}), which is not followed"
        said = answer.read(200).decode("utf-8", "replace").strip()
        # A server may repeat the address, or the key in it.
        for part in sorted((target, *re.split(r"[/?&=]", target)), key=len, reverse=True):
            said = said.replace(part, "…") if len(part) >= _LEAST_KEY else said
        return " ".join(visible(f"{answer.status} {answer.reason}: {said}").rstrip(": ").split())

    def _exchange(self, work: Callable[[HTTPConnection], str | None]) -> None:
        # Imported late, because few commands send anything, and before the fork, because the child has little time.
        import http.client  # noqa: F401
        import ssl  # noqa: F401

        deadline = time.monotonic() + TIMEOUT_S

        def talk(send: Any) -> None:
            send(b" " + self._talk(work).encode("utf-8", "replace"))

        done = deadline_child.call(talk, deadline, _ANSWER_BYTES)  # type: ignore[no-untyped-call]
        wrong = done.data[1:].decode("utf-8", "replace") if done.data else "the child process failed"
        if done.late or not done.data:
            wrong = f"no answer within {TIMEOUT_S:g} s" if done.late else wrong
        if wrong:
            raise StoreError(f"webhook at {self.host}: {wrong}", hint="see notify.url")

    def _talk(self, work: Callable[[HTTPConnection], str | None]) -> str:
        """Return "" if `work` succeeded, else what went wrong. Texts of http.client may contain the address."""
        import http.client

        try:
            connection = self._open()
            try:
                return work(connection) or ""
            finally:
                connection.close()
        except TimeoutError:
            return "it did not answer in time"
        except OSError as error:
            # Only http.client's own error about a proxy has no strerror; it contains the proxy's answer alone.
            return error.strerror or str(error)
        except (http.client.HTTPException, ValueError) as error:
            return f"no valid answer ({type(error).__name__})"

    def _open(self) -> HTTPConnection:
        import http.client
        import ssl

        host, port = self.host, self.address.port
        to, to_port = _split_proxy(self.proxy) if self.proxy else (host, port)
        if self.address.scheme == "https":
            context = ssl.create_default_context()
            connection: HTTPConnection = http.client.HTTPSConnection(to, to_port, timeout=TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(to, to_port, timeout=TIMEOUT_S)
        if self.proxy:
            connection.set_tunnel(host, port)
        return connection


def make_webhook(url: str, form: str = "auto", proxy: str = "") -> Webhook:
    """Return the webhook of notify.url, which may name a file, and notify.format. Raise ConfigError if it is unusable.

    No error contains the address.
    """
    address = parse_address(_read_address_file(url) if url.startswith("/") else url)
    if proxy:
        _split_proxy(proxy)
    return Webhook(address=address, format=choose_format(address) if form == "auto" else form, proxy=proxy)


def parse_address(url: str) -> SplitResult:
    """Return the parts of a webhook's URL. Raise ConfigError, which does not contain it, if it cannot be used."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError("notify.url is no valid address", hint=_HINT) from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError("notify.url contains a character that no address may contain", hint=_HINT)
    if not host or parts.scheme not in ("https", "http"):
        raise ConfigError("notify.url does not begin with https:// and a host", hint=_HINT)
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise ConfigError(f"notify.url: http://{host} would send the secret address readable for others", hint=_HINT)
    if parts.username is not None:
        raise ConfigError("notify.url contains a user's name, which no webhook has", hint=_HINT)
    return parts


_HINT = "It is the https:// address of an incoming webhook, or the absolute path of a file that holds it."


def _read_address_file(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            others = find_other_writers(os.fstat(file.fileno()))
            url = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"notify.url: {path}: {reason}", hint=_HINT) from None
    if others:
        hint = f"Give it to the user who runs slurmwrap, and: chmod 600 {path}"
        raise ConfigError(f"notify.url: {path} is not used: {others}", hint=hint)
    return url


def _split_proxy(proxy: str) -> tuple[str, int]:
    host, _, port = proxy.removeprefix("http://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or "/" in host or "@" in host:
        raise ConfigError("notify.proxy is not host:port", hint='For instance: proxy = "proxy.example.org:3128"')
    return host.strip("[]"), int(port)


def choose_format(address: SplitResult) -> str:
    """Return the format that an address suggests by its host and path; json for an unknown one."""
    host, path = (address.hostname or "").lower(), address.path
    if host in _SLACK:
        return "slack"
    if any(host == end or (end.startswith(".") and host.endswith(end)) for end in _TEAMS):
        return "teams"
    if path.rstrip("/").endswith("/slack"):  # Discord's and others' webhooks that take Slack's format
        return "slack"
    names = [name for name in path.split("/") if name]
    # Mattermost's keys have 26 characters. A server may be installed below a path of its own.
    if len(names) >= 2 and names[-2] == "hooks" and len(names[-1]) == 26 and names[-1].isalnum():
        return "mattermost"
    return "json"


def format_message(form: str, message: WebhookMessage) -> bytes:
    """Return the body of the request. Text of jobs can neither mention people nor add formatting."""
    subject = marked(message.subject, "?", _MOST_SUBJECT)
    text = _cut_text(harmless(message.text).replace("\t", "    "))
    build = {"slack": _build_slack, "mattermost": _build_mattermost, "teams": _build_teams}.get(form)
    body = {**message.facts, "subject": subject, "text": text} if build is None else build(subject, text)
    # Escaped to ASCII, so that a lone surrogate of a file name does no harm.
    return json.dumps(body).encode("ascii")


def _cut_text(text: str) -> str:
    lines = text.strip("\n").splitlines()
    cut = "\n".join(lines[:_MOST_LINES])
    return cut if len(lines) <= _MOST_LINES and len(cut) <= _MOST_TEXT else f"{cut[:_MOST_TEXT]}\n[...]"


def _build_slack(subject: str, text: str) -> dict[str, Any]:
    def escape(one: str) -> str:
        # Slack reads only these three characters as control characters.
        return _hide_mentions(one).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    return {"text": escape(subject) + (f"\n```\n{escape(text)}\n```" if text else "")}


def _build_mattermost(subject: str, text: str) -> dict[str, Any]:
    def escape(one: str) -> str:
        # Mattermost reads Slack's mentions too: <!channel>, <@name>.
        return _hide_mentions(one).replace("<!", f"<{_ZERO_WIDTH_SPACE}!")

    title = "".join(f"\\{c}" if c in "\\`*_[]<>|~#!" else c for c in subject)
    return {"text": f"**{escape(title)}**" + (f"\n```\n{escape(text)}\n```" if text else "")}


def _hide_mentions(text: str) -> str:
    """Return text that mentions no person or channel and cannot end the code block that it is in."""
    return text.replace("@", f"@{_ZERO_WIDTH_SPACE}").replace("```", "'''")


def _build_teams(subject: str, text: str) -> dict[str, Any]:
    """Return a message with an Adaptive Card. A RichTextBlock shows its text as it is; a TextBlock reads Markdown."""

    def block(line: str, **how: str) -> dict[str, Any]:
        return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line or " ", **how}]}

    lines = [block(line, fontType="Monospace", size="Small") for line in text.splitlines()]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": [block(subject, weight="Bolder"), *lines],
    }
    attached = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attached]}
