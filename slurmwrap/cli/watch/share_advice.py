"""With which `--share` job of its user a waiting job could share a GPU: advice for `slurmwrap watch`."""

from __future__ import annotations

from slurmwrap.errors import StoreError
from slurmwrap.gsub.share_submission import describe_pairs, find_pairs
from slurmwrap.gsub.submit_context import SharePlan
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.submission import Submission
from slurmwrap.placement.pack_size import find_card_mib
from slurmwrap.profiling.colocation import read_demand
from slurmwrap.store.user_state_files import UserState


def find_share_advice(job: JobRecord, submission: Submission, state: UserState) -> str:
    """Return the advice, with the command; "" if no job suits. It reads the user's own files and asks Slurm nothing."""
    folder = state.directory / "share"
    if job.gpus != 1 or submission.share or submission.pack or submission.call is None or not folder.is_dir():
        return ""
    try:
        profile = state.profile(submission.profile_key)
    except StoreError:
        return ""
    if profile is None:
        return ""
    plan = SharePlan(demand=read_demand(profile), card_mib=find_card_mib(profile.gpu_type))
    pairs = [pair for pair in find_pairs(plan, folder) if pair.partition in ("", job.partition)]
    number = job.job_id
    return f"with {describe_pairs(pairs)}: scancel {number}; gsub --again {number} --share" if pairs else ""
