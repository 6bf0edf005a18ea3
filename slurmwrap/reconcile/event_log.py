"""What the reconciler's log says: each event with its text and its fields from one place, to the journal or to stderr.

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
# What the target of an action is; of all others a job.
_TARGETS = {Verb.DRAIN.value: "SLURM_NODE", Verb.RESUME.value: "SLURM_NODE", Verb.BLOCK_INPUT.value: "SLURMWRAP_INPUT"}


class EventKind(Enum):
    """SLURMWRAP_EVENT, and its syslog priority."""

    STARTED = "started"
    STOPPED = "stopped"
    JUDGED = "judged"
    ACTED = "acted"
    NOT_ACTED = "not_acted"
    # Spool files that were not believed.
    REFUSED = "refused"
    ERROR = "error"
    # The sum of one pass.
    PASSED = "passed"
    NOTE = "note"

    @property
    def priority(self) -> int:
        """syslog(3): 3 an error, 4 a warning, 6 information."""
        return {EventKind.ERROR: 3, EventKind.NOT_ACTED: 4, EventKind.REFUSED: 4}.get(self, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the log. `fields`: what programs select by; a name may come several times."""

    kind: EventKind
    text: str
    fields: tuple[tuple[str, str], ...] = ()


def make_judged_event(run: JobRun) -> Event:
    """A run that ended, why, and what was decided."""
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
    return Event(kind=EventKind.JUDGED, text=text, fields=(*_set(known), *(("SLURM_NODE", node) for node in run.nodes)))


def make_acted_event(action: ActionRecord) -> Event:
    """A change of Slurm that was made."""
    change = f"{action.verb} {action.target} {action.key}{'=' if action.key else ''}{action.value}".rstrip()
    return Event(kind=EventKind.ACTED, text=f"done: {change}", fields=_list_action_fields(action))


def make_refused_action_event(action: ActionRecord) -> Event:
    """One that Slurm refused."""
    text = f"not done: {action.verb} {action.target} {action.key}: {action.error}"
    return Event(
        kind=EventKind.NOT_ACTED, text=text, fields=(*_list_action_fields(action), ("SLURMWRAP_ERROR", action.error))
    )


def make_rejected_files_event(count: int) -> Event:
    """Spool files that were not believed."""
    text = f"{count} spool files were rejected"
    return Event(kind=EventKind.REFUSED, text=text, fields=(("SLURMWRAP_COUNT", str(count)),))


def make_error_event(text: str) -> Event:
    """What one pass could not do."""
    return Event(kind=EventKind.ERROR, text=f"error: {text}")


def make_pass_event(judged: int, applied: int, waiting: int) -> Event:
    """The sum of one pass."""
    text = f"{judged} runs judged, {applied} actions done, {waiting} waiting"
    return Event(kind=EventKind.PASSED, text=text)


def make_overdue_event(what: str, text: str) -> Event:
    """The watchdog's: `what` should have been heard of."""
    return Event(kind=EventKind.ERROR, text=text, fields=(("SLURMWRAP_LATE", what),))


def make_note_event(text: str) -> Event:
    """Anything else."""
    return Event(kind=EventKind.NOTE, text=text)


def _list_action_fields(action: ActionRecord) -> tuple[tuple[str, str], ...]:
    known = {
        _TARGETS.get(action.verb, "SLURM_JOB_ID"): action.target,
        "SLURMWRAP_RULE": action.rule,
        "SLURMWRAP_VERB": action.verb,
        "SLURMWRAP_REASON": action.reason,
    }
    return _set(known)


def _set(known: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in known.items() if value)


class EventLog:
    """Where events go. `journal` None: to stderr, as text. `both` False: what the journal has no room for is lost, and
    said later: stderr leads to the same journal then, and writing to it would wait."""

    def __init__(self, console: Console, journal: Journal | None = None, *, both: bool = True) -> None:
        self._voice, self._journal, self._both = console, journal, both

    @classmethod
    def of(
        cls, config: Config, console: Console, environ: Mapping[str, str], journal: Journal | None = None
    ) -> EventLog:
        """As log.to says. Where the journal was asked for by name and no one listens stderr has to do, and gets it."""
        wanted, found = config.log.to, journal or Journal()
        if wanted == "journal" and not found.is_there():
            console.say("log.to is journal, and no journald listens here: this goes to stderr")
        elif wanted == "journal" or (wanted == "auto" and is_our_stderr(environ) and found.is_there()):
            return cls(console, found, both=not is_our_stderr(environ))
        return cls(console)

    def tell(self, event: Event) -> None:
        """One event. Text of users is harmless in both: journald's fields hold it whole."""
        if self._journal is None:
            self._voice.say(event.text)
        elif self._journal.send(record_of(event)):
            self._report_lost(self._journal)
        elif self._both:
            self._voice.say(event.text)

    def _report_lost(self, journal: Journal) -> None:
        """Says once how much was lost before."""
        lost = journal.lost
        if lost and not self._both:
            said = journal.send(
                record_of(Event(kind=EventKind.ERROR, text=f"error: journald had no room for {lost} lines"))
            )
            journal.lost = 0 if said else lost

    def tell_all(self, events: Sequence[Event]) -> None:
        """In order."""
        for event in events:
            self.tell(event)

    def note(self, text: str) -> None:
        """For who only knows texts."""
        self.tell(make_note_event(text))


def record_of(event: Event) -> Fields:
    """journald's fields of an event."""
    head = [("MESSAGE", visible(event.text)), ("PRIORITY", str(event.kind.priority))]
    return [*head, ("SYSLOG_IDENTIFIER", IDENTIFIER), ("SLURMWRAP_EVENT", event.kind.value), *event.fields]
