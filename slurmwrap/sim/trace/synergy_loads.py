"""Generate loads as Synergy's own generator does (Mohan et al., OSDI 2022; msr-fiddle/synergy 1bb2bed6, simulator/).
Pure.

`synergy-static`: all jobs at once, 1 ms apart. `synergy-dynamic`: one by one, gaps exponential and rounded up to whole
seconds. Run times at the proportional share are 60 s times 10 to the power of a draw: `small` U(1.5, 2.5), and for one
job in five U(2.5, 2.7), as in the published traces for 32 GPUs; `gavel` U(1.5, 3) and U(3, 4), as in the authors'
documented check on 128. Models take turns within a task, and the next task is the one farthest below its part of the
jobs so far. Iterations are whole, so a run time is a multiple of its model's time per iteration.

The same seed gives the same jobs as in their generator, draw by draw. With one GPU per job the run times come from
their job log, of which this mode uses only the length. It is read after seeding (`small`: a log of twice the jobs), or
comes from a cache and leaves the random stream as it was (`gavel`: the check). `synthetic`, without a log, draws
everything from one stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, isclose, log

from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.synergy_models import ITERATION_S, TASKS

STATIC, DYNAMIC = KINDS = ("synergy-static", "synergy-dynamic")
SINGLE, SYNTHETIC = GPU_DEMANDS = ("single", "synthetic")
SMALL, GAVEL = RUN_TIMES = ("small", "gavel")
# Parts of the tasks, about those of the published traces.
SPLITS = {STATIC: (0.6, 0.3, 0.1), DYNAMIC: (0.3, 0.6, 0.1)}
JOBS_PER_HOUR = 30.0  # about that of the published dynamic trace
# Exponents of 10 for run times in minutes: usual jobs, long jobs.
_EXPONENTS = {SMALL: ((1.5, 2.5), (2.5, 2.7)), GAVEL: ((1.5, 3.0), (3.0, 4.0))}
_LONG_FROM = 0.8  # a draw above this is a long job: one in five
_LOG = 2
_GPUS_FROM = ((0.95, 8), (0.8, 4), (0.7, 2), (0.0, 1))  # (least draw, GPUs)
_APART_S = 0.001


def generate_load(
    kind: str,
    *,
    seed: int,
    jobs: int = 100,
    jobs_per_hour: float | None = None,
    split: Mapping[str, float] | Sequence[float] | None = None,
    gpu_demand: str = SINGLE,
    run_times: str = SMALL,
) -> tuple[SimJob, ...]:
    """Return `jobs` jobs in order of submission, the same for the same arguments. ValueError for an unknown name.

    `split`: parts of the image, language and speech models, by name or in that order, in any unit; None: as in the
    published trace. `jobs_per_hour`, None for 30, has no effect on `synergy-static`. `gpu_demand`: `single`, or
    `synthetic` for 1, 2, 4 and 8 GPUs in 70, 10, 15 and 5 % of the jobs.
    """
    for name, known in ((kind, KINDS), (gpu_demand, GPU_DEMANDS), (run_times, RUN_TIMES)):
        if name not in known:
            raise ValueError(f"'{name}' is none of {', '.join(known)}")
    rate = JOBS_PER_HOUR if jobs_per_hour is None else jobs_per_hour
    if not rate > 0:
        raise ValueError(f"jobs_per_hour must be above 0, not {rate:g}")
    stream = random.Random(seed)
    log_s = [_length_s(stream, run_times) for _ in range(jobs * _LOG)] if gpu_demand == SINGLE else []
    if log_s and run_times == GAVEL:
        stream.seed(seed)
    models = _draw_models(_parse_parts(SPLITS[kind] if split is None else split))
    now, made = 0.0, []
    for number in range(jobs):
        now = round(number * _APART_S, 3) if kind == STATIC else now + _gap_s(stream, rate)
        length_s = log_s[number] if log_s else _length_s(stream, run_times)
        gpus = 1 if gpu_demand == SINGLE else _draw_gpus(stream)
        # Their generator draws a model here and does not use it.
        stream.randint(0, 9)
        model = next(models)
        work_s = int(length_s / ITERATION_S[model]) * ITERATION_S[model]
        made.append(SimJob(number=number, job=str(number), submit_s=now, work_s=work_s, gpus=gpus, model=model))
    return tuple(made)


def _parse_parts(split: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    parts = dict(split) if isinstance(split, Mapping) else dict(zip(TASKS, split, strict=True))
    if set(parts) - set(TASKS) or not all(part >= 0 for part in parts.values()) or not sum(parts.values()) > 0:
        raise ValueError(f"the parts of {', '.join(TASKS)} must be 0 or more, and not all 0")
    total = sum(parts.values())
    # Percentages are accepted; parts that sum to 1 stay unchanged to the last bit.
    whole = 1.0 if isclose(total, 1.0) else total
    return {task: parts[task] / whole for task in TASKS if parts.get(task)}


def _gap_s(stream: random.Random, per_hour: float) -> int:
    return ceil(-log(1.0 - stream.random()) / per_hour * 60 * 60)


def _length_s(stream: random.Random, run_times: str) -> float:
    usual, long = _EXPONENTS[run_times]
    return 60 * float(10 ** stream.uniform(*(long if stream.random() >= _LONG_FROM else usual)))


def _draw_gpus(stream: random.Random) -> int:
    draw = stream.uniform(0, 1)
    return next(gpus for least, gpus in _GPUS_FROM if draw >= least)


def _draw_models(parts: Mapping[str, float]) -> Iterator[str]:
    """Yield models without end. The first is of the first task, whatever its part, because none is behind yet."""
    drawn = dict.fromkeys(parts, 0)
    behind = dict.fromkeys(parts, 0.0)
    while True:
        task = max(behind, key=lambda name: behind[name])
        yield TASKS[task][drawn[task] % len(TASKS[task])]
        drawn[task] += 1
        behind = {name: part - drawn[name] / sum(drawn.values()) for name, part in parts.items()}
