"""The retry ledger: which root causes this job has failed of before, and what that cost. Pure.

Budgets go by (root cause, entity, node): what one cause spent, another has left. Only progress strictly beyond the best
earlier step or checkpoint forgives. Both are claims of the log or the step counter's (gsub --count-steps), the user's
either way, so the count of all failures and the GPU-hours lost are kept next to them and never forgiven.

What a log calls a step and what the counter counts need not be one unit, so the two are never compared with each other.
The counter starts at zero in each run: a run that resumed counts on from the best checkpoint that was known before it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from hashlib import sha256

from slurmwrap.config.load_config import Retry
from slurmwrap.diagnosis.taxonomy import NO_SIGNATURE
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import JobRun, LedgerReset
from slurmwrap.policy.run_from_slurm import REQUEUED

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


def ledger_of(attempts: Iterable[JobRun], current: JobRun, resets: Iterable[LedgerReset] = ()) -> Ledger:
    """The ledger before `current`, which carries its own diagnosis already, or None.

    A failure that belonged to an incident costs its root cause nothing: it was not the job's. What ended before one of
    `resets` (`slurmwrap jobs clear`) costs nothing at all: a person decided.
    """
    earlier = runs_before(attempts, current)
    since = max((reset.at for reset in resets if reset.cluster == current.attempt.cluster), default=None)
    failures = [record for record in earlier if failed(record) and not forgiven(record, since)]
    progressed = progressed_at((*earlier, current))
    own = [r for r in failures if not r.incident and (progressed is None or r.attempt.submit_time >= progressed)]
    return Ledger(
        entries=tuple(_entry(record) for record in own),
        failures=len(failures),
        lost_gpu_hours=_lost((*earlier, current), since),
        refused=frozenset(r.diagnosis.category for r in failures if r.resize_refused and r.diagnosis),
    )


def forgiven(run: JobRun, since: float | None) -> bool:
    """Whether the run ended before a person reset the job's ledger at `since`; None: no one did."""
    return since is not None and (run.end_time or run.attempt.submit_time) <= since


def retries_of(diagnosis: Diagnosis, blamed: bool, settings: Retry) -> int:
    """How many retries one root cause of a job gets. `blamed`: kernel, NVML or Slurm name the node.

    Where only the log speaks of a node or an input, one confirmation reports whether that or the job is at fault.
    """
    if diagnosis.decision == "retry_elsewhere":
        return settings.per_root_cause if blamed else settings.confirmations
    if diagnosis.decision == "blacklist_input":
        return settings.confirmations
    if diagnosis.category == NO_SIGNATURE:
        return min(1, settings.per_root_cause) if diagnosis.decision == "retry" else 0
    return settings.per_root_cause if diagnosis.decision in ("retry", "resize") else 0


def runs_before(attempts: Iterable[JobRun], current: JobRun) -> tuple[JobRun, ...]:
    """The earlier runs of the very same job, oldest first.

    They share a raw id and count up in Restarts. Ids come back: backwards in time Restarts falls within one job, and
    where it does not, an older job's runs begin.
    """
    same = [r for r in attempts if _same_id(r, current) and r.attempt.submit_time < current.attempt.submit_time]
    found: list[JobRun] = []
    bound = current.restarts
    for record in sorted(same, key=lambda r: r.attempt.submit_time, reverse=True):
        if record.restarts >= bound:
            break
        bound = record.restarts
        found.append(record)
    return tuple(reversed(found))


def failed(run: JobRun) -> bool:
    """Judged, and a failure of the run itself: neither success, nor cancelled, nor preempted."""
    found = run.diagnosis
    if found is None or found.decision == "none" or found.category == "cancelled":
        return False
    return not (found.category == "job_preempted" and run.state in _PREEMPTED)


def _same_id(run: JobRun, current: JobRun) -> bool:
    return (run.attempt.cluster, run.attempt.job_id, run.uid) == (
        current.attempt.cluster,
        current.attempt.job_id,
        current.uid,
    )


def _entry(run: JobRun) -> Entry:
    assert run.diagnosis is not None
    alone = run.nodes[0] if len(run.nodes) == 1 else ""
    return Entry(
        category=run.diagnosis.category,
        entity=run.diagnosis.input_path,
        node=run.diagnosis.node or (alone if run.decision == "retry_elsewhere" else ""),
    )


def progressed_at(runs: Sequence[JobRun]) -> int | None:
    """SubmitTime of the latest run that went strictly beyond the best known before it; None when none did."""
    found = [_beyond(runs, [_logged(run) for run in runs]), _beyond(runs, counted_steps(runs))]
    return max((at for at in found if at is not None), default=None)


def _beyond(runs: Sequence[JobRun], reached: Sequence[int | None]) -> int | None:
    best: int | None = None
    found: int | None = None
    for run, step in zip(runs, reached, strict=True):
        if step is None:
            continue
        if best is not None and step > best:
            found = run.attempt.submit_time
        best = step if best is None else max(best, step)
    return found


def _logged(run: JobRun) -> int | None:
    if run.diagnosis is None:
        return None
    known = [step for step in (run.diagnosis.step, run.diagnosis.checkpoint_step) if step is not None]
    return max(known, default=None)


def counted_steps(runs: Sequence[JobRun]) -> list[int | None]:
    """How far each run of one job, oldest first, came by its step counter; None where it did not count."""
    reached: list[int | None] = []
    base = 0
    for run in runs:
        begin = base if run.diagnosis is not None and run.diagnosis.resumed else 0
        steps = _steps(run)
        reached.append(None if steps is None else begin + steps)
        base = max(base, _checkpoint(run) or 0)
    return reached


def _steps(run: JobRun) -> int | None:
    return run.measurement.steps if run.measurement is not None else None


def _checkpoint(run: JobRun) -> int | None:
    return run.diagnosis.checkpoint_step if run.diagnosis is not None else None


def _lost(runs: Sequence[JobRun], since: float | None) -> float:
    """GPU-hours of the failed runs, less the share that the next run went on from.

    Of the newest run no one knows yet whether the next one resumes: it counts as kept where this one did resume.
    """
    lost, base = 0.0, 0
    for place, run in enumerate(runs):
        after = runs[place + 1] if place + 1 < len(runs) else run
        kept = _kept(run, base) if after.diagnosis is not None and after.diagnosis.resumed else 0.0
        if failed(run) and not forgiven(run, since):
            lost += run.gpu_hours * (1 - kept)
        base = max(base, _checkpoint(run) or 0)
    return lost


def _kept(run: JobRun, base: int) -> float:
    """Share of the run's steps up to its checkpoint, 0..1; it began at step `base` if it resumed."""
    found = run.diagnosis
    if found is None or found.checkpoint_step is None:
        return 0.0
    begin, counted = base if found.resumed else 0, _steps(run)
    made = found.step - begin if found.step is not None else counted if counted is not None else 0
    return min(1.0, max(0.0, (found.checkpoint_step - begin) / made)) if made > 0 else 0.0


# When the next run may start: back-off with jitter, and the brake over all jobs.
#
# The jitter comes out of the job's own key: a reconciler that was killed decides the same again, and a hundred jobs
# that failed in the same second do not come back in the same second.
HOUR_S = 3600.0
# Of the wait, at most.
JITTER = 0.25


def compute_backoff_s(base_s: int, spent: int, seed: str = "") -> int:
    """Seconds before the next run: doubled with each failure of the same root cause, an hour at most, then up to a
    quarter more by `seed`."""
    wait = min(HOUR_S, base_s * 2 ** min(spent, 10))
    return int(wait * (1 + JITTER * compute_spread(seed)))


def compute_spread(seed: str) -> float:
    """0 <= x < 1, always the same of one seed; 0 of none."""
    if not seed:
        return 0.0
    return int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest()[:4], "big") / 2**32


def find_next_start(starts: Iterable[float], earliest: float, per_hour: int) -> float:
    """The first moment from `earliest` on at which one more start leaves no hour with more than `per_hour` of them.

    `starts`: Unix seconds of the other retries, past and to come. `per_hour` 0: no brake.
    """
    if per_hour <= 0:
        return earliest
    known = sorted(starts)
    later = sorted(start + HOUR_S for start in known if start + HOUR_S > earliest)
    return next(at for at in (earliest, *later) if _is_within_rate(known, at, per_hour))


def _is_within_rate(known: Sequence[float], at: float, per_hour: int) -> bool:
    # Sums of seconds as floats are not exact.
    hour = HOUR_S - 0.001
    if bisect_right(known, at) - bisect_right(known, at - hour) >= per_hour:
        # At once, for most of the moments of a long queue.
        return False
    near = known[bisect_right(known, at - hour) : bisect_left(known, at + hour)]
    together = sorted((*near, at))
    return all(last - first >= hour for first, last in zip(together, together[per_hour:], strict=False))
