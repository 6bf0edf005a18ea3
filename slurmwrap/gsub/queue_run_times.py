"""Expected run times of the jobs in Slurm's queue, as far as this user may know them, to forecast when jobs start."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.published_run_times import find_published_run_time
from slurmwrap.profiling.run_time import RunTimeHistory, make_run_time_query


@dataclass(slots=True, kw_only=True)
class QueueRunTimes:
    """Finds the expected run time of a job by what the site publishes, and by the runs that `history` knows.

    `uid`: the user whose runs `history` knows; None: it knows those of all users. `find_submission`: returns gsub's
    record of a job of this user, so that runs of the same job are compared; None if there is none.
    """

    cluster: str
    published: str  # Published.run_times
    history: RunTimeHistory
    uid: int | None
    find_submission: Callable[[JobRecord], Submission | None] = field(default=lambda job: None)
    _known: dict[tuple[int, int], RunTimeEstimate | None] = field(default_factory=dict)

    def estimate(self, job: JobRecord) -> RunTimeEstimate | None:
        """Return the expected run time from the start of the job; None if nothing is known. Raise StoreError."""
        key = (job.job_id, job.submit_time)
        if key not in self._known:
            self._known[key] = self._find(job)
        return self._known[key]

    def _find(self, job: JobRecord) -> RunTimeEstimate | None:
        own = self.uid is None or job.uid == self.uid
        submission = self.find_submission(job) if own else None
        query = make_run_time_query(job.uid, job.gpus, job.account, job.partition, submission)
        found = find_published_run_time(self.published, self.cluster, query) if self.published else None
        if not own or (found is not None and found.specific):
            return found
        # A user's own runs say nothing about the other users of the account and the partition.
        known = self.history.estimate(query)
        return known if known is not None and (known.specific or found is None) else found
