"""Read how earlier submissions ended from the diagnoses that the site sealed for this user; used by gsub (adapter).

Only the few newest jobs in the user's own records are looked up, because each costs a call of munged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap.policy.run_from_slurm import is_submission_of_run
from slurmwrap.store.published_files import Unseal, parse_published, read_why

if TYPE_CHECKING:
    from slurmwrap.model.job_run import JobRun
    from slurmwrap.model.submission import Submission

# Number of newest submissions that are looked up.
NEWEST = 4
_RUNS = 3  # of one job


def read_published_ends(
    submissions: Sequence[Submission], directory: Path, unseal: Unseal, trusted: Collection[int]
) -> tuple[tuple[JobRun, Submission], ...]:
    """Return the diagnosed runs of the newest `submissions`, with their submissions. Unreadable files are skipped."""
    newest = sorted(submissions, key=lambda s: s.at, reverse=True)[:NEWEST]
    found: list[tuple[JobRun, Submission]] = []
    for submission in newest:
        for plain in read_why(directory, submission.job_id, unseal, trusted, limit=_RUNS):
            try:
                record, _ = parse_published(plain)
            except ValueError:
                continue
            if is_submission_of_run(submission, record) and record.diagnosis is not None:
                found.append((record, submission))
    return tuple(found)
