"""Whether a job id is still the job of this submission, and whether it still waits for the begin time of gsub. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.sbatch.begin import parse_begin_time, select_later_begin

if TYPE_CHECKING:
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.sbatch.job_request import JobRequest


# The controller's clock and ours.
_CLOCKS_S = 60.0
# So long sbatch may try until the controller takes a job.
_SBATCH_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """What is known of a job right after its submission, without another question to Slurm."""

    name: str
    # The name of its pre-run.
    prerun: str
    work_dir: str
    # Unix seconds: Slurm had it by then.
    before: float

    def is_not(self, record: JobRecord) -> bool:
        """Whether Slurm's `record` is of another job."""
        if record.submit_time > self.before + _CLOCKS_S:
            return True
        return bool(record.name and record.work_dir) and record.name != self.name and record.work_dir != self.work_dir

    def has_no_prerun_in(self, record: JobRecord) -> bool:
        """Whether `record` is not of this job's pre-run, which was submitted next (no one renames it)."""
        late = record.submit_time > self.before + _SBATCH_S + _CLOCKS_S
        return late or (bool(record.name) and record.name != self.prerun)


def make_job_identity(request: JobRequest, before: float) -> JobIdentity:
    """The job that was made of `request`."""
    return JobIdentity(name=request.job_name, prerun=request.prerun_name, work_dir=request.chdir, before=before)


def read_job_identity(plain: object) -> JobIdentity | None:
    """What `asdict` made of it; None for anything else, as an earlier version left it."""
    try:
        return JobIdentity(**plain)  # type: ignore[arg-type]
    except TypeError:
        return None


# --prerun=gate: as good as without bound, and Slurm still accepts it
UNBOUNDED_S = 365 * 86400
# sbatch may try for two minutes before the controller takes the job
_SLACK_S = 180.0


def list_expected_start_times(own_begin: str | None, grace_s: int, now: float) -> tuple[float, ...]:
    """The begin times that the job may have from us, in Unix seconds: behind its grace, and as a gate.

    () where the user's own --begin is not understood: then nothing is known.
    """
    times = (parse_begin_time(select_later_begin(own_begin, bound, now)[0], now) for bound in (grace_s, UNBOUNDED_S))
    return tuple(time for time in times if time is not None)


def is_as_given(at: float, given: Sequence[float], eligible_since: float) -> bool:
    """Whether a begin time is one of slurmwrap's. With a dependency that was met later than it, it is that moment
    (measured,
    Slurm 22.05: EligibleTime)."""
    return any(abs(at - max(time, eligible_since)) <= _SLACK_S for time in given)


def has_user_changed_start_time(record: JobRecord, given: Sequence[float], now: float) -> bool:
    """Someone set another start that is still to come (`scontrol update StartTime=`): no verdict shortens that."""
    at = record.eligible_time
    return bool(given) and at is not None and at > now and not is_as_given(at, given, 0.0)


# The update that ends a job's waiting.
def start_action(address: str, release_at: str, reason: str) -> SlurmAction:
    """The update that makes a waiting job eligible."""
    return SlurmAction(verb=Verb.UPDATE_JOB, target=address, key="StartTime", value=release_at, reason=reason)
