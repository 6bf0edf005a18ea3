"""Report a diagnosis to the owner: as a file that the site seals or next to the output, by mail, and by webhook."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmwrap.diagnosis.taxonomy import get_title
from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.host.user_account import find_user_name
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.gate_permit import Gate
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.running_job import GpuUse
from slurmwrap.protocols import Published, Publisher
from slurmwrap.reconcile.messenger import Messenger, OwnerMessage
from slurmwrap.report.job_report.job_report_text import format_job_report
from slurmwrap.report.job_report.timeline import JobTimeline, failed
from slurmwrap.report.text_format import count, duration, in_order
from slurmwrap.store.published_files import WHY, FilePublisher

# Number of array tasks that a message names.
_NAMED = 8
# Number of causes for which a process remembers that a message was sent.
_SENT = 10_000
# Runs of one array id are of the same array only if submitted within this time, because ids are reused.
_SAME_ARRAY_S = 30 * 86400.0


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


class NotifyingPublisher:
    """A publisher that also sends a message about a run that failed and is not run again.

    `was_told` returns whether the owner was informed of the run before: the sealed file marks that, so a reconciler
    killed in between may lose a message but never sends two. Tasks of an array that fail for the same reason get one
    message: those of one pass are collected, and tasks that fail later send none. `runs_of` returns all stored runs of
    an array; they show what an earlier process has sent. `inner` None: nothing else is published.
    """

    def __init__(
        self,
        inner: Publisher | None,
        messenger: Messenger,
        runs_of: Callable[[str], Sequence[JobRun]] = lambda array: (),
        was_told: Callable[[JobRun], bool] = lambda run: False,
    ) -> None:
        self._inner = inner
        self._messenger = messenger
        self._runs_of = runs_of
        self._was_told = was_told
        self._waiting: dict[_Cause, _Tasks] = {}
        # The newest _SENT causes, in order.
        self._sent: dict[_Cause, None] = {}
        # Runs of this process: a run that is added to an incident later is published a second time.
        self._told: set[RunKey] = set()

    def publish(self, published: Published) -> None:
        """Publish with the inner publisher."""
        if self._inner is not None:
            self._inner.publish(published)

    def tell_gate(self, gate: Gate) -> None:
        """Publish the gate's permit with the inner publisher."""
        if self._inner is not None:
            self._inner.tell_gate(gate)

    def tell_owner(self, run: JobRun, actions: Sequence[ActionRecord], gpu_use: Sequence[GpuUse] = ()) -> None:
        """Write with the inner publisher, then send a message. One that cannot be sent is reported and given up."""
        silent = run.attempt in self._told or self._was_told(run)
        if self._inner is not None:
            self._inner.tell_owner(run, actions, gpu_use)
        if silent or not _is_reported(run):
            return
        self._told.add(run.attempt)
        cause = _find_array_cause(run)
        if cause is None:
            text = format_why_text(run, actions)
            category = run.diagnosis.category if run.diagnosis else ""
            subject = f"Slurm job {run.address} {run.name} failed: {_get_title(category)}"
            self._messenger.send_failure(_make_message(run, subject, text, category, (run.address,)))
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
                subject, text = _format_subject(cause, tasks), _format_text(cause, tasks)
                named = in_order(tasks.addresses)
                self._messenger.send_failure(_make_message(tasks.first, subject, text, cause.category, named))
            self._sent[cause] = None
        if len(self._told) > _SENT:
            self._told.clear()
        while len(self._sent) > _SENT:
            del self._sent[next(iter(self._sent))]
        self._messenger.end_pass()

    def _was_sent(self, cause: _Cause, tasks: _Tasks) -> bool:
        """Return True if an earlier process has sent this message, as far as the database shows.

        Array ids are reused, so runs that were submitted much earlier belong to another array.
        """
        return any(
            one.reconciled
            and one.address not in tasks.addresses
            and _is_reported(one)
            and _find_array_cause(one) == cause
            and abs(one.attempt.submit_time - tasks.first.attempt.submit_time) < _SAME_ARRAY_S
            for one in self._runs_of(cause.array)
        )


def _make_message(run: JobRun, subject: str, text: str, category: str, named: Sequence[str]) -> OwnerMessage:
    """Return the message about one failed run, or about the tasks `named` of its array. `text` is for the owner."""
    user, title = find_user_name(run.uid), _get_title(category)
    what = f"job {run.address}" if len(named) == 1 else f"array {named[0].partition('_')[0]}, {len(named)} tasks"
    tasks = f"{_name_tasks(named)}\n" if len(named) > 1 else ""
    gpus = f" on {count(run.gpus, 'GPU')}" if run.gpus else ""
    facts = {"version": 1, "event": "failed", "cluster": run.attempt.cluster, "user": user, "jobs": list(named)}
    return OwnerMessage(
        uid=run.uid,
        subject=subject,
        text=text,
        public_subject=f"Slurm {what} of {user} failed: {title}",
        public_text=f"{tasks}It ran {duration(run.run_s)}{gpus}.\n\nslurmwrap why {run.address}",
        facts={**facts, "category": category},
    )


def _is_reported(run: JobRun) -> bool:
    """Return True if the run failed and is not run again, so that its owner gets a message."""
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


def _format_text(cause: _Cause, tasks: _Tasks) -> str:
    """Return how many tasks failed, followed by the report on the first of them."""
    named = in_order(tasks.addresses)
    head = f"{count(len(named), 'task')} of array {cause.array} so far: {_name_tasks(named)}"
    later = f"Tasks of it that fail later for the same reason are not reported: slurmwrap why {cause.array}"
    return f"{head}\n{later}\n\n{tasks.text}"


def _name_tasks(named: Sequence[str]) -> str:
    return ", ".join(named[:_NAMED]) + (", ..." if len(named) > _NAMED else "")


def _get_title(category: str) -> str:
    return get_title(category) if category else "unknown"


def make_site_publisher(
    inner: FilePublisher, messenger: Messenger | None, runs_of: Callable[[str], Sequence[JobRun]]
) -> Publisher:
    """Return the site's publisher. It seals its files, and sends messages if a way for them is configured."""

    def was_told(run: JobRun) -> bool:
        return (inner.directory / WHY / f"{run.attempt.job_id}-{run.attempt.submit_time}.munge").exists()

    return inner if messenger is None else NotifyingPublisher(inner, messenger, runs_of, was_told)


def make_user_publisher(
    inner: Publisher | None, messenger: Messenger | None, runs_of: Callable[[str], Sequence[JobRun]]
) -> Publisher | None:
    """Return the publisher of a user's own reconciler: `inner`, and messages if the user has a webhook."""
    return inner if messenger is None else NotifyingPublisher(inner, messenger, runs_of)
