"""A PyTorch DataLoader and its training loop on k CPUs, event by event: truth for bench/cpu_choice.py. Pure.

Nothing of the formulas in slurmwrap and bench/cpu_interpolation.py is used. W workers compute batches whose CPU time
varies; at most 2 batches per worker wait; the training process takes the batches in order, uses a CPU for a part of the
step and waits for the device in the rest. All processes that want a CPU share the k CPUs evenly, at most one each.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PREFETCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderJob:
    """Times in seconds; `spread` is the standard deviation of a batch's CPU time, relative to its mean."""

    workers: int
    batch_s: float
    spread: float
    main_s: float  # CPU time of the training process in a step
    device_s: float


def invent_job(chance: random.Random, top: int) -> LoaderJob:
    """Return a job that needs from 1 to about `top` CPUs."""
    step_s = 0.1
    wanted = chance.uniform(0.5, 1.3 * top)
    main_s = step_s * chance.choice((0.05, 0.2, 0.5))
    return LoaderJob(
        workers=chance.choice((2, 4, 8, top, 2 * top)),
        batch_s=step_s * wanted,
        spread=chance.choice((0.05, 0.3, 0.8)),
        main_s=main_s,
        device_s=step_s - main_s,
    )


def compute_steps_per_s(job: LoaderJob, cpus: float, *, steps: int = 300, seed: int = 0) -> float:
    """Return the speed on `cpus` CPUs, after the prefetched batches of the start are used up."""
    chance = random.Random(seed)
    shape = 1 / job.spread**2
    work = [chance.gammavariate(shape, job.batch_s / shape) for _ in range(steps + 4 * PREFETCH * job.workers)]
    first = 2 * PREFETCH * job.workers
    last = first + steps
    next_batch = list(range(job.workers))
    left: list[float] = [0.0] * job.workers  # CPU seconds of the batch that is computed; 0: none
    ready: set[int] = set()
    taken, now, began = 0, 0.0, 0.0
    main_left, device_left = 0.0, 0.0
    while taken < last:
        for worker in range(job.workers):
            batch = next_batch[worker]
            if left[worker] == 0.0 and batch < min(taken + PREFETCH * job.workers, len(work)):
                left[worker] = work[batch]
        if main_left == device_left == 0.0 and taken in ready:
            ready.discard(taken)
            taken += 1
            main_left, device_left = job.main_s, job.device_s
            if taken == first:
                began = now
            continue
        busy = sum(one > 0 for one in left) + (main_left > 0)
        share = min(1.0, cpus / busy) if busy else 1.0
        waits = [one / share for one in left if one > 0]
        waits += [main_left / share] if main_left > 0 else [device_left] if device_left > 0 else []
        step = min(waits)
        now += step
        for worker, one in enumerate(left):
            if one > 0:
                left[worker] = one - step * share
                if left[worker] < 1e-12:
                    left[worker] = 0.0
                    ready.add(next_batch[worker])
                    next_batch[worker] += job.workers
        if main_left > 0:
            main_left = main_left - step * share if main_left - step * share > 1e-12 else 0.0
        elif device_left > 0:
            device_left = device_left - step if device_left - step > 1e-12 else 0.0
    return (last - first) / (now - began)
