"""Whether a run of the very same script, code and arguments completed: the best pass there is."""

from __future__ import annotations

from functools import partial

from slurmwrap.digest import sha256_hex
from slurmwrap.errors import SlurmError
from slurmwrap.gsub.remember import keep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.sbatch.request import JobRequest

_ASKED = 2  # newest submissions about which Slurm is asked, one call each
_CLOCKS_S = 60.0  # the controller's clock and ours


def has_completed_before(request: JobRequest, desk: SubmitContext, mark: str) -> bool:
    """By what is remembered or, for the newest runs whose end no one has judged yet, by Slurm, which forgets a job
    some minutes after its end (MinJobAge). What Slurm says is remembered."""
    script = sha256_hex(request.script.content)
    if desk.memory.completed(script, mark):
        return True
    for job_id, submitted_at in desk.memory.unjudged(script, mark, desk.cluster)[:_ASKED]:
        try:
            record = desk.slurm.job(str(job_id))
        except SlurmError:
            return False
        if record is not None and _is_completed_run(record, submitted_at, desk.uid):
            at = float(record.end_time or desk.clock.now())
            keep(partial(desk.memory.remember_completed, mark, at), desk)
            return True
    return False


def _is_completed_run(record: JobRecord, submitted_at: float, uid: int) -> bool:
    """Whether this is the job that was submitted then, and ended well. Of an array it is one task, which says nothing
    of the others; a step that failed behind an exit code of 0 is no success."""
    same = record.uid == uid and record.submit_time >= submitted_at - _CLOCKS_S
    well = record.state == "COMPLETED" and not (record.exit_code or record.signal or record.derived_exit_code)
    return same and well and record.array_job_id is None
