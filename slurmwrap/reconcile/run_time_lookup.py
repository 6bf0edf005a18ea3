"""Expected run times of pending and running jobs, from the stored runs of earlier ones (profiling/run_time.py).

Nothing counts that a user claims, except key, variant and length options: they only group that user's own runs.
"""

from __future__ import annotations

from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import is_submission_of_run, record_of, run_key_from_job
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery, RunTimeRecord, make_run_time_query
from slurmwrap.reconcile.reconcile_context import ReconcilePass


def find_run_time(job: JobRecord, this_pass: ReconcilePass) -> RunTimeEstimate | None:
    """Return the expected run time of a pending or running job, from its start; None if nothing is known.

    The time limit is not considered, and a job that resumes from a checkpoint may need less.
    """
    history = get_run_time_history(this_pass)
    return history.estimate(find_run_time_query(job, this_pass), submit_s=float(job.submit_time))


def find_run_time_query(job: JobRecord, this_pass: ReconcilePass) -> RunTimeQuery:
    """Return what is known about a pending or running job, with its submission if it was submitted with gsub."""
    book, key = this_pass.book, run_key_from_job(job, this_pass.book.cluster)
    known = book.run_time_queries.get(key)
    if known is not None:
        return known
    submission = book.submitted.get(key) or find_submission(job, this_pass)
    query = make_run_time_query(job.uid, job.gpus, job.account, job.partition, submission)
    book.run_time_queries[key] = query
    return query


def find_submission(job: JobRecord, this_pass: ReconcilePass) -> Submission | None:
    """Return the stored submission of a job of Slurm's record; None if it was not submitted with gsub."""
    found = this_pass.services.store.submission(this_pass.book.cluster, job.submitted_id)
    if found is None or not is_submission_of_run(found, record_of(job, this_pass.book.cluster)):
        return None
    return found


def forget_changed_queries(this_pass: ReconcilePass) -> None:
    """Forget the queries of jobs that left the queue, and of those whose submission arrived after they were seen.

    Call it once in each pass, after the spools were read.
    """
    queries, new = this_pass.book.run_time_queries, this_pass.summary.ingested.submitted
    if not queries:
        return
    valid = {
        run_key_from_job(job, this_pass.book.cluster)
        for job in this_pass.words.first.values()
        if not job.ended and job.submitted_id not in new
    }
    for gone in queries.keys() - valid:
        del queries[gone]


def get_run_time_history(this_pass: ReconcilePass) -> RunTimeHistory:
    """Return the history of this reconciler, which reads each group from the store when it is first needed."""
    book, store = this_pass.book, this_pass.services.store
    if book.run_times is None:
        book.run_times = RunTimeHistory(read=lambda group: store.run_times(book.cluster, group))
    return book.run_times


def add_run_time(record: RunTimeRecord, this_pass: ReconcilePass) -> None:
    """Add a run that was just stored to what is in use of the history. Call it after the transaction was committed."""
    book = this_pass.book
    if book.run_times is not None:
        book.run_times.add(record.job, record.sample)
    if book.run_time_news is not None:
        book.run_time_news[record.job] = record.end_time
