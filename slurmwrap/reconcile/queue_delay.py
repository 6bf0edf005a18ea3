"""Count what gsub's pending jobs wait for: fair share or fragmentation (Philly, ATC 2019; placement/fragmentation.py).

Each look adds the time since the previous look to what the job waited for at that time. The counts and the time up to
which they are valid are stored, so that a restart counts nothing twice and loses nothing. After a longer pause the time
in between counts as unknown. A requeue starts a new run with a count of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import QueueDelay
from slurmwrap.model.submission import Submission
from slurmwrap.placement.fragmentation import is_scattered
from slurmwrap.placement.relaxation import is_waiting
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.reconcile.pending_job_updates import list_pending_gsub_jobs
from slurmwrap.reconcile.reconcile_context import ReconcilePass

FAIR_SHARE, FRAGMENTATION = "fair share", "fragmentation"
# A longer time between two looks counts as unknown.
GAP_S = 600.0
# A count is stored this often, and when the reason of the wait changes.
_STORE_EVERY_S = 60.0
# Number of fit checks in one pass. One takes 4 ms on 10,000 nodes.
_MOST_CHECKS = 500
# Reasons of squeue(1), "JOB REASON CODES", that may mean that the job fits nowhere. The others mean priority, limits or
# licenses.
_NO_PLACE = ("Resources", "ReqNodeNotAvail", "BadConstraints", "Nodes")


def count_delays(this_pass: ReconcilePass) -> None:
    """Look once at every pending gsub job that requests GPUs. Without such jobs there is no cost."""
    known = _read_open_delays(this_pass)
    waiting = {
        run_key_from_job(job, this_pass.book.cluster): job for job in list_pending_gsub_jobs(this_pass) if job.gpus
    }
    if not known and not waiting:
        return
    changed = [*_update_waiting(waiting, known, this_pass), *_close_ended(waiting, known, this_pass)]
    if not changed:
        return
    with this_pass.services.store.transaction():
        for delay in changed:
            this_pass.services.store.save_delay(delay)
    known.update({delay.attempt: delay for delay in changed})
    for delay in changed:
        if delay.over:
            del known[delay.attempt]


def count_and_wait_for(delay: QueueDelay, waits_for: str, until: float) -> QueueDelay:
    """Return `delay` counted up to `until`, and from then on waiting for `waits_for`."""
    return replace(count_delay(delay, until), waits_for=waits_for)


def count_delay(delay: QueueDelay, until: float) -> QueueDelay:
    """Return `delay` with the time since the last look added to its reason, or to unknown if that is too long ago."""
    passed = until - delay.seen_at
    if passed <= 0:
        return delay
    if passed > GAP_S or not delay.waits_for:
        return replace(delay, seen_at=until, unknown_s=delay.unknown_s + passed)
    if delay.waits_for == FRAGMENTATION:
        return replace(delay, seen_at=until, fragmentation_s=delay.fragmentation_s + passed)
    return replace(delay, seen_at=until, fair_share_s=delay.fair_share_s + passed)


def _read_open_delays(this_pass: ReconcilePass) -> dict[RunKey, QueueDelay]:
    """Return the counts that are not over. They are read once."""
    if this_pass.book.delays is None:
        found = this_pass.services.store.delays(open_only=True)
        this_pass.book.delays = {
            delay.attempt: delay for delay in found if delay.attempt.cluster == this_pass.book.cluster
        }
    return this_pass.book.delays


def _update_waiting(
    waiting: dict[RunKey, JobRecord], known: dict[RunKey, QueueDelay], this_pass: ReconcilePass
) -> Iterator[QueueDelay]:
    checks = 0
    for key, job in sorted(waiting.items(), key=lambda one: known[one[0]].seen_at if one[0] in known else 0.0):
        checks += job.reason.startswith(_NO_PLACE)
        if checks > _MOST_CHECKS:
            # The remaining jobs come first in the next pass. Their time then counts for the reason of their last look.
            return
        if not is_waiting(job, this_pass.now):
            # It is held or its begin time was moved: it does not wait for Slurm.
            if key in known and known[key].waits_for:
                yield count_and_wait_for(known[key], "", this_pass.now)
            continue
        found = find_wait_reason(job, this_pass.book.submitted[key], this_pass)
        before = known.get(key) or _find_earlier_delay(key, this_pass) or _make_first_delay(key, job, found)
        # It was held until now.
        if before.waits_for == "":
            yield replace(before, seen_at=this_pass.now, waits_for=found)
        elif key not in known or found != before.waits_for or this_pass.now - before.seen_at >= _STORE_EVERY_S:
            yield count_and_wait_for(before, found, this_pass.now)


def _close_ended(
    waiting: dict[RunKey, JobRecord], known: dict[RunKey, QueueDelay], this_pass: ReconcilePass
) -> Iterator[QueueDelay]:
    for key, delay in known.items():
        if key in waiting:
            continue
        job = this_pass.words.first.get(key.job_id)
        if job is None and this_pass.now - delay.seen_at < GAP_S:
            continue  # squeue may miss a job once.
        mine = job is not None and job.submit_time == key.submit_time
        end = job.start_time or job.end_time if job is not None and mine else None
        last = count_delay(delay, min(this_pass.now, float(end))) if end is not None and delay.waits_for else delay
        yield replace(last, over=True)


def _find_earlier_delay(key: RunKey, this_pass: ReconcilePass) -> QueueDelay | None:
    """Return a stored count of this run that was closed too early; None if there is none."""
    found = this_pass.services.store.delays(job_id=key.job_id)
    return next((replace(d, over=False, waits_for="") for d in found if d.attempt == key), None)


def _make_first_delay(key: RunKey, job: JobRecord, waits_for: str) -> QueueDelay:
    since = float(job.eligible_time or 0)
    return QueueDelay(
        attempt=key,
        address=job.address,
        user=job.user,
        gpus=job.gpus,
        eligible_at=since,
        seen_at=since,
        waits_for=waits_for,
    )


def find_wait_reason(job: JobRecord, submission: Submission, this_pass: ReconcilePass) -> str:
    """Return what keeps the job waiting at this moment."""
    if submission.shape is None or not job.reason.startswith(_NO_PLACE):
        return FAIR_SHARE
    insists = any(change.get("option") == "switches" and change.get("new") for change in submission.changes)
    found = is_scattered(job, submission.shape, this_pass.snapshot(), one_domain=insists)
    return FRAGMENTATION if found else FAIR_SHARE
