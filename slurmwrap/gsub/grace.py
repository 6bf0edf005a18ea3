"""A pre-run that waited for its job's dependency speaks first all the same.

Both are eligible from the moment at which the dependency is met. Where the job's grace was over by then, its pre-run's
first act is to give it a new one, counted from that moment: so the job is never delayed by more than its grace.
"""

from __future__ import annotations

from collections.abc import Callable
from time import localtime, strftime
from typing import TYPE_CHECKING

from slurmwrap.gsub.apply_verdict import find_waiting_job
from slurmwrap.gsub.release import start_action
from slurmwrap.gsub.start_time import is_as_given

if TYPE_CHECKING:
    from slurmwrap.gsub.apply_verdict import HeldJob
    from slurmwrap.gsub.submit_context import SubmitContext

_WORTH = 0.1  # of a grace: less is not worth another update


def extend_grace(waiting: HeldJob, grace_s: float, desk: SubmitContext, note: Callable[[float], None]) -> float | None:
    """Moves the job's StartTime; returns it (Unix seconds), or None where the job is left as it is.

    A start that its user has moved stays, and so does a job that has started. `note` is told the new time before Slurm
    is: anyone who releases the job must know it for ours. SlurmError when Slurm does not answer or refuses.
    """
    if waiting.job_id is None or not waiting.request.value("dependency"):
        return None
    own = desk.slurm.job(str(waiting.prerun_job_id))
    if own is None or own.eligible_time is None:
        return None
    until = own.eligible_time + grace_s
    if until <= desk.clock.now():
        return None
    record = find_waiting_job(waiting.job_id, desk, waiting.job)
    if record is None or record.eligible_time is None or until - record.eligible_time < _WORTH * grace_s:
        return None
    if not is_as_given(record.eligible_time, waiting.given, own.eligible_time):
        return None
    note(until)
    start = strftime("%Y-%m-%dT%H:%M:%S", localtime(until))
    address = record.waiting_address or str(waiting.job_id)
    desk.slurm.apply(start_action(address, start, "its dependency is met: the pre-run goes first"))
    return until
