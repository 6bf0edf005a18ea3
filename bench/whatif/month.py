"""Generate a month of a GPU cluster as sacct would print it, for tests and timings of `slurmwrap whatif`.

Its scheduler intentionally differs from slurmwrap's model: users who hold fewer GPUs go first (an approximate fair
share), a job that fits is started, and time limits matter only for a job that overtakes others. So the model of plain
Slurm has deviations to show, as on a real cluster.

    python bench/whatif/month.py --jobs 3000 --seed 1 > month.psv
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import exp, inf, pi, sin
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from slurmwrap.model.hostlist import fold
from slurmwrap.sim.trace.sacct_dump import FIELDS

BEGIN = datetime(2026, 10, 1, tzinfo=UTC).timestamp()
DAY = 86400.0
BEFORE, DAYS = 4, 30  # days simulated before the dump begins, and days of the dump
GPUS = 8  # of a node; CPUs and memory are never short
_SIZES = ((1, 56), (2, 12), (4, 12), (8, 14), (16, 5), (32, 1))  # GPUs, how often
_FATES = (
    ("COMPLETED", 63, 1.0), ("FAILED", 21, 0.12), ("CANCELLED by 1007", 9, 0.7), ("TIMEOUT", 4, 1.0),
    ("OUT_OF_MEMORY", 2, 0.1), ("NODE_FAIL", 1, 0.5),
)  # fmt: skip  # state, frequency, share of the run time
_LIMITS_H = (1, 4, 12, 24, 48, 168)
_PATIENCE_S, _SHORT_S = 48 * 3600.0, 4 * 3600.0
_DEPTH = 40  # jobs that the scheduler considers
_NAMES = ("resnet50", "bert-ft", "llama-sft", "vit_b", "diffusion", "gnn", "whisper", "eval", "sweep", "debug")


@dataclass(slots=True, kw_only=True)
class _Job:
    number: int
    submit: float
    gpus: int
    nodes: int
    run_s: float
    limit_s: float
    user: str
    name: str
    state: str
    apart: bool = False  # requested GPUs without a number of nodes
    start: float | None = None
    where: tuple[str, ...] = ()

    @property
    def cpus(self) -> int:
        return max(1, 8 * self.gpus) if self.gpus else 16


@dataclass(slots=True, kw_only=True)
class _Nodes:
    """Free GPUs by node; CPUs and memory are proportional."""

    free: dict[str, int]
    held: Counter[str] = field(default_factory=Counter)  # GPUs by user

    def place(self, job: _Job) -> tuple[str, ...] | None:
        """Return the fullest nodes on which the job fits, or None; with --gpus alone, twice as many nodes if needed."""
        for count in (job.nodes, 2 * job.nodes)[: 1 + (job.apart and job.gpus > 1)]:
            fits = [name for name, free in self.free.items() if free >= job.gpus // count]
            if len(fits) >= count:
                return tuple(sorted(heapq.nsmallest(count, fits, key=self.free.__getitem__)))
        return None

    def move(self, job: _Job, sign: int) -> None:
        for name in job.where:
            self.free[name] -= sign * (job.gpus // len(job.where))
        self.held[job.user] += sign * job.gpus


def month(*, seed: int = 1, jobs: int = 3000, nodes: int = 12, load: float = 0.8) -> str:
    """Return sacct's output. `load`: requested GPU-seconds divided by those available."""
    drawn = _drawn(random.Random(seed), jobs, nodes, load)
    _run(drawn, nodes)
    begin, end = BEFORE * DAY, (BEFORE + DAYS) * DAY
    there = [job for job in drawn if job.submit < end and (job.start is None or job.start + job.run_s >= begin)]
    return "\n".join(("|".join(FIELDS), *(_row(job, end) for job in there))) + "\n"


def _drawn(rng: random.Random, jobs: int, nodes: int, load: float) -> list[_Job]:
    span = (BEFORE + DAYS) * DAY
    moments = sorted(_moments(rng, jobs, span))
    made = [_job(rng, number, moment) for number, moment in enumerate(moments)]
    scale = load * span * nodes * GPUS / sum(job.run_s * job.gpus for job in made)
    return [_with_limit(replace(job, run_s=max(1.0, round(job.run_s * scale)))) for job in made]


def _moments(rng: random.Random, jobs: int, span: float) -> Iterator[float]:
    """Draw submission times: more by day than by night, fewer on weekends."""
    for _ in range(jobs):
        while True:
            moment = rng.uniform(0, span)
            busy = 0.55 + 0.45 * sin(2 * pi * (moment / DAY - 0.35))
            if rng.random() < busy * (0.45 if int(moment / DAY) % 7 in (2, 3) else 1.0):
                yield round(moment)
                break


def _job(rng: random.Random, number: int, submit: float) -> _Job:
    gpus = 0 if rng.random() < 0.04 else rng.choices(*zip(*_SIZES, strict=True))[0]
    state, _, part = rng.choices(_FATES, [often for _, often, _ in _FATES])[0]
    run_s = exp(rng.gauss(8.2 + 0.15 * gpus**0.5, 1.6)) * part
    user = f"user{min(24, int(rng.expovariate(0.22))):02d}"
    return _Job(
        number=number, submit=submit, gpus=gpus, nodes=max(1, gpus // GPUS), run_s=min(run_s, 6.5 * DAY), limit_s=0.0,
        user=user, name=rng.choice(_NAMES), state=state, apart=rng.random() < 0.4,
    )  # fmt: skip


def _with_limit(job: _Job) -> _Job:
    limit = next((3600.0 * h for h in _LIMITS_H if 3600.0 * h >= 1.5 * job.run_s), 3600.0 * _LIMITS_H[-1])
    run_s = min(job.run_s, limit)
    return replace(job, limit_s=run_s if job.state == "TIMEOUT" else limit, run_s=run_s)


def _run(jobs: Sequence[_Job], nodes: int) -> None:
    cluster = _Nodes(free={f"gpu{number:02d}": GPUS for number in range(1, nodes + 1)})
    ends: list[tuple[float, int]] = []
    waiting: list[_Job] = []
    for job in jobs:
        while ends and ends[0][0] <= job.submit:
            now = _end(jobs, cluster, ends)
            _start(cluster, waiting, ends, now)
        waiting.append(job)
        _start(cluster, waiting, ends, job.submit)
    while ends:
        _start(cluster, waiting, ends, _end(jobs, cluster, ends))


def _end(jobs: Sequence[_Job], cluster: _Nodes, ends: list[tuple[float, int]]) -> float:
    now, number = heapq.heappop(ends)
    cluster.move(jobs[number], -1)
    return now


def _start(cluster: _Nodes, waiting: list[_Job], ends: list[tuple[float, int]], now: float) -> None:
    if not any(cluster.free.values()) and all(job.gpus for job in waiting):
        return
    head = sorted(waiting[: 4 * _DEPTH], key=lambda job: cluster.held[job.user] + job.gpus - (now - job.submit) / 900)
    longest = inf
    for job in head[:_DEPTH]:
        found = cluster.place(job) if job.limit_s <= longest else None
        if found is not None:
            job.where, job.start = found, float(round(now + 1))
            cluster.move(job, 1)
            heapq.heappush(ends, (job.start + job.run_s, job.number))
            waiting.remove(job)
        elif now - job.submit > _PATIENCE_S:
            longest = min(longest, _SHORT_S)  # only short jobs may still overtake it


def _row(job: _Job, dumped: float) -> str:
    started = job.start is not None and job.start < dumped
    ended = started and job.start is not None and job.start + job.run_s <= dumped
    state = job.state if ended else "RUNNING" if started else "PENDING"
    asked, given = (_tres(job, count) for count in (job.nodes, len(job.where)))
    end = (job.start or 0.0) + job.run_s
    fields = (
        str(1000 + job.number), job.user, "gpu", state, _stamp(job.submit), _stamp(job.submit),
        _stamp(job.start) if started else "Unknown", _stamp(end) if ended else "Unknown",
        str(int(job.run_s)) if ended else str(int(dumped - (job.start or 0.0))) if started else "0",
        str(int(job.limit_s // 60)) if job.limit_s % 60 == 0 else str(int(job.limit_s // 60) + 1),
        asked, given if started else "", str(len(job.where) or job.nodes),
        fold(job.where) if started else "None assigned",
        "1:0" if state in ("FAILED", "OUT_OF_MEMORY") else "0:0", job.name,
    )  # fmt: skip
    return "|".join(fields)


def _tres(job: _Job, nodes: int) -> str:
    gpus = f"gres/gpu={job.gpus}," if job.gpus else ""
    return f"billing={job.cpus},cpu={job.cpus},{gpus}mem={4 * job.cpus}G,node={nodes}"


def _stamp(moment: float | None) -> str:
    return datetime.fromtimestamp(BEGIN - BEFORE * DAY + (moment or 0.0), UTC).strftime("%Y-%m-%dT%H:%M:%S")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="a month of a GPU cluster that never was, as sacct prints it")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.stdout.write(month(seed=options.seed, jobs=options.jobs, nodes=options.nodes, load=options.load))
