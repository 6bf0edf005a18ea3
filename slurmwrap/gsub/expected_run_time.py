"""Find the expected run time of a job at submission: in what the site publishes, else in the user's own database."""

from __future__ import annotations

from slurmwrap.errors import StoreError
from slurmwrap.model.run_time import FROM_RUNS, FROM_SCALED_RUNS
from slurmwrap.profiling.job_key import derive_length, derive_variant
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery, list_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.cluster import Snapshot
    from slurmwrap.model.run_time import RunTimeEstimate
    from slurmwrap.sbatch.job_request import JobRequest


def find_expected_run_time(
    request: JobRequest, key: str, snapshot: Snapshot, context: SubmitContext, prerun_s: float | None = None
) -> RunTimeEstimate | None:
    """Return the expected run time; None if no earlier run says anything. `prerun_s`: run time by its pre-run.

    The site knows more runs than the user's own reconcile, but publishes none where it hides jobs from other users.
    """
    partition = request.value("partition") or snapshot.default_partition
    job = RunTimeQuery(
        user=str(context.uid),
        key=key,
        variant=derive_variant(request),
        length=derive_length(request, context.environ),
        gpus=request.shape.gpus,
        account=request.value("account") or "",
        partition=partition.partition(",")[0],
    )
    found = None
    if context.published.run_times:
        from slurmwrap.profiling.published_run_times import find_published_run_time

        found = find_published_run_time(context.published.run_times, context.cluster, job)
        if found is not None and found.source in (FROM_RUNS, FROM_SCALED_RUNS):
            return found
    try:
        runs = context.memory.run_times(context.cluster, list_groups(job)) if context.memory.has_runs() else {}
    except StoreError:
        # The estimate is optional. What else needs the database reports its fault.
        runs = {}
    own = RunTimeHistory(read=lambda group: runs.get(group, ())).estimate(job, prerun_s)
    return own if own is not None and (found is None or (own.specific and not found.specific)) else found
