"""Keep the table of expected run times that is published for gsub (profiling/published_run_times.py).

The lines of a job and of its wider groups are made anew when a run of it ends. Runs of others change a job's line too,
by the small weight of wider groups; that is left out until its own next run ends.
"""

from __future__ import annotations

from slurmwrap.profiling.published_run_times import format_line, join_lines, list_published_groups
from slurmwrap.reconcile.reconcile_context import ReconcilePass
from slurmwrap.reconcile.run_time_lookup import get_run_time_history

# Lines that are published: those of the groups whose last run is newest. They are 0.45 MB, which each gsub reads.
_MOST_LINES = 5_000
# Jobs for which lines are made in one pass, so that a pass does not take seconds after a start.
_MOST_JOBS = 500


def update_run_time_lines(this_pass: ReconcilePass) -> None:
    """Make the lines of the jobs of which a run ended; no effect in user mode, where nothing is published."""
    book = this_pass.book
    if this_pass.services.scope.user is not None or this_pass.services.publisher is None:
        return
    if book.run_time_news is None:
        book.run_time_news = dict(this_pass.services.store.run_time_jobs(book.cluster, _MOST_LINES))
    history, lines = get_run_time_history(this_pass), book.run_time_lines
    made = set[str]()
    # The newest first: most likely they are asked for.
    for job, end_time in sorted(book.run_time_news.items(), key=lambda one: -one[1])[:_MOST_JOBS]:
        del book.run_time_news[job]
        for digest, count, known in list_published_groups(book.cluster, job):
            if digest not in made and (estimate := history.estimate(known)) is not None:
                made.add(digest)
                lines[digest] = end_time, format_line(digest, estimate, count)
    if len(lines) > _MOST_LINES:
        oldest = sorted(lines, key=lambda digest: lines[digest][0])[: len(lines) - _MOST_LINES]
        for digest in oldest:
            del lines[digest]


def format_published_run_times(this_pass: ReconcilePass) -> str:
    """Return the table as it is published; "" if there is none, or if the site hides users' jobs from each other.

    PrivateData=jobs in slurm.conf hides them. A digest can be guessed, and shows how long another user's jobs run.
    """
    lines = this_pass.book.run_time_lines
    if not lines or this_pass.snapshot().private_jobs:
        return ""
    return join_lines(line for _, line in lines.values())
