"""Queues as Synergy's own generator draws them (OSDI'22 artefact, simulator/): all at once or one by one.

Models in turn inside a task, the task being the one farthest below its share; run times at the proportional share
"gavel-like" and small: 60 s times 10 to the power of U(1.5, 2.5), of U(2.5, 2.7) for one job in five. Iterations are
whole, so a run time is a multiple of the model's time per iteration.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil

from replay.tracefile import TraceJob

TASKS = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
STATIC_SPLIT = {"image": 0.6, "language": 0.3, "speech": 0.1}
ITERATION_S = {  # at 3 CPUs and 62.5 GB per GPU, batch sizes as in the artefact
    "alexnet": 0.6,
    "res18": 0.64,
    "res50": 0.78,
    "mobilenet": 0.71,
    "shufflenet": 0.615,
    "gnmt": 0.12,
    "transformer": 0.67,
    "lstm": 0.011,
    "m5": 0.6,
    "deepspeech": 0.757,
}
LONG = 0.2  # of the jobs
GPUS = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}  # its synthetic mode of several GPUs


def static_jobs(seed: int, count: int = 100, split: Mapping[str, float] = STATIC_SPLIT) -> tuple[TraceJob, ...]:
    """`count` jobs, 1 ms apart; the same for the same seed."""
    draw = random.Random(seed)
    drawn = dict.fromkeys(split, 0)
    jobs = []
    for number in range(count):
        model = _model(drawn, split)
        work = int(_duration_s(draw) / ITERATION_S[model]) * ITERATION_S[model]
        jobs.append(TraceJob(number=number, model=model, submit_s=number * 0.001, work_s=work))
    return tuple(jobs)


def arriving_jobs(
    seed: int, per_hour: float, count: int = 100, split: Mapping[str, float] = STATIC_SPLIT
) -> tuple[TraceJob, ...]:
    """The jobs of static_jobs(), submitted at random times: gaps exponential, in whole seconds."""
    draw = random.Random(f"arrivals {seed}")
    now, jobs = 0.0, []
    for job in static_jobs(seed, count, split):
        now += ceil(draw.expovariate(per_hour / 3600))
        jobs.append(replace(job, submit_s=now))
    return tuple(jobs)


def with_gpus(jobs: Sequence[TraceJob], seed: int) -> tuple[TraceJob, ...]:
    """The same jobs, some of them on several GPUs of one server; their run times stay."""
    draw = random.Random(f"gpus {seed}")
    return tuple(replace(job, gpus=draw.choices(tuple(GPUS), tuple(GPUS.values()))[0]) for job in jobs)


def _duration_s(draw: random.Random) -> float:
    low, high = (2.5, 2.7) if draw.random() >= 1 - LONG else (1.5, 2.5)
    return 60.0 * float(10 ** draw.uniform(low, high))


def _model(drawn: dict[str, int], split: Mapping[str, float]) -> str:
    """Counts it in `drawn`."""
    total = sum(drawn.values()) or 1
    task = max(split, key=lambda name: split[name] - drawn[name] / total)
    model = TASKS[task][drawn[task] % len(TASKS[task])]
    drawn[task] += 1
    return model
