"""Edge: the only sender of mail. One plain message by SMTP, with a deadline."""

from __future__ import annotations

from email.message import EmailMessage

from slurmwrap.errors import StoreError
from slurmwrap.records import dataclass

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mailer:
    """`server` is host or host:port (RFC 5321; port 25 when left out)."""

    server: str
    sender: str

    def send(self, to: str, subject: str, text: str) -> None:
        """Hands one message over. StoreError names the server and what it said."""
        import smtplib

        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self.sender, to, _one_line(subject)
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no holiday notice answers it
        message.set_content(text)
        host, _, port = self.server.rpartition(":") if ":" in self.server else (self.server, "", "25")
        try:
            with smtplib.SMTP(host, int(port), timeout=TIMEOUT_S) as connection:
                connection.send_message(message)
        except (OSError, ValueError, smtplib.SMTPException) as error:
            raise StoreError(f"mail to {to} by {self.server}: {error}", hint="see mail.server") from error


def _one_line(text: str) -> str:
    """A header may not hold a line break: a job's name is its user's text."""
    return "".join(character if character.isprintable() else "?" for character in text)[:200]
