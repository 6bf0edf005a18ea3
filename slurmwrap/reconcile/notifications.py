"""Deliver a diagnosis to the owner: as a file that the site seals, by mail, or as a file next to the output."""

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

# Number of array tasks that a message names.
_NAMED = 8
# Number of causes for which a process remembers that a message was sent.
_SENT = 10_000
# Runs of one array id are of the same array only if submitted within this time, because ids are reused.
_SAME_ARRAY_S = 30 * 86400.0
# After a failed mail that took longer than SLOW_S, no mail is tried for SILENT_S. Seconds.
SLOW_S, SILENT_S = 1.0, 300.0


def format_why_text(run: JobRun, actions: Sequence[ActionRecord]) -> str:
    """Return what `slurmwrap why` prints about this one run."""
    address = run.address or str(run.attempt.job_id)
    return format_job_report(JobTimeline(address=address, attempts=(run,), actions=tuple(actions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cause:
    """The subject of one message: the tasks of an array that failed for the same reason."""

    cluster: str
    array: str  # array job id, "77"
    uid: int
    category: str
    signature: str


@dataclass(slots=True, kw_only=True)
class _Tasks:
    """The tasks of one cause that were reported in this pass. `text` is about the first one."""

    first: JobRun
    text: str
    addresses: dict[str, None] = field(default_factory=dict)  # in order, each once


class MailingPublisher:
    """A FilePublisher that also mails the owner of a run that failed and is not run again.

    The sealed file marks that the owner was informed, so a reconciler killed in between may lose a mail but never
    sends two. Tasks of an array that fail for the same reason get one message: those of one pass are collected, and
    tasks that fail later send none. `runs_of` returns all stored runs of an array; they show what an earlier process
    has sent.
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
        self._silent_until = 0.0  # by time.monotonic()
        self._waiting: dict[_Cause, _Tasks] = {}
        # The newest _SENT causes, in order.
        self._sent: dict[_Cause, None] = {}

    def publish(self, published: Published) -> None:
        """Publish with the inner publisher."""
        self._inner.publish(published)

    def tell_gate(self, gate: Gate) -> None:
        """Publish the gate's permit with the inner publisher."""
        self._inner.tell_gate(gate)

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord]) -> None:
        """Write the sealed file, then send a mail. A mail that cannot be sent is reported; the file remains."""
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
        """Send one message for each array and cause for which none was sent before."""
        waiting, self._waiting = self._waiting, {}
        for cause, tasks in waiting.items():
            if not self._was_sent(cause, tasks):
                self._send(cause.uid, _format_subject(cause, tasks), _format_mail_text(cause, tasks))
            self._sent[cause] = None
        while len(self._sent) > _SENT:
            del self._sent[next(iter(self._sent))]

    def _was_sent(self, cause: _Cause, tasks: _Tasks) -> bool:
        """Return True if an earlier process has sent this message, as far as the database shows.

        Array ids are reused, so runs that were submitted much earlier belong to another array.
        """
        return any(
            one.reconciled
            and one.address not in tasks.addresses
            and _is_mailed(one)
            and _find_array_cause(one) == cause
            and abs(one.attempt.submit_time - tasks.first.attempt.submit_time) < _SAME_ARRAY_S
            for one in self._runs_of(cause.array)
        )

    def _send(self, uid: int, subject: str, text: str) -> None:
        """Send a mail. One that cannot be sent is reported and given up."""
        if time.monotonic() < self._silent_until:
            return
        began = time.monotonic()
        try:
            to = self._mail.to.replace("{user}", pwd.getpwuid(uid).pw_name)
            Mailer(server=self._mail.server, sender=self._mail.sender).send(to, subject, text)
        except (StoreError, KeyError) as error:
            self._say(f"not mailed: {error}")
            # Sending blocks the whole pass, and the next mail would wait for the time-out again.
            if time.monotonic() - began > SLOW_S:
                self._silent_until = time.monotonic() + SILENT_S


def _is_mailed(run: JobRun) -> bool:
    """Return True if the run failed and is not run again, so that its owner gets a mail."""
    return failed(run) and run.decision in ("stop", "blacklist_input")


def _find_array_cause(run: JobRun) -> _Cause | None:
    """Return the cause of a failed array task; None for a job that is not an array task."""
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
    """Return how many tasks failed, followed by the report on the first of them."""
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
    """Return the site's publisher. It seals its files, and sends mail if [mail] names a server."""
    return MailingPublisher(inner, config, say, runs_of) if config.mail.server else inner
