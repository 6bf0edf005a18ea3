"""The retry budget of a job: its earlier failures by root cause, and what they cost. Pure.

Budgets are kept by (root cause, entity, node), so that one cause does not use up the budget of another. Only progress
strictly beyond the best earlier step or checkpoint resets them. Steps come from the log or the step counter (gsub
--count-steps) and are the user's claim either way. So the number of all failures and the lost GPU-hours are kept too,
and progress never resets these.

What a log calls a step and what the counter counts may be different units, so the two are never compared with each
other. The counter starts at zero in each run: for a run that resumed, the best checkpoint known before it is added.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from slurmwrap.config.load_config import Retry
from slurmwrap.diagnosis.taxonomy import NO_SIGNATURE
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.job_run import JobRun, LedgerReset
from slurmwrap.policy.run_from_slurm import REQUEUED

# States of a run that Slurm ended by preemption. A log that mentions preemption proves nothing about a run that Slurm
# calls FAILED.
_PREEMPTED = frozenset({"PREEMPTED", REQUEUED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One earlier failure.

    `entity` is the blamed input, `node` the node that was blamed or avoided; "" if there is none.
    """

    category: str
    entity: str
    node: str
    exit_code: int = 0
    signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The earlier failures of one job that count, oldest first, and its totals."""

    entries: tuple[Entry, ...] = ()
    # All earlier failures, whatever the progress; preemptions do not count.
    failures: int = 0
    # GPU-hours of all failed runs including the present one, minus what a resumed run kept.
    lost_gpu_hours: float = 0.0
    refused: frozenset[str] = frozenset()  # root causes for which Slurm refused a larger request

    def spent(self, category: str) -> int:
        """Return the number of failures of this root cause."""
        return sum(entry.category == category for entry in self.entries)

    def confirmations(self, category: str, entity: str) -> int:
        """Return the number of failures of this root cause that blamed the same entity."""
        return sum(entry.category == category and entry.entity == entity for entry in self.entries)

    def count_endings(self, is_such: Callable[[int, int], object]) -> int:
        """Return the number of failures with such an exit code and signal."""
        return sum(bool(is_such(entry.exit_code, entry.signal)) for entry in self.entries)

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes that were blamed before."""
        return frozenset(entry.node for entry in self.entries if entry.node)


def make_ledger(attempts: Iterable[JobRun], current: JobRun, resets: Iterable[LedgerReset] = ()) -> Ledger:
    """Return the ledger before `current`, which may carry its own diagnosis already.

    A failure that belongs to an incident does not count for its root cause, because the job did not cause it. A run
    that ended before one of `resets` (`slurmwrap jobs clear`) does not count at all: a person decided so.
    """
    earlier = runs_before(attempts, current)
    since = max((reset.at for reset in resets if reset.cluster == current.attempt.cluster), default=None)
    failures = [record for record in earlier if failed(record) and not forgiven(record, since)]
    progressed = find_last_progress_time((*earlier, current))
    own = [r for r in failures if not r.incident and (progressed is None or r.attempt.submit_time >= progressed)]
    return Ledger(
        entries=tuple(_make_entry(record) for record in own),
        failures=len(failures),
        lost_gpu_hours=_compute_lost_gpu_hours((*earlier, current), since),
        refused=frozenset(r.diagnosis.category for r in failures if r.resize_refused and r.diagnosis),
    )


def forgiven(run: JobRun, since: float | None) -> bool:
    """Return True if the run ended before a person reset the job's ledger at `since`; None: it was not reset."""
    return since is not None and (run.end_time or run.attempt.submit_time) <= since


def count_allowed_retries(diagnosis: Diagnosis, blamed: bool, settings: Retry) -> int:
    """Return how many retries one root cause of a job gets. `blamed`: kernel, NVML or Slurm name the node.

    If only the log names a node or an input, one confirmation shows whether that or the job is at fault.
    """
    if diagnosis.decision == "retry_elsewhere":
        return settings.per_root_cause if blamed else settings.confirmations
    if diagnosis.decision == "blacklist_input":
        return settings.confirmations
    if diagnosis.category == NO_SIGNATURE:
        return min(1, settings.per_root_cause) if diagnosis.decision == "retry" else 0
    return settings.per_root_cause if diagnosis.decision in ("retry", "resize") else 0


def runs_before(attempts: Iterable[JobRun], current: JobRun) -> tuple[JobRun, ...]:
    """Return the earlier runs of the very same job, oldest first.

    They have the same raw id, and Restarts counts up. Ids are reused: going back in time Restarts falls within one job;
    where it does not, the runs of an older job begin.
    """
    same = [r for r in attempts if _has_same_id(r, current) and r.attempt.submit_time < current.attempt.submit_time]
    found: list[JobRun] = []
    bound = current.restarts
    for record in sorted(same, key=lambda r: r.attempt.submit_time, reverse=True):
        if record.restarts >= bound:
            break
        bound = record.restarts
        found.append(record)
    return tuple(reversed(found))


def failed(run: JobRun) -> bool:
    """Return True if the run was judged and failed by itself: neither success, nor cancelled, nor preempted."""
    found = run.diagnosis
    if found is None or found.decision == "none" or found.category == "cancelled":
        return False
    return not (found.category == "job_preempted" and run.state in _PREEMPTED)


def _has_same_id(run: JobRun, current: JobRun) -> bool:
    return (run.attempt.cluster, run.attempt.job_id, run.uid) == (
        current.attempt.cluster,
        current.attempt.job_id,
        current.uid,
    )


def _make_entry(run: JobRun) -> Entry:
    assert run.diagnosis is not None
    alone = run.nodes[0] if len(run.nodes) == 1 else ""
    return Entry(
        category=run.diagnosis.category,
        entity=run.diagnosis.input_path,
        node=run.diagnosis.node or (alone if run.decision == "retry_elsewhere" else ""),
        exit_code=run.exit_code or 0,
        signal=run.signal or 0,
    )


def find_last_progress_time(runs: Sequence[JobRun]) -> int | None:
    """Return the SubmitTime of the latest run that went strictly beyond the best known before it; None if none did."""
    found = [
        _find_last_progress(runs, [_get_logged_step(run) for run in runs]),
        _find_last_progress(runs, list_counted_steps(runs)),
    ]
    return max((at for at in found if at is not None), default=None)


def _find_last_progress(runs: Sequence[JobRun], reached: Sequence[int | None]) -> int | None:
    best: int | None = None
    found: int | None = None
    for run, step in zip(runs, reached, strict=True):
        if step is None:
            continue
        if best is not None and step > best:
            found = run.attempt.submit_time
        best = step if best is None else max(best, step)
    return found


def _get_logged_step(run: JobRun) -> int | None:
    if run.diagnosis is None:
        return None
    known = [step for step in (run.diagnosis.step, run.diagnosis.checkpoint_step) if step is not None]
    return max(known, default=None)


def list_counted_steps(runs: Sequence[JobRun]) -> list[int | None]:
    """Return how far each run of one job came by its step counter, oldest first; None for runs without a count."""
    reached: list[int | None] = []
    base = 0
    for run in runs:
        begin = base if run.diagnosis is not None and run.diagnosis.resumed else 0
        steps = _get_counted_steps(run)
        reached.append(None if steps is None else begin + steps)
        base = max(base, _get_checkpoint_step(run) or 0)
    return reached


def _get_counted_steps(run: JobRun) -> int | None:
    return run.measurement.steps if run.measurement is not None else None


def _get_checkpoint_step(run: JobRun) -> int | None:
    return run.diagnosis.checkpoint_step if run.diagnosis is not None else None


def _compute_lost_gpu_hours(runs: Sequence[JobRun], since: float | None) -> float:
    """Return the GPU-hours of the failed runs, minus the share from which the next run continued.

    Whether the run after the newest one will resume is unknown. The checkpoint of the newest run counts as kept, unless
    an earlier run wrote one and the run after it did not resume: otherwise the first failure of a long run would use up
    the limit, although its next run repeats only the time since the checkpoint.
    """
    lost, base, resumes = 0.0, 0, True
    for index, run in enumerate(runs):
        after = runs[index + 1] if index + 1 < len(runs) else None
        if after is not None and _get_checkpoint_step(run):
            resumes = _has_resumed(after)
        kept = _compute_kept_share(run, base) if (resumes if after is None else _has_resumed(after)) else 0.0
        if failed(run) and not forgiven(run, since):
            lost += run.gpu_hours * (1 - kept)
        base = max(base, _get_checkpoint_step(run) or 0)
    return lost


def _has_resumed(run: JobRun) -> bool:
    return run.diagnosis is not None and run.diagnosis.resumed


def _compute_kept_share(run: JobRun, base: int) -> float:
    """Return the share of the run's steps up to its checkpoint, 0..1. It began at step `base` if it resumed."""
    found = run.diagnosis
    if found is None or found.checkpoint_step is None:
        return 0.0
    begin, counted = base if found.resumed else 0, _get_counted_steps(run)
    made = found.step - begin if found.step is not None else counted if counted is not None else 0
    return min(1.0, max(0.0, (found.checkpoint_step - begin) / made)) if made > 0 else 0.0


# Start of the next run: back-off with jitter, and the limit on retries per hour over all jobs. The jitter is derived
# from the job's own key. So a reconciler that was killed decides the same again, and a hundred jobs that failed in the
# same second do not restart in the same second.
HOUR_S = 3600.0
# Largest jitter, as a share of the wait.
JITTER = 0.25


def compute_backoff_s(base_s: int, spent: int, seed: str = "") -> int:
    """Return the seconds before the next run.

    The base is doubled with each failure of the same root cause, up to an hour; up to a quarter is added, derived from
    `seed`.
    """
    wait = min(HOUR_S, base_s * 2 ** min(spent, 10))
    return int(wait * (1 + JITTER * compute_spread(seed)))


def compute_spread(seed: str) -> float:
    """Return 0 <= x < 1, always the same for one seed; 0 without a seed."""
    if not seed:
        return 0.0
    return int.from_bytes(sha256(seed.encode("utf-8", "surrogatepass")).digest()[:4], "big") / 2**32


def find_next_start(starts: Iterable[float], earliest: float, per_hour: int) -> float:
    """Return the first moment from `earliest` on at which one more start keeps to `per_hour` starts in every hour.

    `starts`: Unix seconds of the other retries, past and planned. `per_hour` 0: no limit.
    """
    if per_hour <= 0:
        return earliest
    known = sorted(starts)
    later = sorted(start + HOUR_S for start in known if start + HOUR_S > earliest)
    return next(at for at in (earliest, *later) if _is_within_rate(known, at, per_hour))


def _is_within_rate(known: Sequence[float], at: float, per_hour: int) -> bool:
    # Sums of seconds as floats are not exact, so an hour is taken a little shorter.
    hour = HOUR_S - 0.001
    if bisect_right(known, at) - bisect_right(known, at - hour) >= per_hour:
        # A quick check, which rejects most of the moments in a long queue.
        return False
    near = known[bisect_right(known, at - hour) : bisect_left(known, at + hour)]
    together = sorted((*near, at))
    return all(last - first >= hour for first, last in zip(together, together[per_hour:], strict=False))
