"""Finish-time fairness: how long jobs took, compared with an equal part of the cluster for each user. Pure.

rho of Themis (Mahajan et al., NSDI 2020), with users instead of applications: the time from submission to end, divided
by the time that the job would have needed on the user's part. The part is 1 / n of the GPUs, n being the mean number of
users with jobs waiting or running while the job was there. A job with more GPUs than that takes as many times longer on
it. That a user's jobs wait for each other there is not counted, so a rho above 1 can be the user's own load. The
simulator and the night report call these functions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurmwrap.fast_dataclasses import dataclass


class JobStay(NamedTuple):
    """A job from its submission to its end, in seconds of one clock. `run_s`: how long it held its GPUs."""

    user: str
    submitted: float
    ended: float
    run_s: float
    gpus: int

    @property
    def stay_s(self) -> float:
        """Return the seconds from submission to end."""
        return self.ended - self.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """What an equal part of the cluster means for some jobs and their users.

    `part_s`: for each job the seconds that it would have needed there. `part_gpu_s`: user -> GPU-seconds of the user's
    part while the user had jobs.
    """

    part_s: tuple[float, ...]
    part_gpu_s: Mapping[str, float]


def compute_part_times(stays: Sequence[JobStay], gpus: int) -> PartTimes:
    """Return what 1 / n of `gpus` means for these jobs. `stays`: all jobs that were there, `gpus`: of the cluster."""
    changes = sorted([(one.submitted, 1, one.user) for one in stays] + [(one.ended, -1, one.user) for one in stays])
    user_seconds: dict[float, float] = {}  # time -> integral of the number of users until then
    count: Counter[str] = Counter()
    part_s: defaultdict[str, float] = defaultdict(float)  # user -> integral of 1 / n while the user had jobs
    users, since, total, share = 0, 0.0, 0.0, 0.0
    for time, change, user in changes:
        total += users * (time - since)
        share += (time - since) / users if users else 0.0
        since = time
        before = count[user] > 0
        count[user] += change
        there = count[user] > 0
        users += there - before
        part_s[user] += share * (before - there)
        user_seconds[time] = total
    return PartTimes(
        part_s=tuple(one.run_s * max(1.0, one.gpus * _compute_contention(one, user_seconds) / gpus) for one in stays),
        part_gpu_s={user: seconds * gpus for user, seconds in part_s.items()},
    )


def _compute_contention(one: JobStay, user_seconds: Mapping[float, float]) -> float:
    return (user_seconds[one.ended] - user_seconds[one.submitted]) / one.stay_s if one.stay_s > 0 else 1.0


def compute_user_rho(stays: Iterable[JobStay], part_s: Iterable[float]) -> dict[str, float]:
    """Return user -> rho of the user's jobs together, worst first: the sum of their times over that on the part."""
    stay_s: defaultdict[str, float] = defaultdict(float)
    alone_s: defaultdict[str, float] = defaultdict(float)
    for one, seconds in zip(stays, part_s, strict=True):
        stay_s[one.user] += one.stay_s
        alone_s[one.user] += seconds
    found = {user: stay_s[user] / alone_s[user] for user in stay_s if alone_s[user] > 0}
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
