"""How a diagnosis reaches its owner: sealed by the site, perhaps mailed, or as a file beside the output. Wiring."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence

from slurmwrap.config import Config
from slurmwrap.diagnosis.taxonomy import title_of
from slurmwrap.edges import Published, Publisher
from slurmwrap.errors import StoreError
from slurmwrap.host.mail import Mailer
from slurmwrap.report.story import Story, failed
from slurmwrap.report.tell import tell
from slurmwrap.retry.attempt import ActionRecord, AttemptRecord
from slurmwrap.retry.gate import Gate
from slurmwrap.store.published import WHY, FilePublisher

SLOW_S, SILENT_S = 1.0, 300.0  # no mail is tried for so long after one that failed so slowly


def why_text(record: AttemptRecord, actions: Sequence[ActionRecord]) -> str:
    """What `slurmwrap why` says of this one run."""
    address = record.address or str(record.attempt.job_id)
    return tell(Story(address=address, attempts=(record,), actions=tuple(actions)))


class MailingPublisher:
    """A FilePublisher that also mails the owner of a run that failed and is not run again, if the site has a server.

    The sealed file marks that the owner was told: a reconciler killed in between loses a mail, and never sends two.
    """

    def __init__(self, inner: FilePublisher, config: Config, say: Callable[[str], None]) -> None:
        self._inner = inner
        self._mail = config.mail
        self._say = say
        self._silent_until = 0.0  # of time.monotonic()

    def publish(self, published: Published) -> None:
        """As the inner one."""
        self._inner.publish(published)

    def tell_gate(self, gate: Gate) -> None:
        """As the inner one."""
        self._inner.tell_gate(gate)

    def tell_owner(self, record: AttemptRecord, actions: Sequence[ActionRecord]) -> None:
        """As the inner one, then by mail. A mail that cannot be sent is said and given up: the sealed word stands."""
        name = f"{record.attempt.job_id}-{record.attempt.submit_time}.munge"
        silent = (self._inner.directory / WHY / name).exists() or time.monotonic() < self._silent_until
        self._inner.tell_owner(record, actions)
        if silent or not failed(record) or record.decision not in ("stop", "blacklist_input"):
            return
        began = time.monotonic()
        try:
            to = self._mail.to.replace("{user}", pwd.getpwuid(record.uid).pw_name)
            category = title_of(record.diagnosis.category) if record.diagnosis else "unknown"
            subject = f"Slurm job {record.address} {record.name} failed: {category}"
            Mailer(server=self._mail.server, sender=self._mail.sender).send(to, subject, why_text(record, actions))
        except (StoreError, KeyError) as error:
            self._say(f"not mailed: {error}")
            if time.monotonic() - began > SLOW_S:  # all wait for it: the next one would take the whole time-out again
                self._silent_until = time.monotonic() + SILENT_S


def site_publisher(inner: FilePublisher, config: Config, say: Callable[[str], None]) -> Publisher:
    """The site's: sealed, and mailed where [mail] names a server."""
    return MailingPublisher(inner, config, say) if config.mail.server else inner
