"""Send messages about jobs: by mail to their owner, and to the webhook of the site or of the user (notify.url).

A site's webhook is read by others. It gets job, user, cause and figures, but no job name and no text of a log, unless
notify.show_evidence is set.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slurmwrap.config.load_config import Config
from slurmwrap.errors import ConfigError, StoreError
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.host.mail import Mailer
from slurmwrap.host.user_account import find_account
from slurmwrap.host.webhook import Webhook, WebhookMessage, make_webhook
from slurmwrap.report.text_format import count

# After a failed mail that took longer than SLOW_S, no mail is tried for SILENT_S. After any failure of the webhook none
# is tried for SILENT_S. Seconds.
SLOW_S, SILENT_S = 1.0, 300.0
# Seconds that a pass may spend on the webhook.
PASS_S = 20.0
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerMessage:
    """A message about jobs of one user. `public_subject` and `public_text` are for a channel that others read."""

    uid: int
    subject: str
    text: str
    public_subject: str
    public_text: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # for programs; without text of a log


class Messenger:
    """The ways by which messages are sent. It remembers in memory which of them failed, and how much was sent.

    `shows_all`: whether the webhook gets everything. `now` returns Unix seconds.
    """

    def __init__(
        self,
        config: Config,
        say: Callable[[str], None],
        *,
        mails: bool,
        webhook: Webhook | None,
        shows_all: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._mail = config.mail if mails and config.mail.server else None
        self._webhook = webhook
        self._shows_all = shows_all
        self._per_hour = config.notify.per_hour
        self._say = say
        self._now = now
        # By time.monotonic().
        self._no_mail_until = self._no_webhook_until = 0.0
        self._webhook_s = 0.0
        self._sent: dict[int, list[float]] = {}  # uid -> when messages were sent in the last hour
        self.knows_earlier = False  # whether `remember` was called
        self._left_out: Counter[int] = Counter()

    @property
    def is_ready(self) -> bool:
        """Return True if at least one way is open now."""
        return self._can_mail() or self._can_post()

    def remember(self, sent: Iterable[tuple[int, float]]) -> None:
        """Add (uid, Unix seconds) of messages that earlier processes sent."""
        for uid, at in sent:
            self._sent.setdefault(uid, []).append(at)
        self.knows_earlier = True

    def get_capacity(self, uid: int) -> int:
        """Return how many messages of this hour are left for a user."""
        now = self._now()
        # A clock that was set back does not prolong the hour.
        recent = [at for at in self._sent.get(uid, ()) if 0 <= now - at < _HOUR_S]
        self._sent[uid] = recent
        return max(0, self._per_hour - len(recent))

    def send(self, message: OwnerMessage) -> bool:
        """Send by all ways that are open. Return whether at least one of them worked; failures are reported."""
        mailed, posted = self._send_mail(message), self._post(message)
        if mailed or posted:
            self._sent.setdefault(message.uid, []).append(self._now())
        return mailed or posted

    def send_failure(self, message: OwnerMessage) -> None:
        """Send a message about jobs that ended. It is given up if it cannot be sent.

        The limit per hour holds for the webhook; the next message there says how many were left out.
        """
        self._send_mail(message)
        if self._webhook is None:
            return
        if self.get_capacity(message.uid) and self._post(message):
            self._sent[message.uid].append(self._now())
        else:
            self._left_out[message.uid] += 1

    def end_pass(self) -> None:
        """Begin a new measurement of the time that a pass may spend on the webhook."""
        self._webhook_s = 0.0

    def _can_mail(self) -> bool:
        return self._mail is not None and time.monotonic() >= self._no_mail_until

    def _can_post(self) -> bool:
        open_now = self._webhook is not None and time.monotonic() >= self._no_webhook_until
        return open_now and self._webhook_s < PASS_S

    def _send_mail(self, message: OwnerMessage) -> bool:
        if self._mail is None or not self._can_mail():
            return False
        account = find_account(message.uid)
        if account is None:
            self._say(f"not mailed: uid {message.uid} has no name")
            return False
        began = time.monotonic()
        try:
            to = self._mail.to.replace("{user}", account.name)
            Mailer(server=self._mail.server, sender=self._mail.sender).send(to, message.subject, message.text)
        except StoreError as error:
            self._say(f"not mailed: {error}")
            # Sending blocks the whole pass, and the next mail would wait for the time-out again.
            if time.monotonic() - began > SLOW_S:
                self._no_mail_until = time.monotonic() + SILENT_S
            return False
        return True

    def _post(self, message: OwnerMessage) -> bool:
        if self._webhook is None or not self._can_post():
            return False
        began = time.monotonic()
        try:
            self._webhook.send(self._select_content(message))
        except StoreError as error:
            self._say(f"not sent: {error}; nothing is sent there for {SILENT_S:.0f} s")
            self._no_webhook_until = time.monotonic() + SILENT_S
            return False
        finally:
            self._webhook_s += time.monotonic() - began
        self._left_out[message.uid] = 0
        return True

    def _select_content(self, message: OwnerMessage) -> WebhookMessage:
        left_out = self._left_out[message.uid]
        subject, text = (
            (message.subject, message.text) if self._shows_all else (message.public_subject, message.public_text)
        )
        note = f"\n{count(left_out, 'message')} before this one could not be sent." if left_out else ""
        return WebhookMessage(subject=subject, text=text + note, facts={**message.facts, "left_out": left_out})


def make_site_messenger(config: Config, say: Callable[[str], None]) -> Messenger | None:
    """Return how the site's reconciler sends messages; None if neither a mail server nor a webhook is configured."""
    webhook = _make_webhook(config, say)
    if webhook is None and not config.mail.server:
        return None
    return Messenger(config, say, mails=True, webhook=webhook, shows_all=config.notify.show_evidence)


def make_user_messenger(config: Config, say: Callable[[str], None], *, own_url: bool) -> Messenger | None:
    """Return how a user's own reconciler sends messages; None without a webhook.

    `own_url`: whether the user set notify.url. With the site's address the site's reconciler sends the messages, if
    there is one.
    """
    if config.site.published and not own_url:
        return None
    webhook = _make_webhook(config, say)
    shows_all = own_url or config.notify.show_evidence
    return Messenger(config, say, mails=False, webhook=webhook, shows_all=shows_all) if webhook is not None else None


def _make_webhook(config: Config, say: Callable[[str], None]) -> Webhook | None:
    notify = config.notify
    if not notify.url:
        return None
    try:
        return make_webhook(notify.url, notify.format, notify.proxy)
    except ConfigError as error:
        # A wrong address must not keep failed jobs from being diagnosed.
        say(f"no messages are sent: {error}")
        return None
