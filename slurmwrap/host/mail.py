"""Send mail: one message by SMTP, with a time-out (adapter). No other module sends mail."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import EmailMessage

from slurmwrap.errors import StoreError
from slurmwrap.escape import marked
from slurmwrap.fast_dataclasses import dataclass

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A text file that is attached to a message."""

    name: str
    subtype: str  # of text/: "html"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailer:
    """An SMTP server and a sender. `server` is host or host:port (RFC 5321; default port 25)."""

    server: str
    sender: str

    def send(
        self, to: str | Sequence[str], subject: str, text: str, *, html: str = "", attached: Sequence[Attachment] = ()
    ) -> None:
        """Send one message. `html` is an alternative to `text` for mail programs that show it.

        StoreError names the server and its error, also if the server accepted the message only for some addresses.
        """
        import smtplib

        names = (to,) if isinstance(to, str) else tuple(to)
        host, _, port = self.server.rpartition(":") if ":" in self.server else (self.server, "", "25")
        try:
            message = self._build_message(names, subject, text, html, attached)
            with smtplib.SMTP(host, int(port), timeout=TIMEOUT_S) as connection:
                refused = connection.send_message(message)
        except (OSError, ValueError, smtplib.SMTPException) as error:
            raise StoreError(f"mail to {', '.join(names)} by {self.server}: {error}", hint="see mail.server") from error
        if refused:
            raise StoreError(f"mail by {self.server} was refused for {', '.join(refused)}", hint="see report.to")

    def _build_message(
        self, to: Sequence[str], subject: str, text: str, html: str, attached: Sequence[Attachment]
    ) -> EmailMessage:
        from email.utils import formatdate, make_msgid

        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self.sender, ", ".join(to), _to_one_line(subject)
        message["Date"] = formatdate(localtime=True)
        message["Message-ID"] = make_msgid(domain=self.sender.rpartition("@")[2] or "localhost")
        # RFC 3834: automatic replies must not answer it.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        if html:
            message.add_alternative(html, subtype="html")
        for one in attached:
            message.add_attachment(one.text, subtype=one.subtype, filename=one.name)
        return message


def _to_one_line(text: str) -> str:
    """Return the subject on one line: a header must not contain line breaks, and job names are user text."""
    return marked(text, "?", 200)
