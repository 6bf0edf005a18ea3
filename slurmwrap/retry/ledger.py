"""The retry ledger: which root causes this job has failed of before, and what that cost. Pure.

Budgets go by (root cause, entity, node): what one cause spent, another has left. Only progress strictly beyond the best
earlier step or checkpoint forgives. Both are the log's word, so the count of all failures and the GPU-hours lost are
kept beside them and never forgiven.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurmwrap.retry.attempt import AttemptRecord
from slurmwrap.retry.record import REQUEUED

# States of a run that Slurm ended by preemption. A log that says so of a run that Slurm calls FAILED proves nothing.
_PREEMPTED = frozenset({"PREEMPTED", REQUEUED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One earlier failure. `entity` is the blamed input, "" for none; `node` the blamed or left node, "" for none."""

    category: str
    entity: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The earlier failures of one job that count, oldest first, and its totals."""

    entries: tuple[Entry, ...] = ()
    failures: int = 0  # earlier ones in all, whatever progress says; preemptions are none
    lost_gpu_hours: float = 0.0  # of all its failed runs, the present one too, less what a resumed run kept
    refused: frozenset[str] = frozenset()  # root causes for which Slurm refused a larger job

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


def ledger_of(attempts: Iterable[AttemptRecord], current: AttemptRecord) -> Ledger:
    """The ledger before `current`, which carries its own diagnosis already, or None.

    A failure that belonged to an incident costs its root cause nothing: it was not the job's.
    """
    earlier = runs_before(attempts, current)
    failures = [record for record in earlier if failed(record)]
    since = _progressed_at((*earlier, current))
    own = [r for r in failures if not r.incident and (since is None or r.attempt.submit_time >= since)]
    return Ledger(
        entries=tuple(_entry(record) for record in own),
        failures=len(failures),
        lost_gpu_hours=_lost((*earlier, current)),
        refused=frozenset(r.diagnosis.category for r in failures if r.resize_refused and r.diagnosis),
    )


def runs_before(attempts: Iterable[AttemptRecord], current: AttemptRecord) -> tuple[AttemptRecord, ...]:
    """The earlier runs of the very same job, oldest first.

    They share a raw id and count up in Restarts. Ids come back: backwards in time Restarts falls within one job, and
    where it does not, an older job's runs begin.
    """
    same = [r for r in attempts if _same_id(r, current) and r.attempt.submit_time < current.attempt.submit_time]
    found: list[AttemptRecord] = []
    bound = current.restarts
    for record in sorted(same, key=lambda r: r.attempt.submit_time, reverse=True):
        if record.restarts >= bound:
            break
        bound = record.restarts
        found.append(record)
    return tuple(reversed(found))


def failed(record: AttemptRecord) -> bool:
    """Judged, and a failure of the run itself: neither success, nor cancelled, nor preempted."""
    found = record.diagnosis
    if found is None or found.decision == "none" or found.category == "cancelled":
        return False
    return not (found.category == "job_preempted" and record.state in _PREEMPTED)


def _same_id(record: AttemptRecord, current: AttemptRecord) -> bool:
    return (record.attempt.cluster, record.attempt.job_id, record.uid) == (
        current.attempt.cluster,
        current.attempt.job_id,
        current.uid,
    )


def _entry(record: AttemptRecord) -> Entry:
    assert record.diagnosis is not None
    alone = record.nodes[0] if len(record.nodes) == 1 else ""
    return Entry(
        category=record.diagnosis.category,
        entity=record.diagnosis.input_path,
        node=record.diagnosis.node or (alone if record.decision == "retry_elsewhere" else ""),
    )


def _progressed_at(runs: Sequence[AttemptRecord]) -> int | None:
    """SubmitTime of the latest run that went strictly beyond the best known before it; None when none did."""
    best: int | None = None
    found: int | None = None
    for run in runs:
        reached = _reached(run)
        if reached is None:
            continue
        if best is not None and reached > best:
            found = run.attempt.submit_time
        best = reached if best is None else max(best, reached)
    return found


def _reached(run: AttemptRecord) -> int | None:
    if run.diagnosis is None:
        return None
    known = [step for step in (run.diagnosis.step, run.diagnosis.checkpoint_step) if step is not None]
    return max(known, default=None)


def _lost(runs: Sequence[AttemptRecord]) -> float:
    """GPU-hours of the failed runs, less the share that the next run went on from.

    Of the newest run nobody knows yet whether the next one resumes: it counts as kept where this one did resume.
    """
    lost, base = 0.0, 0
    for place, run in enumerate(runs):
        after = runs[place + 1] if place + 1 < len(runs) else run
        kept = _kept(run, base) if after.diagnosis is not None and after.diagnosis.resumed else 0.0
        if failed(run):
            lost += run.gpu_hours * (1 - kept)
        if run.diagnosis is not None and run.diagnosis.checkpoint_step is not None:
            base = max(base, run.diagnosis.checkpoint_step)
    return lost


def _kept(run: AttemptRecord, base: int) -> float:
    """Share of the run's steps up to its checkpoint, 0..1; it began at step `base` if it resumed."""
    found = run.diagnosis
    if found is None or found.step is None or found.checkpoint_step is None:
        return 0.0
    begin = base if found.resumed else 0
    made = found.step - begin
    return min(1.0, max(0.0, (found.checkpoint_step - begin) / made)) if made > 0 else 0.0
