"""Draw what is submitted within a few days and how it ends: a list of Calls in the order of time. Pure but for dice.

A failed job is submitted again by its user, as often as Philly's jobs repeated the cause (table 7, trials per job).
These repetitions are separate calls, and count among the jobs per day.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from slurmwrap.sim.failures import published_rates
from slurmwrap.sim.failures.assumptions import FailureSettings
from slurmwrap.sim.failures.draw_failures import FailingJob, draw_failures
from slurmwrap.sim.sim_job import SimJob
from synthetic_year.site import GPUS_PER_NODE, Site, User

DAY_S = 86_400.0
_AGAIN = 0.23  # repetitions per job over all jobs: table 7's failing jobs times (trials per job - 1)
_TRIALS = 0.133  # pre-runs per job that is submitted, which are jobs to Slurm as well (counted, with Rates as they are)
_MOST_TRIALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One submitted job."""

    at: float
    user: User
    name: str
    script: str
    script_sha256: str
    version: int  # of the code: part of the fingerprint
    gpus: int
    category: str  # why its first run ends
    run_s: float  # until then
    curable: bool = False
    shown: bool = False  # a pre-run on one GPU finds the failure within three minutes
    input_path: str = ""
    gsub: bool = False
    retry: bool = False
    array: bool = False
    forced: bool = False  # submitted with --force after a pre-run had stopped the same job


class Caller:
    """Draws calls for one site and keeps repetitions for later days."""

    def __init__(self, site: Site, jobs_per_day: int, seed: int) -> None:
        self._site, self._per_day, self._seed = site, jobs_per_day, seed
        self._dice = random.Random(f"calls {seed}")
        self._waiting: list[Call] = []
        self._inputs: dict[int, str] = {}

    def between(self, since: float, until: float) -> list[Call]:
        """Return all calls of that period, oldest first."""
        found = list(self._drawn(since, until))
        found += [one for call in found for one in self._repeated(call)]
        found += self._waiting
        self._waiting = [call for call in found if call.at >= until]
        return sorted((call for call in found if call.at < until), key=lambda call: call.at)

    def later(self, call: Call) -> None:
        """Add a call that follows from an earlier one."""
        self._waiting.append(call)

    def _drawn(self, since: float, until: float) -> Iterator[Call]:
        jobs, owed = [], self._times(since, until)
        gpus = self._demand(len(owed))
        lasts = np.exp(self._random(since).normal(np.log(self._site.rates.run_median_s), self._sigma, len(owed)))
        for number, at in enumerate(owed):
            work_s = float(min(self._site.rates.run_most_s, max(20.0, lasts[number])))
            jobs.append(SimJob(number=number, job=str(number), submit_s=at - since, work_s=work_s, gpus=gpus[number]))
        doomed = draw_failures(jobs, FailureSettings(sees=self._site.rates.sees), self._seed * 1_000_003 + int(since))
        for job in jobs:
            yield self._call(job, since, doomed.get(job.number))

    @property
    def _sigma(self) -> float:
        return self._site.rates.run_sigma

    def _random(self, since: float) -> np.random.Generator:
        return np.random.default_rng([self._seed, int(since)])

    def _times(self, since: float, until: float) -> list[float]:
        """Draw submission times: more by day than by night, fewer at weekends, with the requested mean over a week."""
        dice, quiet = self._dice, self._site.rates.weekend
        usual = 7 / (5 + 2 * quiet) / (1 + _AGAIN) / (1 + _TRIALS)
        found: list[float] = []
        day = since
        while day < until:
            weekend = int(day // DAY_S + 4) % 7 in (0, 6)  # the first of January 1970 was a Thursday
            mean = self._per_day * usual * (quiet if weekend else 1.0) * min(1.0, (until - day) / DAY_S)
            count = max(0, round(dice.gauss(mean, mean**0.5)))
            length = min(DAY_S, until - day)
            found += [day + length * _office(dice) for _ in range(count)]
            day += DAY_S
        return sorted(found)

    def _demand(self, count: int) -> list[int]:
        values, weights = zip(*self._site.rates.demand, strict=True)
        most = len(self._site.nodes) * GPUS_PER_NODE // 2
        return [min(value, most) for value in self._dice.choices(values, weights, k=count)]

    def _call(self, job: SimJob, since: float, failing_job: FailingJob | None) -> Call:
        dice, site = self._dice, self._site
        user = self._stricken(failing_job.row) if failing_job and not failing_job.killed else site.user(dice.random())
        name, script, digest = user.scripts[int(len(user.scripts) * dice.random() ** 2)]
        category, run_s = self._end(job, failing_job)
        gsub = dice.random() < site.rates.gsub
        return Call(
            at=since + job.submit_s,
            user=user,
            name=name,
            script=script,
            script_sha256=digest,
            version=dice.randrange(40),
            gpus=job.gpus,
            category=category,
            run_s=run_s,
            curable=bool(failing_job and failing_job.curable),
            shown=bool(failing_job and failing_job.shown),
            input_path=self._input(user) if category == "incorrect_inputs" else "",
            gsub=gsub,
            retry=gsub and dice.random() < site.rates.retry,
            array=dice.random() < site.rates.array,
        )

    def _stricken(self, row: int) -> User:
        """Draw a user who fails with this cause: as large a share of all users as in table 7, some of them often."""
        users = self._site.users
        share = published_rates.PHILLY[row].users / max(cause.users for cause in published_rates.PHILLY)
        pool = max(2, round(share * len(users)))
        return users[(int(pool * self._dice.random() ** 1.5) * 7919 + row * 31) % len(users)]

    def _end(self, job: SimJob, failing_job: FailingJob | None) -> tuple[str, float]:
        if failing_job is None:
            late = job.work_s > 600 and self._dice.random() < self._site.rates.timeout * 2
            return ("time_limit" if late else "success"), job.work_s
        if failing_job.killed:
            return "cancelled", job.work_s
        return failing_job.category, failing_job.run_s

    def _input(self, user: User) -> str:
        if user.uid not in self._inputs or self._dice.random() >= self._site.rates.same_input:
            number = self._dice.randrange(10_000)
            self._inputs[user.uid] = f"/data/{user.account}/{user.name}/shard-{number:04d}.tar"
        return self._inputs[user.uid]

    def _repeated(self, call: Call) -> Iterator[Call]:
        """Yield the calls with which the user submits the job again, unchanged or with a change."""
        if call.category in ("success", "cancelled", "time_limit") or (call.retry and call.curable):
            return
        again = 1 - 1 / _repetition(call.category)
        at, trials = call.at, 1
        while trials < _MOST_TRIALS and self._dice.random() < again:
            at += call.run_s + 60 + self._dice.expovariate(1 / 3600)
            trials += 1
            yield replace(call, at=at, version=call.version + (self._dice.random() < 0.5))

    def forced(self, call: Call, *, well: bool) -> Call:
        """Return the call for a job that a pre-run stopped, submitted again with --force."""
        ending = ("success", self._site.rates.run_median_s * 3) if well else (call.category, call.run_s)
        at = call.at + self._dice.expovariate(1 / 1800) + 300
        return replace(call, at=at, category=ending[0], run_s=ending[1], shown=False, forced=True)


def _office(dice: random.Random) -> float:
    """Draw a time of day, 0..1."""
    return dice.random() if dice.random() < 0.45 else min(0.999, max(0.0, dice.gauss(0.6, 0.13)))


def _repetition(category: str) -> float:
    return next((cause.repetition for cause in published_rates.PHILLY if cause.category == category), 1.0)


__all__ = ["DAY_S", "Call", "Caller"]
