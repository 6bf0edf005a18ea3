"""Start the pre-run of a job that Slurm has accepted: attach to one in flight or submit one, else release the job."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub.prerun_sharing import attach_or_claim, withdraw_prerun
from slurmwrap.gsub.submit_context import get_last_line
from slurmwrap.gsub.waiting_job import UNBOUNDED_S, start_action
from slurmwrap.sbatch.begin import select_later_begin
from slurmwrap.store.prerun_registry import VERDICT, WaitingJob, mark_submitted

if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import MakeTrial, PreparedJob, SubmitContext, SubmitResult


def start_trial(
    prepared: PreparedJob,
    sent: SubmitResult,
    job_id: int,
    release_at: str,
    context: SubmitContext,
    make_trial: MakeTrial,
) -> SubmitResult:
    """Attach the job to a pre-run in flight, or submit one. If that fails in any way, release the real job at once."""
    directory = ""
    try:
        job = make_trial(prepared, job_id, release_at)
        directory = job.directory
        guest = WaitingJob(job_id=job_id, release_at=release_at, trial_dir=directory)
        if host := attach_or_claim(prepared, guest, context):
            _hold_until_verdict(prepared, guest, host.directory, context)
            return replace(sent, trial_dir=directory, attached_to=host.job_id or 0)
        result = context.slurm.sbatch(job.call)
        why_not = "" if result.job_id is not None else get_last_line(result.stderr)
    except (OSError, SlurmwrapError, KeyboardInterrupt) as error:
        why_not = str(error) or "interrupted"
    except Exception as error:
        # Slurm already has the job, so a bug in slurmwrap must not hide its job id from the user.
        why_not = f"{type(error).__name__}: {error}"
    if why_not or result.job_id is None:
        context.say(f"no pre-run: {why_not}; job {job_id} starts without")
        withdraw_prerun(prepared, directory, context)
        if not prepared.keeps_place:
            _release_job(job_id, release_at, context)
        return sent
    with suppress(OSError):
        mark_submitted(directory, result.job_id)
    _hold_until_verdict(prepared, guest, Path(directory), context)
    return replace(sent, trial=result, trial_dir=directory)


def _hold_until_verdict(prepared: PreparedJob, guest: WaitingJob, directory: Path, context: SubmitContext) -> None:
    """With --prerun=gate, remove the bound of the job's wait, now that there is a pre-run.

    If it were removed earlier and gsub were killed before the pre-run's submission, the job would wait forever. If the
    pre-run already has a verdict, the job is released again.
    """
    if prepared.prerun != "gate":
        return
    begin, _ = select_later_begin(prepared.request.value("begin"), UNBOUNDED_S, context.clock.now())
    address = str(guest.job_id)
    try:
        context.slurm.apply(start_action(address, begin, "waits for its verdict without bound"))
        if (directory / VERDICT).exists():
            context.slurm.apply(start_action(address, guest.release_at, "its pre-run is done"))
    except SlurmError as error:
        context.say(f"job {address} does not wait for its verdict without bound ({error})")


def _release_job(job_id: int, release_at: str, context: SubmitContext) -> None:
    action = start_action(str(job_id), release_at, "the pre-run could not be submitted")
    try:
        context.slurm.apply(action)
    except SlurmError as error:
        context.say(f"job {job_id} could not be released now ({error}); it starts by itself after the grace time")
