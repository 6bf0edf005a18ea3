"""With which other job of its user a new job could share a GPU, for --explain: advice alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurmwrap.errors import SlurmError, StoreError
from slurmwrap.gsub.planning_inputs import find_known_profile
from slurmwrap.gsub.queue_run_times import list_submitted_ids
from slurmwrap.gsub.share_submission import SharePair, describe_pairs, find_pairs, make_share_plan
from slurmwrap.gsub.submit_context import PreparedJob, SharePlan, SubmitContext
from slurmwrap.gsub.user_state import UserStateStore
from slurmwrap.profiling.colocation import predict_pair, read_demand
from slurmwrap.sbatch.share_option import find_sharing_obstacle

# Newest jobs of the user in the queue with which the new one is compared.
_MOST_JOBS = 20


def explain_sharing(prepared: PreparedJob, context: SubmitContext) -> str:
    """Return the advice to share a GPU; "" if no job of the user suits, or if it may share one anyway."""
    request, memory = prepared.request, context.memory
    if request.shape.gpus != 1 or request.own.share or not isinstance(memory, UserStateStore):
        return ""
    if not context.config.share.enabled or find_sharing_obstacle(request):
        return ""
    plan, alone = make_share_plan(request, prepared.profile, prepared.run_time, prepared.snapshot, context)
    if alone:
        return ""
    if pairs := tuple(find_pairs(plan, Path(memory.state.place) / "share")):
        return f"it could share a GPU with {describe_pairs(pairs)}; --share does it"
    try:
        others = tuple(_find_other_pairs(plan, request.value("partition") or "", memory, context))
    except (SlurmError, StoreError):
        # The advice is optional. What else needs Slurm or the database reports its fault.
        return ""
    return f"it could share a GPU with {describe_pairs(others)} if both were submitted with --share" if others else ""


def _find_other_pairs(
    plan: SharePlan, partition: str, memory: UserStateStore, context: SubmitContext
) -> Iterator[SharePair]:
    """Yield the user's jobs without --share in the queue that suit the new one by their profiles."""
    if plan.demand is None or context.queue is None:
        return
    records = [one.record for one in context.queue() if one.record.uid == context.uid and one.record.gpus == 1]
    jobs = {job.job_id: job for job in records if job.array_job_id is None and not job.ended}
    ids = list_submitted_ids(jobs.values(), context.uid)[-_MOST_JOBS:]
    for job_id, submission in memory.state.submissions_of(context.cluster, ids).items():
        if submission.share or submission.pack or not submission.profile_key:
            continue
        profile = find_known_profile(submission.profile_key, context)
        same = not partition or jobs[job_id].partition == partition
        if profile is not None and same:
            forecast = predict_pair(plan.demand, read_demand(profile), gpu_mem_mib=plan.card_mib)
            if forecast.worthwhile:
                yield SharePair(name="", job=str(job_id), forecast=forecast)
