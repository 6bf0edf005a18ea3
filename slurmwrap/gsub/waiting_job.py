"""Check whether a job id still belongs to the submitted job, and whether gsub's begin time is still in force. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.sbatch.begin import parse_begin_time, select_later_begin

if TYPE_CHECKING:
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.sbatch.job_request import JobRequest


# Tolerated difference between the clocks of the controller and of this host.
_CLOCKS_S = 60.0
# Maximum time that sbatch may retry until the controller accepts a job.
_SBATCH_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """What gsub knows about a job right after its submission without asking Slurm again."""

    name: str
    # The name of its pre-run.
    prerun: str
    work_dir: str
    # Unix seconds by which Slurm had accepted the job.
    before: float

    def is_not(self, record: JobRecord) -> bool:
        """Return whether Slurm's `record` describes another job."""
        if record.submit_time > self.before + _CLOCKS_S:
            return True
        return bool(record.name and record.work_dir) and record.name != self.name and record.work_dir != self.work_dir

    def has_no_prerun_in(self, record: JobRecord) -> bool:
        """Return whether `record` is not this job's pre-run, which gsub submitted next and no user renames."""
        late = record.submit_time > self.before + _SBATCH_S + _CLOCKS_S
        return late or (bool(record.name) and record.name != self.prerun)


def make_job_identity(request: JobRequest, before: float) -> JobIdentity:
    """Return the identity of the job that was submitted from `request`."""
    return JobIdentity(name=request.job_name, prerun=request.prerun_name, work_dir=request.chdir, before=before)


def read_job_identity(plain: object) -> JobIdentity | None:
    """Return the identity from the output of `asdict`; None for anything else, such as files of an earlier version."""
    try:
        return JobIdentity(**plain)  # type: ignore[arg-type]
    except TypeError:
        return None


# Delay for --prerun=gate: practically unlimited, and still accepted by Slurm.
UNBOUNDED_S = 365 * 86400
# Tolerance for begin times: sbatch may retry for two minutes before the controller accepts the job.
_SLACK_S = 180.0


def list_expected_start_times(own_begin: str | None, grace_s: int, now: float) -> tuple[float, ...]:
    """Return the begin times that gsub may set for the job, in Unix seconds: after its grace period, and as a gate.

    Return () if the user's own --begin cannot be parsed: then the times are not known.
    """
    times = (parse_begin_time(select_later_begin(own_begin, bound, now)[0], now) for bound in (grace_s, UNBOUNDED_S))
    return tuple(time for time in times if time is not None)


def is_as_given(at: float, given: Sequence[float], eligible_since: float) -> bool:
    """Return whether the begin time `at` was set by slurmwrap.

    If a dependency is met later than the begin time, Slurm reports that moment (EligibleTime; measured, Slurm 22.05).
    """
    return any(abs(at - max(time, eligible_since)) <= _SLACK_S for time in given)


def has_user_changed_start_time(record: JobRecord, given: Sequence[float], now: float) -> bool:
    """Return whether someone set another start time in the future (`scontrol update StartTime=`).

    A verdict must not move the job before that time.
    """
    at = record.eligible_time
    return bool(given) and at is not None and at > now and not is_as_given(at, given, 0.0)


def is_eligible(record: JobRecord, now: float) -> bool:
    """Return whether no begin time keeps the job from starting, so that it needs no release.

    A new StartTime would only move its EligibleTime, from which Slurm counts its age.
    """
    return record.eligible_time is not None and record.eligible_time <= now


def start_action(address: str, release_at: str, reason: str) -> SlurmAction:
    """Return the update of StartTime that releases a waiting job."""
    return SlurmAction(verb=Verb.UPDATE_JOB, target=address, key="StartTime", value=release_at, reason=reason)
