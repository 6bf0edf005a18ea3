"""Edge: how earlier submissions ended by the site's judgement: diagnoses sealed for this user, opened on gsub's way.

Only the jobs that their own records name are looked for, and few of them: each costs a call of munged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurmwrap.policy.run_from_slurm import speaks_for
from slurmwrap.store.published_files import Unseal, parse_published, read_why

if TYPE_CHECKING:
    from slurmwrap.model.job_run import JobRun
    from slurmwrap.model.submission import Submission

# Submissions that are asked about.
NEWEST = 4
_RUNS = 3  # of one job


def read_published_ends(
    submissions: Sequence[Submission], directory: Path, unseal: Unseal, trusted: Collection[int]
) -> tuple[tuple[JobRun, Submission], ...]:
    """The judged runs of the newest of `submissions`, each with its submission. What cannot be read is left out."""
    newest = sorted(submissions, key=lambda s: s.at, reverse=True)[:NEWEST]
    found: list[tuple[JobRun, Submission]] = []
    for submission in newest:
        for plain in read_why(directory, submission.job_id, unseal, trusted, limit=_RUNS):
            try:
                record, _ = parse_published(plain)
            except ValueError:
                continue
            if speaks_for(submission, record) and record.diagnosis is not None:
                found.append((record, submission))
    return tuple(found)
