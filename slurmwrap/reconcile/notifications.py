"""How a diagnosis reaches its owner: sealed by the site, perhaps mailed, or as a file next to the output. Wiring."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence

from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.host.mail import Mailer
from slurmwrap.model.gate_permit import Gate
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.protocols import Published, Publisher
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.timeline import JobTimeline, failed
from slurmwrap.report.text_format import count, in_order
from slurmwrap.store.published_files import WHY, FilePublisher

# Tasks that a message names.
_NAMED = 8
# Causes of which a process remembers that a message was sent.
_SENT = 10_000
_SAME_ARRAY_S = 30 * 86400.0
# No mail is tried for so long after one that failed so slowly.
SLOW_S, SILENT_S = 1.0, 300.0


def format_why_text(run: JobRun, actions: Sequence[ActionRecord]) -> str:
    """What `slurmwrap why` says of this one run."""
    address = run.address or str(run.attempt.job_id)
    return format_job_report(JobTimeline(address=address, attempts=(run,), actions=tuple(actions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """What one message is about: an array's tasks that failed alike."""

    cluster: str
    array: str  # its id, "77"
    uid: int
    category: str
    signature: str


@dataclass(slots=True, kw_only=True)
class _Tasks:
    """Of one cause, as they were reported in this pass. The text is of the first one."""

    first: JobRun
    text: str
    addresses: dict[str, None] = field(default_factory=dict)  # in order, each once


class MailingPublisher:
    """A FilePublisher that also mails the owner of a run that failed and is not run again, if the site has a server.

    The sealed file marks that the owner was informed: a reconciler killed in between loses a mail, and never sends two.
    An array's tasks that fail of one cause are one message: those of a pass are collected, and tasks that fail of it
    later send none. `runs_of`: all stored runs of an array, which remember what an earlier process has sent.
    """

    def __init__(
        self,
        inner: FilePublisher,
        config: Config,
        say: Callable[[str], None],
        runs_of: Callable[[str], Sequence[JobRun]] = lambda array: (),
    ) -> None:
        self._inner = inner
        self._mail = config.mail
        self._say = say
        self._runs_of = runs_of
        self._silent_until = 0.0  # of time.monotonic()
        self._waiting: dict[_Cause, _Tasks] = {}
        # The newest _SENT of them, in order.
        self._sent: dict[_Cause, None] = {}

    def publish(self, published: Published) -> None:
        """As the inner one."""
        self._inner.publish(published)

    def tell_gate(self, gate: Gate) -> None:
        """As the inner one."""
        self._inner.tell_gate(gate)

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord]) -> None:
        """As the inner one, then by mail. A mail that cannot be sent is said and given up: the sealed word stands."""
        name = f"{run.attempt.job_id}-{run.attempt.submit_time}.munge"
        silent = (self._inner.directory / WHY / name).exists()
        self._inner.tell_owner(run, actions)
        if silent or not _is_mailed(run):
            return
        cause = _find_array_cause(run)
        if cause is None:
            category = get_title(run.diagnosis.category) if run.diagnosis else "unknown"
            subject = f"Slurm job {run.address} {run.name} failed: {category}"
            self._send(run.uid, subject, format_why_text(run, actions))
        elif cause in self._waiting:
            self._waiting[cause].addresses[run.address] = None
        elif cause not in self._sent:
            text = format_why_text(run, actions)
            self._waiting[cause] = _Tasks(first=run, text=text, addresses={run.address: None})

    def end_pass(self) -> None:
        """One message for each array and cause of which none was sent before."""
        waiting, self._waiting = self._waiting, {}
        for cause, tasks in waiting.items():
            if not self._was_sent(cause, tasks):
                self._send(cause.uid, _format_subject(cause, tasks), _format_mail_text(cause, tasks))
            self._sent[cause] = None
        while len(self._sent) > _SENT:
            del self._sent[next(iter(self._sent))]

    def _was_sent(self, cause: _Cause, tasks: _Tasks) -> bool:
        """By an earlier process, as far as the store remembers. Ids come back: what is much older was another array."""
        return any(
            one.reconciled
            and one.address not in tasks.addresses
            and _is_mailed(one)
            and _find_array_cause(one) == cause
            and abs(one.attempt.submit_time - tasks.first.attempt.submit_time) < _SAME_ARRAY_S
            for one in self._runs_of(cause.array)
        )

    def _send(self, uid: int, subject: str, text: str) -> None:
        """A mail that cannot be sent is said and given up."""
        if time.monotonic() < self._silent_until:
            return
        began = time.monotonic()
        try:
            to = self._mail.to.replace("{user}", pwd.getpwuid(uid).pw_name)
            Mailer(server=self._mail.server, sender=self._mail.sender).send(to, subject, text)
        except (StoreError, KeyError) as error:
            self._say(f"not mailed: {error}")
            # All wait for it: the next one would take the whole time-out again.
            if time.monotonic() - began > SLOW_S:
                self._silent_until = time.monotonic() + SILENT_S


def _is_mailed(run: JobRun) -> bool:
    """Whether its owner gets a mail: it failed, and is not run again."""
    return failed(run) and run.decision in ("stop", "blacklist_input")


def _find_array_cause(run: JobRun) -> _Cause | None:
    """None for a job that is no task of an array."""
    array, _, task = run.address.partition("_")
    if not task or run.diagnosis is None:
        return None
    found = run.diagnosis
    return _Cause(
        cluster=run.attempt.cluster,
        array=array,
        uid=run.uid,
        category=found.category,
        signature=found.signature,
    )


def _format_subject(cause: _Cause, tasks: _Tasks) -> str:
    if len(tasks.addresses) == 1:
        return f"Slurm job {tasks.first.address} {tasks.first.name} failed: {get_title(cause.category)}"
    failed = f"{len(tasks.addresses)} tasks failed: {get_title(cause.category)}"
    return f"Slurm array {cause.array} {tasks.first.name}: {failed}"


def _format_mail_text(cause: _Cause, tasks: _Tasks) -> str:
    """How many tasks, then what is known of the first of them."""
    named = in_order(tasks.addresses)
    shown = ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")
    head = f"{count(len(named), 'task')} of array {cause.array} so far: {shown}"
    later = f"Tasks of it that fail later for the same reason are not mailed: slurmwrap why {cause.array}"
    return f"{head}\n{later}\n\n{tasks.text}"


def make_site_publisher(
    inner: FilePublisher,
    config: Config,
    say: Callable[[str], None],
    runs_of: Callable[[str], Sequence[JobRun]],
) -> Publisher:
    """The site's: sealed, and mailed where [mail] names a server."""
    return MailingPublisher(inner, config, say, runs_of) if config.mail.server else inner
