"""Counts what gsub's waiting jobs wait for: fair share or fragmentation (Philly, ATC 2019; placement/fragmentation.py).

Each look adds the time since the one before to what the job waited for then. What is counted up to which moment is
stored, so that a restart counts nothing twice and loses nothing. Who looks only after a longer pause does not guess:
that time is unknown. A requeue makes another run, with a count of its own.
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
from slurmwrap.policy.run_from_slurm import key_of
from slurmwrap.reconcile.pending_jobs import list_pending_gsub_jobs
from slurmwrap.reconcile.reconcile_context import ReconcilePass

FAIR_SHARE, FRAGMENTATION = "fair share", "fragmentation"
GAP_S = 600.0  # a longer time between two looks is unknown
_STEP_S = 60.0  # it is stored so often, and when what a job waits for changes
_LOOKS = 500  # at where a job fits, in one pass: 4 ms each on 10,000 nodes
# squeue(1), "JOB REASON CODES", that may mean that no place fits it. All others are priority, limits, licences.
_NO_PLACE = ("Resources", "ReqNodeNotAvail", "BadConstraints", "Nodes")


def count_delays(this_pass: ReconcilePass) -> None:
    """One look at every waiting job of gsub's that wants GPUs. Costs nothing where there is none."""
    known = _read_open_delays(this_pass)
    waiting = {key_of(job, this_pass.book.cluster): job for job in list_pending_gsub_jobs(this_pass) if job.gpus}
    if not known and not waiting:
        return
    changed = [*_update_waiting(waiting, known, this_pass), *_close_ended(waiting, known, this_pass)]
    if not changed:
        return
    with this_pass.edges.store.transaction():
        for delay in changed:
            this_pass.edges.store.save_delay(delay)
    known.update({delay.attempt: delay for delay in changed})
    for delay in changed:
        if delay.over:
            del known[delay.attempt]


def count_and_wait_for(delay: QueueDelay, waits_for: str, until: float) -> QueueDelay:
    """`delay` counted up to `until` and from there on for `waits_for`."""
    return replace(count_delay(delay, until), waits_for=waits_for)


def count_delay(delay: QueueDelay, until: float) -> QueueDelay:
    """The time since the last look goes to what the job waited for then; too long a time to no one."""
    passed = until - delay.seen_at
    if passed <= 0:
        return delay
    if passed > GAP_S or not delay.waits_for:
        return replace(delay, seen_at=until, unknown_s=delay.unknown_s + passed)
    if delay.waits_for == FRAGMENTATION:
        return replace(delay, seen_at=until, fragmentation_s=delay.fragmentation_s + passed)
    return replace(delay, seen_at=until, fair_share_s=delay.fair_share_s + passed)


def _read_open_delays(this_pass: ReconcilePass) -> dict[RunKey, QueueDelay]:
    """Counts that are not over, read once."""
    if this_pass.book.delays is None:
        found = this_pass.edges.store.delays(open_only=True)
        this_pass.book.delays = {
            delay.attempt: delay for delay in found if delay.attempt.cluster == this_pass.book.cluster
        }
    return this_pass.book.delays


def _update_waiting(
    waiting: dict[RunKey, JobRecord], known: dict[RunKey, QueueDelay], this_pass: ReconcilePass
) -> Iterator[QueueDelay]:
    looks = 0
    for key, job in sorted(waiting.items(), key=lambda one: known[one[0]].seen_at if one[0] in known else 0.0):
        looks += job.reason.startswith(_NO_PLACE)
        if looks > _LOOKS:
            # The others' turn is in the next pass: their time goes to what they wait for since the last look.
            return
        if not is_waiting(job, this_pass.now):
            # Held, or its begin was moved: no one keeps it waiting.
            if key in known and known[key].waits_for:
                yield count_and_wait_for(known[key], "", this_pass.now)
            continue
        found = find_wait_reason(job, this_pass.book.submitted[key], this_pass)
        before = known.get(key) or _find_earlier_delay(key, this_pass) or _make_first_delay(key, job, found)
        # It was held until now.
        if before.waits_for == "":
            yield replace(before, seen_at=this_pass.now, waits_for=found)
        elif key not in known or found != before.waits_for or this_pass.now - before.seen_at >= _STEP_S:
            yield count_and_wait_for(before, found, this_pass.now)


def _close_ended(
    waiting: dict[RunKey, JobRecord], known: dict[RunKey, QueueDelay], this_pass: ReconcilePass
) -> Iterator[QueueDelay]:
    for key, delay in known.items():
        if key in waiting:
            continue
        job = this_pass.words.first.get(key.job_id)
        if job is None and this_pass.now - delay.seen_at < GAP_S:
            # squeue may miss a job once
            continue
        mine = job is not None and job.submit_time == key.submit_time
        end = job.start_time or job.end_time if job is not None and mine else None
        last = count_delay(delay, min(this_pass.now, float(end))) if end is not None and delay.waits_for else delay
        yield replace(last, over=True)


def _find_earlier_delay(key: RunKey, this_pass: ReconcilePass) -> QueueDelay | None:
    """A count that was thought to be over."""
    found = this_pass.edges.store.delays(job_id=key.job_id)
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
    """What keeps it waiting at this moment."""
    if submission.shape is None or not job.reason.startswith(_NO_PLACE):
        return FAIR_SHARE
    insists = any(change.get("option") == "switches" and change.get("new") for change in submission.changes)
    found = is_scattered(job, submission.shape, this_pass.snapshot(), one_domain=insists)
    return FRAGMENTATION if found else FAIR_SHARE
