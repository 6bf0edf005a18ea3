"""When a job that gsub is about to submit is expected to start, for --explain."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.errors import SlurmError, StoreError
from slurmwrap.gsub.prepare import find_free_gpus
from slurmwrap.gsub.queue_run_times import QueueRunTimes, list_submitted_ids
from slurmwrap.gsub.submit_context import PreparedJob, SubmitContext
from slurmwrap.gsub.user_state import UserStateStore
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.placement.expected_start import ExpectedStart, find_expected_start
from slurmwrap.placement.start_forecast import QueuedJob
from slurmwrap.profiling.run_time import RunTimeHistory
from slurmwrap.report.text_format import count, span
from slurmwrap.sbatch.job_request import JobRequest, ResourceShape

# A start that is expected so soon is no news.
_AT_ONCE_S = 60.0


def explain_start(prepared: PreparedJob, context: SubmitContext) -> tuple[ExpectedStart | None, str]:
    """Return when the job is expected to start, and a sentence about it; (None, "") if it may start at once."""
    request, snapshot = prepared.request, prepared.snapshot
    if not request.shape.gpus or request.hetjob or prepared.delay or request.setting("hold"):
        return None, ""
    waits = not find_free_gpus(request, snapshot)
    # A snapshot that was kept for some seconds may show GPUs as free that the user's last job holds now.
    if not waits and not snapshot.kept:
        return None, ""
    start, now = find_start_of_new_job(prepared, context), context.clock.now()
    if start is None:
        return None, describe_expected_start(None, now) if waits else ""
    return (start, describe_expected_start(start, now)) if start.at - now >= _AT_ONCE_S else (None, "")


def find_start_of_new_job(prepared: PreparedJob, context: SubmitContext) -> ExpectedStart | None:
    """Return when the job would start if it came last in the queue; None if too little is known."""
    request, snapshot = prepared.request, prepared.snapshot
    partition = request.value("partition") or snapshot.default_partition
    return find_starts_of_new_job(request, prepared.run_time, snapshot, context, [partition])[partition]


def find_starts_of_new_job(
    request: JobRequest,
    run_time: RunTimeEstimate | None,
    snapshot: Snapshot,
    context: SubmitContext,
    partitions: Sequence[str],
) -> dict[str, ExpectedStart | None]:
    """Return when the job would start in each of `partitions` (a name or a list with commas) if it came last there."""
    memory, cluster, now = context.memory, context.cluster, context.clock.now()
    try:
        jobs = [one.record for one in context.queue()] if context.queue is not None else []
        ids = list_submitted_ids(jobs, context.uid)
        submissions = memory.state.submissions_of(cluster, ids) if isinstance(memory, UserStateStore) else {}
        with memory.open_run_times(cluster) as read:
            known = QueueRunTimes(
                cluster=cluster,
                published=context.published.run_times,
                history=RunTimeHistory(read=read),
                uid=context.uid,
                submissions=submissions,
            )
            return {
                one: find_expected_start(
                    QueuedJob(
                        job="",
                        gpus=request.shape.gpus,
                        nodes=_count_nodes(request.shape),
                        partitions=tuple(one.split(",")) if one else (),
                        limit_s=request.shape.time_limit_s,
                        estimate=run_time,
                    ),
                    *(snapshot.nodes, jobs, known.estimate, now),
                )
                for one in partitions
            }
    except (SlurmError, StoreError):
        # The forecast is optional. What else needs Slurm or the database reports its fault.
        return dict.fromkeys(partitions)


def _count_nodes(shape: ResourceShape) -> int | None:
    """Return the number of nodes on which the job's GPUs must be; None if Slurm may spread them."""
    if shape.gpus_per_node:
        return max(1, shape.gpus // shape.gpus_per_node)
    return 1 if shape.gpus == 1 else shape.nodes


def describe_expected_start(start: ExpectedStart | None, now: float) -> str:
    """Return the sentence about the expected start of a new job."""
    if start is None:
        return "its start is unknown: too few jobs before it have a known run time"
    within = f" (nine of ten within {span(start.by - now)})" if start.by - start.at >= 60 else ""
    basis = f"by the expected run times of {start.predicted} of {count(start.jobs, 'job')} before it"
    return f"expected start in {span(start.at - now)}{within}, {basis}"
