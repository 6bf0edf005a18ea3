"""Expected run times of the jobs in Slurm's queue, as far as this user may know them, to forecast when jobs start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.published_run_times import find_published_run_time
from slurmwrap.profiling.run_time import RunTimeHistory, make_run_time_query

# Tolerated difference between the clocks of the controller and of the host of a submission.
_CLOCKS_S = 60.0
# Newest jobs of one user, or of a site, whose submissions are read.
_MOST_SUBMISSIONS = 1000


def list_submitted_ids(jobs: Iterable[JobRecord], uid: int | None) -> list[int]:
    """Return the ids under which the jobs of a user were submitted, None: of all users; the newest ones."""
    found = {job.array_job_id or job.job_id for job in jobs if job.gpus and uid in (None, job.uid)}
    return sorted(found)[-_MOST_SUBMISSIONS:]


@dataclass(slots=True, kw_only=True)
class QueueRunTimes:
    """Finds the expected run time of a job by what the site publishes, and by the runs that `history` knows.

    `uid`: the user whose runs `history` knows; None: it knows those of all users. `submissions`: gsub's records of jobs
    in the queue by the submitted job id, so that runs of the same job are compared.
    """

    cluster: str
    published: str  # Published.run_times
    history: RunTimeHistory
    uid: int | None
    submissions: Mapping[int, Submission] = field(default_factory=dict)
    _known: dict[tuple[int, int], RunTimeEstimate | None] = field(default_factory=dict)

    def estimate(self, job: JobRecord) -> RunTimeEstimate | None:
        """Return the expected run time from the start of the job; None if nothing is known. Raise StoreError."""
        key = (job.job_id, job.submit_time)
        if key not in self._known:
            self._known[key] = self._find(job)
        return self._known[key]

    def _find(self, job: JobRecord) -> RunTimeEstimate | None:
        own = self.uid is None or job.uid == self.uid
        submission = self.submissions.get(job.array_job_id or job.job_id) if own else None
        # Job ids are used again.
        if submission is not None and (submission.uid != job.uid or submission.at > job.submit_time + _CLOCKS_S):
            submission = None
        query = make_run_time_query(job.uid, job.gpus, job.account, job.partition, submission)
        found = find_published_run_time(self.published, self.cluster, query) if self.published else None
        if not own or (found is not None and found.specific):
            return found
        # A user's own runs say nothing about the other users of the account and the partition.
        known = self.history.estimate(query)
        return known if known is not None and (known.specific or found is None) else found
