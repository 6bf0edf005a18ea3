"""Finish-time fairness of users in the night report, from the runs of the site's database. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from statistics import median

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.policy.finish_time_fairness import JobStay, compute_part_times, compute_user_rho
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import Fairness, FairnessBin, FairnessRow
from slurmwrap.report.report_inputs import Detail, Key, StayingRun

# Users with a row; the others are in the distribution.
ROWS = 10
# Above 1 is what is above this: Slurm takes seconds to start a job on idle GPUs.
ABOVE = 1.05
# Bounds of the distribution of users by their rho.
_BOUNDS = (0.0, ABOVE, 1.5, 2.0, 4.0, inf)

DetailsOf = Callable[[Sequence[Key]], Mapping[Key, Detail]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FairJob:
    """A job with a rho."""

    key: Key  # of its last run
    stay: JobStay
    part_s: float
    completed: bool

    @property
    def rho(self) -> float:
        return self.stay.stay_s / self.part_s


def sum_fairness(
    runs: Iterable[StayingRun], *, since: float, until: float, gpus: int | None, details: DetailsOf
) -> Fairness:
    """Return the fairness of the jobs that ended in [since, until) and held GPUs, by user.

    `runs`: all runs with GPUs that were there in that time and before it. `gpus`: of the cluster; None: not known, or
    there are several clusters. Then it is the most that was in use at once. `details`: of runs.
    """
    clusters = group_by(runs, lambda run: run.cluster)
    measured: list[_FairJob] = []
    held_s: dict[str, float] = {}
    part_gpu_s: dict[str, float] = {}
    waiting = total = 0
    for found in clusters.values():
        jobs = _group_by_job(found)
        known = gpus if gpus and len(clusters) == 1 else _find_most_in_use(found)
        stays = [_make_stay(job) for job in jobs]
        parts = compute_part_times(stays, known)
        total += known
        for user, seconds in parts.part_gpu_s.items():
            part_gpu_s[user] = part_gpu_s.get(user, 0.0) + seconds
        for job, stay, part_s in zip(jobs, stays, parts.part_s, strict=True):
            held_s[stay.user] = held_s.get(stay.user, 0.0) + sum(run.gpus * run.run_s for run in job)
            last = job[-1]
            waiting += not last.over or last.ended >= until
            if last.over and since <= last.ended < until and part_s > 0:
                key = (last.cluster, last.job_id, last.submitted)
                measured.append(_FairJob(key=key, stay=stay, part_s=part_s, completed=last.completed))
    if not measured:
        return Fairness(unfinished=waiting)
    rho_of = compute_user_rho([job.stay for job in measured], [job.part_s for job in measured])
    of_user = group_by(measured, lambda job: job.stay.user)
    worst = {user: max(of_user[user], key=lambda job: (job.rho, job.key)) for user in list(rho_of)[:ROWS]}
    shown = details([job.key for job in worst.values()])
    return Fairness(
        gpus=total,
        gpus_known=bool(gpus) and len(clusters) == 1,
        users=len(rho_of),
        jobs=len(measured),
        incomplete=sum(not job.completed for job in measured),
        unfinished=waiting,
        median_rho=median(job.rho for job in measured),
        above_share=_count_above(measured) / len(measured),
        worst=tuple(
            FairnessRow(
                user=user,
                jobs=len(of_user[user]),
                incomplete=sum(not job.completed for job in of_user[user]),
                rho=rho_of[user],
                median_rho=median(job.rho for job in of_user[user]),
                worst_rho=job.rho,
                worst_job=shown[job.key].address if job.key in shown else str(job.key[1]),
                above_share=_count_above(of_user[user]) / len(of_user[user]),
                held_share=held_s[user] / part_gpu_s[user] if part_gpu_s.get(user) else None,
            )
            for user, job in worst.items()
        ),
        bins=tuple(
            FairnessBin(
                above=low,
                up_to=None if high == inf else high,
                users=sum(low < rho <= high for rho in rho_of.values()),
                jobs=sum(low < job.rho <= high for job in measured),
            )
            for low, high in pairwise(_BOUNDS)
        ),
    )


def _group_by_job(runs: Sequence[StayingRun]) -> list[list[StayingRun]]:
    """Return the runs of each job, in order. Slurm reuses job ids: a first run begins another job."""
    jobs: list[list[StayingRun]] = []
    for run in sorted(runs, key=lambda run: (run.job_id, run.submitted, run.ended)):
        last = jobs[-1][-1] if jobs else None
        if run.again and last is not None and (last.job_id, last.user) == (run.job_id, run.user):
            jobs[-1].append(run)
        else:
            jobs.append([run])
    return jobs


def _make_stay(job: Sequence[StayingRun]) -> JobStay:
    """Return the job's time from its first submission to its last end. What it needed is the time of all its runs."""
    last = job[-1]
    return JobStay(last.user, job[0].submitted, last.ended, float(sum(run.run_s for run in job)), last.gpus)


def _find_most_in_use(runs: Sequence[StayingRun]) -> int:
    changes = [(run.ended - run.run_s, run.gpus) for run in runs if run.run_s]
    changes += [(run.ended, -run.gpus) for run in runs if run.run_s]
    used = most = 0
    for _, change in sorted(changes):
        used += change
        most = max(most, used)
    return max(1, most)


def _count_above(jobs: Sequence[_FairJob]) -> int:
    return sum(job.rho > ABOVE for job in jobs)
