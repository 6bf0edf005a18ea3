"""Events of the reconciler's log, each with text and fields, and the EventLog that writes them to journald or stderr.

journalctl -t slurmwrap SLURM_JOB_ID=4711
journalctl -t slurmwrap SLURMWRAP_EVENT=acted SLURM_NODE=gpu17 -o verbose
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from slurmwrap.config.load_config import Config
from slurmwrap.console import Console
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.host.journal import Fields, Journal, is_our_stderr
from slurmwrap.model.decision import Verb
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.report.text_format import visible

IDENTIFIER = "slurmwrap"
# The journal field for the target of an action, by verb. For all other verbs the target is a job.
_TARGET_FIELDS = {
    Verb.DRAIN.value: "SLURM_NODE",
    Verb.RESUME.value: "SLURM_NODE",
    Verb.BLOCK_INPUT.value: "SLURMWRAP_INPUT",
}


class EventKind(Enum):
    """Value of the field SLURMWRAP_EVENT; it determines the syslog priority."""

    STARTED = "started"
    STOPPED = "stopped"
    JUDGED = "judged"
    ACTED = "acted"
    NOT_ACTED = "not_acted"
    REFUSED = "refused"  # spool files that were rejected
    ERROR = "error"
    PASSED = "passed"  # summary of one pass
    NOTE = "note"

    @property
    def priority(self) -> int:
        """Return the priority of syslog(3): 3 for an error, 4 for a warning, 6 for information."""
        return {EventKind.ERROR: 3, EventKind.NOT_ACTED: 4, EventKind.REFUSED: 4}.get(self, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log. Programs select by `fields`; a field name may occur several times."""

    kind: EventKind
    text: str
    fields: tuple[tuple[str, str], ...] = ()


def make_judged_event(run: JobRun) -> Event:
    """Return the event for a run that ended: its category, the decision and the reason."""
    diagnosis = run.diagnosis
    category = diagnosis.category if diagnosis else "unknown"
    known = {
        "SLURM_JOB_ID": run.address,
        "SLURM_JOB_USER": run.user,
        "SLURM_JOB_PARTITION": run.partition,
        "SLURM_JOB_STATE": run.state,
        "SLURMWRAP_CATEGORY": category,
        "SLURMWRAP_SIGNATURE": diagnosis.signature if diagnosis else "",
        "SLURMWRAP_DECISION": run.decision,
        "SLURMWRAP_INCIDENT": run.incident,
    }
    text = f"job {run.address} of {run.user}: {category}, {run.decision}: {run.decision_reason}"
    return Event(
        kind=EventKind.JUDGED, text=text, fields=(*_drop_empty(known), *(("SLURM_NODE", node) for node in run.nodes))
    )


def make_acted_event(action: ActionRecord) -> Event:
    """Return the event for a change of Slurm that was made."""
    change = f"{action.verb} {action.target} {action.key}{'=' if action.key else ''}{action.value}".rstrip()
    return Event(kind=EventKind.ACTED, text=f"done: {change}", fields=_list_action_fields(action))


def make_refused_action_event(action: ActionRecord) -> Event:
    """Return the event for a change that Slurm refused."""
    text = f"not done: {action.verb} {action.target} {action.key}: {action.error}"
    return Event(
        kind=EventKind.NOT_ACTED, text=text, fields=(*_list_action_fields(action), ("SLURMWRAP_ERROR", action.error))
    )


def make_rejected_files_event(count: int) -> Event:
    """Return the event for spool files that were rejected."""
    text = f"{count} spool files were rejected"
    return Event(kind=EventKind.REFUSED, text=text, fields=(("SLURMWRAP_COUNT", str(count)),))


def make_error_event(text: str) -> Event:
    """Return the event for an error that one pass met."""
    return Event(kind=EventKind.ERROR, text=f"error: {text}")


def make_pass_event(judged: int, applied: int, waiting: int) -> Event:
    """Return the summary event of one pass."""
    text = f"{judged} runs judged, {applied} actions done, {waiting} waiting"
    return Event(kind=EventKind.PASSED, text=text)


def make_overdue_event(what: str, text: str) -> Event:
    """Return the watchdog's event: nothing was heard of `what` for too long."""
    return Event(kind=EventKind.ERROR, text=text, fields=(("SLURMWRAP_LATE", what),))


def make_note_event(text: str) -> Event:
    """Return an event for any other text."""
    return Event(kind=EventKind.NOTE, text=text)


def _list_action_fields(action: ActionRecord) -> tuple[tuple[str, str], ...]:
    known = {
        _TARGET_FIELDS.get(action.verb, "SLURM_JOB_ID"): action.target,
        "SLURMWRAP_RULE": action.rule,
        "SLURMWRAP_VERB": action.verb,
        "SLURMWRAP_REASON": action.reason,
    }
    return _drop_empty(known)


def _drop_empty(known: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in known.items() if value)


class EventLog:
    """Destination of the events: `journal`, or stderr as text if `journal` is None.

    `both` False: stderr leads to the same journal, so an event that the journal cannot take is not written to stderr,
    where it would block. It is lost, and the number of lost events is reported later.
    """

    def __init__(self, console: Console, journal: Journal | None = None, *, both: bool = True) -> None:
        self._console, self._journal, self._both = console, journal, both

    @classmethod
    def of(
        cls, config: Config, console: Console, environ: Mapping[str, str], journal: Journal | None = None
    ) -> EventLog:
        """Return the EventLog that the setting log.to asks for.

        If it names the journal but no journald listens, events go to stderr, after a message.
        """
        wanted, found = config.log.to, journal or Journal()
        if wanted == "journal" and not found.is_there():
            console.say("log.to is journal, but no journald is listening here: events go to stderr")
        elif wanted == "journal" or (wanted == "auto" and is_our_stderr(environ) and found.is_there()):
            return cls(console, found, both=not is_our_stderr(environ))
        return cls(console)

    def tell(self, event: Event) -> None:
        """Write one event.

        Text from users cannot forge other lines: stderr shows it escaped, journald's fields keep it whole.
        """
        if self._journal is None:
            self._console.say(event.text)
        elif self._journal.send(record_of(event)):
            self._report_lost(self._journal)
        elif self._both:
            self._console.say(event.text)

    def _report_lost(self, journal: Journal) -> None:
        """Report once how many events the journal could not take before."""
        lost = journal.lost
        if lost and not self._both:
            is_sent = journal.send(
                record_of(
                    Event(
                        kind=EventKind.ERROR, text=f"error: {lost} lines are lost, because journald could not take them"
                    )
                )
            )
            journal.lost = 0 if is_sent else lost

    def tell_all(self, events: Sequence[Event]) -> None:
        """Write the events in order."""
        for event in events:
            self.tell(event)

    def note(self, text: str) -> None:
        """Write a text without fields."""
        self.tell(make_note_event(text))


def record_of(event: Event) -> Fields:
    """Return journald's fields of an event."""
    head = [("MESSAGE", visible(event.text)), ("PRIORITY", str(event.kind.priority))]
    return [*head, ("SYSLOG_IDENTIFIER", IDENTIFIER), ("SLURMWRAP_EVENT", event.kind.value), *event.fields]
