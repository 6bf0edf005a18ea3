"""Jobs of --prerun=gate whose pre-run is gone: no one else would ever release them. Each pass looks after them.

Only Slurm's own record counts: the job still waits for the far begin time that gsub gave it, and its pre-run ended, or
is forgotten, without having changed that. A user speaks for their own job alone, and may move its start themselves.
"""

from __future__ import annotations

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.model.action import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.submission import Submission
from slurmwrap.reconcile.reconcile_context import ReconcilePass
from slurmwrap.sbatch.begin import select_later_begin

# A begin time this far behind the submission is the gate's (gsub/send.py: a year).
_FAR_S = 180 * 86400
# A pre-run that has just ended may still be heard of.
_SETTLE_S = 60


def release_gates(run: ReconcilePass) -> None:
    """Lets go what waits for a pre-run that is gone."""
    for job in filter(_is_waiting_for_begin_time, run.words.first.values()):
        submission = run.edges.store.submission(run.book.cluster, job.job_id)
        if submission is None or not _is_gate_submission(submission, job) or not _is_prerun_gone(submission, run):
            continue
        action = SlurmAction(
            verb=Verb.UPDATE_JOB,
            # Of an array what waits: its user may start a task.
            target=job.waiting_address or str(submission.job_id),
            key="StartTime",
            value=release_at(submission),
            reason="its pre-run is gone without a verdict",
        )
        try:
            run.edges.slurm.apply(action)
            run.edges.say(f"job {submission.job_id} was released: {action.reason}")
        except SlurmUnreachable:
            raise
        except SlurmError as error:
            run.summary.errors.append(f"job {submission.job_id}: {error}")


def release_at(submission: Submission) -> str:
    """The StartTime that the job would have had without its gate."""
    changed = next((change for change in submission.changes if change.get("option") == "begin"), None)
    own = changed.get("old") if changed else None
    return select_later_begin(str(own) if own else None, 0, submission.at)[1]


def _is_waiting_for_begin_time(job: JobRecord) -> bool:
    far = job.eligible_time is None or job.eligible_time > job.submit_time + _FAR_S
    return job.pending and job.reason == "BeginTime" and far


def _is_gate_submission(submission: Submission, job: JobRecord) -> bool:
    return submission.prerun_mode == "gate" and submission.uid == job.uid


def _is_prerun_gone(submission: Submission, run: ReconcilePass) -> bool:
    if submission.prerun_job_id is None:
        return run.now > submission.at + _SETTLE_S
    prerun = run.words.first.get(submission.prerun_job_id)
    if prerun is None:
        return run.now > submission.at + _SETTLE_S
    return prerun.ended and run.now > (prerun.end_time or prerun.submit_time) + _SETTLE_S
