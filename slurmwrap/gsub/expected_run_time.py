"""Find the expected run time of a job at submission: in what the site publishes, else in the user's own database."""

from __future__ import annotations

from slurmwrap.errors import StoreError
from slurmwrap.model.run_time import FROM_RUNS, FROM_SCALED_RUNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.run_time import RunTimeEstimate, RunTimeQuery


def find_expected_run_time(
    job: RunTimeQuery, context: SubmitContext, prerun_s: float | None = None
) -> RunTimeEstimate | None:
    """Return the expected run time; None if no earlier run says anything. `prerun_s`: run time by its pre-run.

    The site knows more runs than the user's own reconcile, but publishes none where it hides jobs from other users.
    """
    found = None
    if context.published.run_times:
        from slurmwrap.profiling.published_run_times import find_published_run_time

        found = find_published_run_time(context.published.run_times, context.cluster, job)
        if found is not None and found.source in (FROM_RUNS, FROM_SCALED_RUNS):
            return found
    own = None
    if prerun_s is not None:
        from slurmwrap.profiling.run_time import RunTimeHistory

        own = RunTimeHistory().estimate(job, prerun_s)
    try:
        if context.memory.has_runs():
            from slurmwrap.profiling.run_time import RunTimeHistory

            with context.memory.open_run_times(context.cluster) as read:
                own = RunTimeHistory(read=read).estimate(job, prerun_s) or own
    except StoreError:
        # The estimate is optional. What else needs the database reports its fault.
        pass
    return own if own is not None and (found is None or (own.specific and not found.specific)) else found
