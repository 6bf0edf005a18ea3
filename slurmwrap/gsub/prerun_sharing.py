"""One pre-run in flight per user, script, code and environment: a sweep's later jobs wait for the first one's.

A job that attached has its gate and its own trial directory like any other, and is released by the same verdict (see
gsub/prerun_job.py: a failure of other arguments proves nothing about it, so it then gets a trial of its own). A
pre-run that is gone without a verdict releases all that waited for it, at the latest when the grace of each is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError
from slurmwrap.gsub.waiting_job import JobIdentity, has_user_changed_start_time, read_job_identity, start_action
from slurmwrap.store import prerun_registry
from slurmwrap.store.prerun_registry import InflightPrerun, PrerunRegistry, WaitingJob

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
    from slurmwrap.model.job_record import JobRecord

_TRIES = 3  # a pre-run may end, and another begin, between our looks
GONE = "gone"  # file in a trial's directory: its pre-run is gone without a verdict, and what waited was released
GROUP = "group"  # file in a trial's directory: what it speaks for, so that its end can be written to the pointer
ATTACHED = "attached"  # file in a trial's directory: no Slurm job of its own, but that of this id
OLD_S = 14 * 86400.0  # trials that nothing touched for so long are removed


def attach_or_claim(prepared: PreparedJob, guest: WaitingJob, context: SubmitContext) -> InflightPrerun | None:
    """The pre-run in flight that `guest` now waits for; None: the job needs one of its own, and others may attach to
    it. OSError where the state directory cannot be written."""
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
            # Another one speaks for the group; this one measures.
            return None
    return None


def _wait_for_prerun_id(found: InflightPrerun, context: SubmitContext) -> InflightPrerun:
    """Waits a moment for a pre-run that is being submitted, so that its id can be printed."""
    for _ in range(60):
        if found.job_id is not None:
            break
        context.clock.sleep(0.05)
        found = prerun_registry.read_flight(found.directory) or found
    return found


def withdraw_prerun(prepared: PreparedJob, directory: str, context: SubmitContext) -> None:
    """The pre-run could not be submitted: no one shall wait for it."""
    if context.flights is None or not prepared.group or not directory:
        return
    context.flights.drop(prepared.group, directory)
    for guest in prerun_registry.close(Path(directory)):
        _start(guest, context, "the pre-run that it waited for could not be submitted")


def _is_alive(found: InflightPrerun, context: SubmitContext) -> bool:
    if found.job_id is None:
        return found.submitting(context.clock.now())
    try:
        record = context.slurm.job(str(found.job_id))
    except SlurmError:
        # No one knows; who attaches to a dead one waits for its grace at most.
        return True
    return _is_at_work(found, record)


def release_orphaned_jobs(directory: Path, context: SubmitContext) -> tuple[int, ...]:
    """Lets go what waits for a pre-run that is gone without a verdict; returns the job ids. Once per pre-run."""
    waiting = prerun_registry.close(directory)
    if not (directory / prerun_registry.VERDICT).exists():
        waiting = (*_read_main_job(directory), *waiting)
    gone = directory / GONE
    if not directory.is_dir() or gone.exists():
        return ()
    try:
        gone.touch()
    except OSError:
        # Else it would be done again and again.
        return ()
    return tuple(guest.job_id for guest in waiting if _start(guest, context, "its pre-run is gone"))


def release_all_orphans(
    flights: PrerunRegistry, context: SubmitContext, *, older_than_s: float = 0.0
) -> tuple[int, ...]:
    """Lets go the jobs whose pre-run was cancelled, lost or forgotten; returns their ids. One question to Slurm."""
    now = context.clock.now()
    found = [one for path in flights.trials() if not _is_settled(path) and (one := prerun_registry.read_flight(path))]
    open_ones = [one for one in found if now - one.since >= older_than_s and not one.submitting(now)]
    open_ones = [one for one in open_ones if _read_cluster(one.directory) == context.cluster]
    if not open_ones:
        return ()
    known = {record.job_id: record for record in context.slurm.jobs(context.user)}
    dead = [one for one in open_ones if not _is_running(one, known)]
    # read again: a pre-run writes its verdict before its job ends
    return tuple(
        job_id
        for one in dead
        if not _is_settled(one.directory)
        for job_id in release_orphaned_jobs(one.directory, context)
    )


def list_live_trials(context: SubmitContext) -> tuple[Path, ...]:
    """Directories of trials that are not at their end."""
    return tuple(path for path in context.flights.trials() if not _is_settled(path)) if context.flights else ()


def _is_running(found: InflightPrerun, known: dict[int, JobRecord]) -> bool:
    return _is_at_work(found, known.get(found.job_id or -1))


def _is_at_work(found: InflightPrerun, record: JobRecord | None) -> bool:
    """Whether the pre-run has not ended: another job may have its id since."""
    if record is None or record.ended:
        return False
    meant = _read_meant_job(found.directory)
    return meant is None or not meant.has_no_prerun_in(record)


def _is_settled(directory: Path) -> bool:
    """Its verdict was acted upon, its job waits for another one's, or it was found dead before."""
    return any((directory / name).exists() for name in (prerun_registry.VERDICT, GONE, ATTACHED))


def _read_cluster(directory: Path) -> str:
    """The cluster that its job ids are of: several may share a home. "" when it cannot be read, which is none."""
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
    """The begin times that gsub may have given the job of this trial; () when they cannot be read."""
    try:
        return tuple(float(at) for at in json.loads((directory / "waiting.json").read_bytes())["given"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _read_meant_job(directory: Path) -> JobIdentity | None:
    """The job of this trial as it was submitted; None when that cannot be read."""
    try:
        return read_job_identity(json.loads((directory / "waiting.json").read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _start(guest: WaitingJob, context: SubmitContext, reason: str) -> bool:
    """Only a job that waits for its time: what runs, ended, or was given another time by its user stays as it is, and
    so does another job that has the id now."""
    try:
        record = context.slurm.job(str(guest.job_id))
        if record is None or not record.pending:
            return False
        if (meant := _read_meant_job(Path(guest.trial_dir))) and meant.is_not(record):
            context.say(f"job {guest.job_id} is left alone: Slurm gave the id to another job since")
            return False
        if has_user_changed_start_time(record, _read_given_begin_times(Path(guest.trial_dir)), context.clock.now()):
            return False
        # A task of an array may have begun: of the rest.
        address = record.waiting_address or str(guest.job_id)
        context.slurm.apply(start_action(address, guest.release_at, reason))
    except SlurmError as error:
        context.say(f"job {guest.job_id} could not be released ({error}); it starts by itself after its grace time")
        return False
    context.say(f"job {guest.job_id} was released: {reason}")
    return True
