"""The retry ledger: which root causes this job has failed of before. Pure.

A job's runs share a raw id and count up in Restarts; an older job with the same id has no lower Restarts than zero, so
it never counts. Every failure counts, whoever had the job run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurmwrap.retry.attempt import AttemptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One earlier failure. `entity` is the blamed input, "" for none."""

    category: str
    entity: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The earlier failures of one job that count, oldest first."""

    entries: tuple[Entry, ...] = ()

    def spent(self, category: str) -> int:
        """Failures of this root cause."""
        return sum(entry.category == category for entry in self.entries)

    def confirmations(self, category: str, entity: str) -> int:
        """Failures of this root cause that blamed the same thing."""
        return sum(entry.category == category and entry.entity == entity for entry in self.entries)

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes blamed before."""
        return frozenset(entry.node for entry in self.entries if entry.node)


def ledger_of(attempts: Iterable[AttemptRecord], current: AttemptRecord, *, progressed_at: int | None = None) -> Ledger:
    """The ledger before `current`. Failures before `progressed_at` (the SubmitTime of the latest run that went strictly
    beyond the best earlier step or checkpoint) are forgiven: only progress resets."""
    earlier = [
        record
        for record in attempts
        if record.attempt.cluster == current.attempt.cluster
        and record.attempt.job_id == current.attempt.job_id
        and record.uid == current.uid
        and record.restarts < current.restarts
        and (progressed_at is None or record.attempt.submit_time >= progressed_at)
    ]
    return Ledger(entries=tuple(_entry(record) for record in earlier if _failed(record)))


def _failed(record: AttemptRecord) -> bool:
    return record.diagnosis is not None and record.diagnosis.decision != "none"


def _entry(record: AttemptRecord) -> Entry:
    assert record.diagnosis is not None
    alone = record.nodes[0] if len(record.nodes) == 1 else ""
    return Entry(
        category=record.diagnosis.category,
        entity=record.diagnosis.input_path,
        node=record.diagnosis.node or (alone if record.decision == "retry_elsewhere" else ""),
    )
