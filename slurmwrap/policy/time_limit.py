"""Time limits that fit: what a waiting job gets by its earlier runs, and when its user's limit returns. Pure.

A lower limit lets backfill start a job in a gap. It is never meant to end one: the user's limit returns when the job
starts (`limit.at_start = "restore"`), or in steps long before the limit is reached ("keep"). Only root and SlurmUser
can raise the limit of a running job (measured, 22.05.8: its owner is refused).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil

from slurmwrap.config.load_config import Limit
from slurmwrap.model.cluster import Partition, Snapshot
from slurmwrap.model.hostlist import names_in
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.lowered_limit import LoweredLimit, TimeRequest
from slurmwrap.model.run_time import FROM_RUNS, RunTimeEstimate
from slurmwrap.policy.requeue import COMMENT_PREFIX

# Age of the reconciler's heartbeat, in seconds, from which on no limit is lowered and the watchdog restores all.
HEARTBEAT_LATE_S = 300.0
# How often the watchdog runs (slurmwrap-watchdog.timer), in seconds.
WATCHDOG_EVERY_S = 900.0
# Longest time, in seconds, until limits are restored after the reconciler stopped: its heartbeat is just not late at
# one call of the watchdog, systemd delays the next call (AccuracySec), and then many jobs are updated.
RESTORED_WITHIN_S = HEARTBEAT_LATE_S + WATCHDOG_EVERY_S + 180.0
# No limit is set below this, whatever the configuration says: it must exceed RESTORED_WITHIN_S by far.
LEAST_S = 1800.0
# A limit is lowered only to less than this share of its user's. Small gains are not worth an update.
WORTH = 0.8
# How long a change may still take effect, in seconds, after the call that made it was killed or got no answer.
SETTLED_S = 600.0

# Begin of the Comment of a job with a lower limit, if its user set none.
LIMIT_COMMENT = f"{COMMENT_PREFIX}time limit "
# End of the reason of every action that restores the limit of a job's user.
RESTORED = "its user's limit again"

# Reasons of squeue(1), "JOB REASON CODES", that depend on the time limit: with a lower one the job would pass a limit
# of partition, QOS or association that its user's limit would not pass.
_BY_LIMIT = re.compile(r"(QOS|Assoc).*(Wall|Min)|PartitionTimeLimit")
# With this share of the limit left, or less, it is extended ("keep").
_LEFT = 0.3


def compute_lower_limit(
    estimate: RunTimeEstimate | None, user_s: float, settings: Limit, *, warn_s: float = 0
) -> int | None:
    """Return the limit in seconds, whole minutes, that fits the earlier runs; None if the user's limit should stay.

    `warn_s`: TimeRequest.warn_s. The signal must not come before the user's limit is restored.
    """
    if estimate is None or estimate.source != FROM_RUNS or estimate.n < settings.runs:
        return None
    needed = max(settings.factor * estimate.p90_s, estimate.p99_s, settings.least_s, LEAST_S + warn_s)
    limit = ceil(needed / 60) * 60
    return limit if limit < WORTH * user_s else None


def find_reason_to_keep(
    job: JobRecord, request: TimeRequest | None, snapshot: Snapshot, *, resumes: bool = False
) -> str:
    """Return why the time limit of a pending job must not be lowered; "" if it may be.

    `request`: None if an older gsub submitted the job, which did not report it. `resumes`: it continues from a
    checkpoint, so that it may have run before.
    """
    if request is None:
        return "it was submitted by an older gsub"
    if request.fixed:
        return request.fixed
    if job.time_limit_s is None:
        return "it has no time limit"
    if job.het_job_id:
        return "it is a heterogeneous job"
    if job.restarts and not resumes:
        return "it ran before"
    return find_conflict(job, job.time_limit_s, snapshot)


def find_conflict(job: JobRecord, user_s: float, snapshot: Snapshot) -> str:
    """Return which rule of the site a job would evade that starts with a lower limit than `user_s`; "" if none.

    A reservation counts if it begins before the user's limit would end and has a node of the job's partitions: Slurm
    restores a running job's limit into it without complaint (measured, 22.05.8), also into maintenance.
    """
    if _BY_LIMIT.search(job.reason):
        return f"Slurm says {job.reason[:60]}"
    names = frozenset(job.partition.split(","))
    partitions = [one for one in snapshot.partitions if one.name in names]
    if any(one.max_time_s is not None and user_s > one.max_time_s for one in partitions):
        return "its time limit exceeds that of its partition"
    soon = [one for one in snapshot.reservations if snapshot.taken_at < one.start < snapshot.taken_at + user_s]
    if soon:
        nodes = {node.name for node in snapshot.nodes if not names.isdisjoint(node.partitions)}
        if job.req_nodes:
            nodes &= set(names_in(job.req_nodes))
        if reserved := next((one.name for one in soon if not nodes.isdisjoint(one.nodes)), ""):
            return f"reservation {reserved} begins before its time limit would end"
    return ""


def cap_by_partition(job: JobRecord, user_s: int, partitions: Iterable[Partition]) -> int:
    """Return the user's limit, or that of the job's partition if it is shorter: the user may have moved the job."""
    names = frozenset(job.partition.split(","))
    return min((user_s, *(one.max_time_s for one in partitions if one.name in names and one.max_time_s is not None)))


def list_steps(lowered: LoweredLimit) -> tuple[int, ...]:
    """Return the limits of a job from the lowered one to its user's, in seconds: each is `set_s` longer."""
    return (*range(lowered.set_s, lowered.user_s, lowered.set_s), lowered.user_s)


def is_lowered(job: JobRecord, lowered: LoweredLimit) -> bool:
    """Return True if the job still has a limit that slurmwrap set. Any other one is its user's, or someone else's."""
    if lowered.time_min:
        return job.time_limit_s is not None and lowered.set_s <= job.time_limit_s < lowered.user_s
    return job.time_limit_s in list_steps(lowered)[:-1]


def choose_running_limit(job: JobRecord, lowered: LoweredLimit, now: float) -> int | None:
    """Return the limit in seconds that a started job must get now; None if nothing is to be done."""
    if not is_lowered(job, lowered):
        return None
    limit = job.time_limit_s or 0
    if not lowered.keep or job.start_time is None:
        return lowered.user_s
    left = job.start_time + limit - now
    if left > max(_LEFT * limit, RESTORED_WITHIN_S + lowered.warn_s):
        return None
    return next(step for step in list_steps(lowered) if step > limit)


def is_settled(job: JobRecord, lowered: LoweredLimit, now: float) -> bool:
    """Return True if nothing has to be remembered for this job any more: it ended, or has a limit of someone else.

    A job that has its user's limit is remembered for a while: the call that lowers it may still be under way.
    """
    if job.ended or job.state == "COMPLETING":
        return True
    if job.time_limit_s == lowered.user_s:
        return not 0 <= now - lowered.at < SETTLED_S
    return not is_lowered(job, lowered)


def select_jobs_of(lowered: LoweredLimit, jobs: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """Return the records of this job: for an array its pending rest and its started tasks. Job ids are reused."""
    return tuple(
        job
        for job in jobs
        if job.uid == lowered.uid and job.submit_time >= lowered.submit_time and lowered.job_id == job.submitted_id
    )


def format_limit(seconds: float) -> str:
    """Return a time limit as --time takes it: "5:00:00", "7-00:00:00"."""
    days, rest = divmod(int(seconds), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock.removeprefix("0")
