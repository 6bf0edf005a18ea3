"""Sharing of pre-runs: one in flight per user, script, code and environment, for which later jobs of a sweep wait too.

A job that attaches to another job's pre-run waits like any other and has its own trial directory. The same verdict
releases it; a failure with other arguments proves nothing about it, so it then gets a trial of its own
(gsub/prerun_job.py). If a pre-run disappears without a verdict, all jobs that waited for it are released, at the latest
when their grace periods are over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError
from slurmwrap.gsub.waiting_job import (
    JobIdentity,
    has_user_changed_start_time,
    is_eligible,
    read_job_identity,
    start_action,
)
from slurmwrap.store import prerun_registry
from slurmwrap.store.prerun_registry import InflightPrerun, PrerunRegistry, WaitingJob

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
    from slurmwrap.model.job_record import JobRecord

_TRIES = 3  # attempts: between two reads of the registry one pre-run may end and another begin
# Files in a trial's directory:
GONE = "gone"  # the pre-run disappeared without a verdict, and the jobs that waited for it were released
GROUP = "group"  # the group that the pre-run is shared by, needed to remove its entry in the registry at its end
ATTACHED = "attached"  # the trial has no Slurm job of its own; the file holds the job id of the shared pre-run
OLD_S = 14 * 86400.0  # trials that were not modified for this time are removed


def attach_or_claim(prepared: PreparedJob, guest: WaitingJob, context: SubmitContext) -> InflightPrerun | None:
    """Attach `guest` to a pre-run in flight and return that; None if the job needs a pre-run of its own.

    In the latter case later jobs may attach to the new pre-run. Raise OSError if the state directory is not writable.
    """
    # The registry holds one pre-run per group. Try to attach to it; if it is dead, release its jobs, remove it and
    # claim the group. Another process may do the same at any moment, so the loop repeats if an attach or a claim fails.
    flights, group = context.flights, prepared.group
    if flights is None or not group:
        return None
    for _ in range(_TRIES):
        if prepared.prerun != "profile" and (found := flights.of(group)):
            if _is_alive(found, context):
                if prerun_registry.attach(found.directory, guest):
                    found = _wait_for_prerun_id(found, context)
                    with suppress(OSError):
                        (Path(guest.trial_dir) / ATTACHED).write_text(f"{found.job_id or 0}\n", encoding="ascii")
                    return found
            else:
                release_orphaned_jobs(found.directory, context)
            flights.drop(group, str(found.directory))
        if flights.claim(group, guest.trial_dir):
            (Path(guest.trial_dir) / GROUP).write_text(group, encoding="ascii")
            return None
        if prepared.prerun == "profile":
            # Another pre-run holds the group. This one is only for the CPU curve and is not shared.
            return None
    return None


def _wait_for_prerun_id(found: InflightPrerun, context: SubmitContext) -> InflightPrerun:
    """Wait up to 3 seconds for the job id of a pre-run that is being submitted, so that it can be printed."""
    for _ in range(60):
        if found.job_id is not None:
            break
        context.clock.sleep(0.05)
        found = prerun_registry.read_inflight_prerun(found.directory) or found
    return found


def withdraw_prerun(prepared: PreparedJob, directory: str, context: SubmitContext) -> None:
    """Remove a pre-run that could not be submitted from the registry, and release the jobs that attached to it."""
    if context.flights is None or not prepared.group or not directory:
        return
    context.flights.drop(prepared.group, directory)
    for guest in prerun_registry.close(Path(directory)):
        _release_waiting_job(guest, context, "the pre-run that it waited for could not be submitted")


def _is_alive(found: InflightPrerun, context: SubmitContext) -> bool:
    if found.job_id is None:
        return found.submitting(context.clock.now())
    try:
        record = context.slurm.job(str(found.job_id))
    except SlurmError:
        # Slurm does not answer. A job that attaches to a dead pre-run waits for its grace period at most.
        return True
    return _is_at_work(found, record)


def release_orphaned_jobs(directory: Path, context: SubmitContext) -> tuple[int, ...]:
    """Release the jobs that wait for a pre-run that disappeared without a verdict. Return their ids.

    This is done once per pre-run.
    """
    waiting = prerun_registry.close(directory)
    if not (directory / prerun_registry.VERDICT).exists():
        waiting = (*_read_main_job(directory), *waiting)
    gone = directory / GONE
    if not directory.is_dir() or gone.exists():
        return ()
    try:
        gone.touch()
    except OSError:
        # Without the mark, every later call would release the jobs again.
        return ()
    return tuple(guest.job_id for guest in waiting if _release_waiting_job(guest, context, "its pre-run is gone"))


def release_all_orphans(
    flights: PrerunRegistry, context: SubmitContext, *, older_than_s: float = 0.0
) -> tuple[int, ...]:
    """Release all jobs whose pre-run was cancelled or lost. Return their ids. Slurm is asked once for all pre-runs."""
    now = context.clock.now()
    found = [
        one
        for path in flights.trials()
        if not _is_settled(path) and (one := prerun_registry.read_inflight_prerun(path))
    ]
    open_ones = [one for one in found if now - one.since >= older_than_s and not one.submitting(now)]
    open_ones = [one for one in open_ones if _read_cluster(one.directory) == context.cluster]
    if not open_ones:
        return ()
    known = {record.job_id: record for record in context.slurm.jobs(context.user)}
    dead = [one for one in open_ones if not _is_running(one, known)]
    # Check again for a verdict: a pre-run writes it before its job ends, so it may have appeared since the first check.
    return tuple(
        job_id
        for one in dead
        if not _is_settled(one.directory)
        for job_id in release_orphaned_jobs(one.directory, context)
    )


def list_live_trials(context: SubmitContext) -> tuple[Path, ...]:
    """Return the directories of trials that have not ended."""
    return tuple(path for path in context.flights.trials() if not _is_settled(path)) if context.flights else ()


def _is_running(found: InflightPrerun, known: dict[int, JobRecord]) -> bool:
    return _is_at_work(found, known.get(found.job_id or -1))


def _is_at_work(found: InflightPrerun, record: JobRecord | None) -> bool:
    """Return whether the pre-run has not ended. A record of a later job with the same id does not count."""
    if record is None or record.ended:
        return False
    meant = _read_meant_job(found.directory)
    return meant is None or not meant.has_no_prerun_in(record)


def _is_settled(directory: Path) -> bool:
    """Return whether the trial needs no more attention: it has a verdict, is attached to another, or was found dead."""
    return any((directory / name).exists() for name in (prerun_registry.VERDICT, GONE, ATTACHED))


def _read_cluster(directory: Path) -> str:
    """Return the cluster of the trial's job ids, since clusters may share a home directory; "" if it is unreadable."""
    try:
        return str(json.loads((directory / "spec.json").read_bytes())["cluster"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _read_main_job(directory: Path) -> Iterable[WaitingJob]:
    try:
        job_id = json.loads((directory / "spec.json").read_bytes())["real_job"]
        release_at = json.loads((directory / "waiting.json").read_bytes())["release_at"]
        return [WaitingJob(job_id=int(job_id), release_at=release_at, trial_dir=str(directory))] if job_id else []
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read_given_begin_times(directory: Path) -> tuple[float, ...]:
    """Return the begin times that gsub may have set for the job of this trial; () if they cannot be read."""
    try:
        return tuple(float(at) for at in json.loads((directory / "waiting.json").read_bytes())["given"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _read_meant_job(directory: Path) -> JobIdentity | None:
    """Return the identity of the trial's job as it was submitted; None if it cannot be read."""
    try:
        return read_job_identity(json.loads((directory / "waiting.json").read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _release_waiting_job(guest: WaitingJob, context: SubmitContext, reason: str) -> bool:
    """Release a job that still waits for its begin time, and return whether that succeeded.

    A job that runs, has ended or got another start time from its user is left alone, and so is a later job with the
    same id.
    """
    try:
        record = context.slurm.job(str(guest.job_id))
        if record is None or not record.pending:
            return False
        if (meant := _read_meant_job(Path(guest.trial_dir))) and meant.is_not(record):
            context.say(f"job {guest.job_id} is left alone: Slurm gave the id to another job since")
            return False
        if has_user_changed_start_time(record, _read_given_begin_times(Path(guest.trial_dir)), context.clock.now()):
            return False
        if is_eligible(record, context.clock.now()):
            return False
        # If tasks of an array have started, address only those that still wait.
        address = record.waiting_address or str(guest.job_id)
        context.slurm.apply(start_action(address, guest.release_at, reason))
    except SlurmError as error:
        context.say(f"job {guest.job_id} could not be released ({error}); it starts by itself after its grace time")
        return False
    context.say(f"job {guest.job_id} was released: {reason}")
    return True
