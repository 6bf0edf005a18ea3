"""Whether a job id still means the job that we submitted. Pure.

A slurmctld that was killed may have lost the last jobs it took; started again, it gives their ids to others, which may
well be the same user's (seen on 22.05). SubmitTime shows it, and where it cannot, since that happened within a
minute, the user's own words: they may rename or move a job of theirs that waits, but hardly both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmwrap.fast_dataclasses import dataclass

if TYPE_CHECKING:
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.sbatch.request import JobRequest

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
