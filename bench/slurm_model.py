"""Compare the simulator's slurm mode with Slurm: loads on a real Slurm (slurmwrap lab) and in the model. Runs as root.

    bench/slurm_model.py                    Philly's window and drawn loads, once each (about ten minutes)
    bench/slurm_model.py --seeds 1-3 --loads drawn --repeat 2

Jobs sleep. One second on the lab is one second in the model, and stands for --scale seconds of a trace. Time limits are
whole minutes, as in sbatch, and backfill relies on them in both. The model knows the requests and when slurmctld
received each job, and nothing of what happened afterwards. Two of its settings come from an earlier calibration with
jobs that run alone: how much longer than its sleep a job takes, and the time from an end to the next start in its
place.

Printed: makespan, mean queueing delay (real / model), Spearman's rank correlation of the starts, and the share of jobs
that started within 2 s, 5 s and 5 % of the makespan of the model's time; also for a model without backfill, for
comparison. Exit code 1 when the makespan is off by more than 10 % or the starts correlate by less than 0.9.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay import arms
from replay.labs import Lab, Wanted, account, lab, parent, wait_for
from replay.measures import start_gaps
from replay.records import Run
from replay.tracefile import DATA

from slurmwrap.sim.engines import SchedulerParams, play_backfill
from slurmwrap.sim.sim_job import SimJob, make_equal_servers

NODES, GPUS, CPUS, MEM_GB = 4, 8, 32, 200
MOST_MAKESPAN, LEAST_RANK = 0.10, 0.9
FASTER = 8.0  # arrivals are this many times as fast, so that jobs queue
# SchedulerParameters of the lab (templates/lab/slurm.conf.j2); the rest is Slurm's default
LAB = SchedulerParams(sched_interval_s=2.0, queue_depth=1000, backfill_s=1.0, servers_per_leaf=NODES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """The model compared with the real run for one load, in seconds."""

    load: str
    jobs: int
    makespan_s: float
    makespan_ratio: float  # real / model
    queueing_s: float
    queueing_ratio: float
    rank: float  # Spearman, of the starts
    within_2s: float
    within_5s: float
    within_5_percent: float  # of the makespan
    most_off_s: float
    no_backfill_rank: float
    no_backfill_makespan_ratio: float
    out_of_turn: float  # share of jobs that started before one that came earlier


# ------------------------------------------------------------------------------------------- loads


def philly(scale: float, count: int = 100) -> tuple[SimJob, ...]:
    """Return the first jobs of the shared window that ended within four hours, arriving `FASTER` times as fast."""
    with (DATA / "traces" / "philly480_window.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if float(row["duration_s"]) <= 14_400][:count]
    first = float(rows[0]["submit_s"])
    return tuple(
        _job(
            n,
            (float(row["submit_s"]) - first) / scale / FASTER,
            float(row["duration_s"]) / scale,
            int(row["gpus"]),
            None,
        )
        for n, row in enumerate(rows)
    )


def drawn(seed: int, count: int = 80) -> tuple[SimJob, ...]:
    """Draw jobs of 1 to 16 GPUs, 2 to 40 s, limits up to 3 min; a third without --nodes, a third with more CPUs."""
    chance = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(count):
        at += chance.expovariate(2.5)
        gpus = chance.choices((1, 2, 4, 8, 16), (50, 15, 15, 15, 5))[0]
        nodes = max(1, gpus // GPUS) if gpus == 1 or chance.random() < 0.67 else None
        job = _job(number, at, math.exp(chance.uniform(math.log(2), math.log(40))), gpus, nodes)
        more = chance.random() < 0.33 and gpus < GPUS
        jobs.append(replace(job, cpus=gpus * (6 if more else 3), limit_s=60.0 * chance.randint(1, 3)))
    return tuple(jobs)


def _job(number: int, submit_s: float, work_s: float, gpus: int, nodes: int | None) -> SimJob:
    limit = 60.0 * math.ceil((work_s + 20) / 60)
    return SimJob(
        number=number, job=str(number), submit_s=submit_s, work_s=work_s, gpus=gpus, nodes=nodes, cpus=3 * gpus,
        mem_mib=4096 * gpus, limit_s=limit,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- on the lab


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """The real run: seconds from the first submission, by position in the load."""

    submitted: Mapping[int, float]
    runs: Mapping[int, Run]
    zero: float


def replayed(running: Lab, jobs: Sequence[SimJob]) -> Real:
    """Submit each job when it is due, and wait until all have ended."""
    began = time.monotonic()
    ids: dict[int, int] = {}
    for place, job in enumerate(jobs):
        time.sleep(max(0.0, job.submit_s - (time.monotonic() - began)))
        ids[arms.submitted(running, ["sbatch", *_options(job), "--wrap", f"exec sleep {job.work_s:.3f}"])] = place
    wait_for(lambda: not arms.queue(running), 1200.0, "the end of all jobs", 0.5)
    wait_for(lambda: len(arms.runs_of(running, ids)) >= len(ids), 30.0, "every job's end in slurmctld's log")
    submits = arms.submits_of(running, ids)
    zero = min(submits.values())
    return Real(
        submitted={ids[job_id]: at - zero for job_id, at in submits.items()},
        runs={ids[run.job_id]: run for run in arms.runs_of(running, ids)},
        zero=zero,
    )


def _options(job: SimJob) -> list[str]:
    cpus, memory, nodes = job.cpus or job.gpus, job.mem_mib or 1024, job.nodes
    common = ["--output=/dev/null", f"--time={math.ceil((job.limit_s or 60) / 60)}"]
    if nodes is None:
        per_gpu = [f"--cpus-per-gpu={cpus // job.gpus}", f"--mem-per-gpu={memory // job.gpus}M"]
        return [*common, f"--gpus={job.gpus}", *per_gpu]
    one = [f"--gres=gpu:{job.gpus // nodes}", f"--cpus-per-task={cpus // nodes}", f"--mem={memory // nodes}M"]
    return [*common, f"--nodes={nodes}", "--ntasks-per-node=1", *one]


def calibrated(running: Lab) -> tuple[float, float]:
    """Return medians for whole-node jobs: (time beyond the sleep, time from an end to the next start in its place)."""
    jobs = [_job(n, 0.0, 1.0, GPUS * NODES, NODES) for n in range(10)]
    runs = sorted(replayed(running, jobs).runs.values(), key=lambda run: run.start)
    return median(run.end - run.start - 1.0 for run in runs), median(start_gaps(runs))


# ------------------------------------------------------------------------------------------- next to the model


def likeness(load: str, jobs: Sequence[SimJob], real: Real, world: SchedulerParams, longer_s: float) -> Likeness:
    """Compare the model. `load`: its name; `longer_s`: how much longer than its sleep a job takes."""
    servers = make_equal_servers(NODES, gpus=GPUS, cpus=CPUS, mem_gb=MEM_GB)
    told = [replace(job, submit_s=real.submitted[n], work_s=job.work_s + longer_s) for n, job in enumerate(jobs)]
    outcome = play_backfill(told, servers, world=world, profiles={})
    plain = play_backfill(told, servers, world=replace(world, backfill_s=0.0), profiles={})
    starts = [real.runs[n].start - real.zero for n in range(len(jobs))]
    end = max(run.end for run in real.runs.values()) - real.zero
    model = [began or 0.0 for began in outcome.began_s]
    off = [abs(a - b) for a, b in zip(starts, model, strict=True)]
    waits = [a - job.submit_s for a, job in zip(starts, told, strict=True)]
    model_waits = [a - job.submit_s for a, job in zip(model, told, strict=True)]
    return Likeness(
        load=load,
        jobs=len(jobs),
        makespan_s=end,
        makespan_ratio=end / max(ended or 0.0 for ended in outcome.ended_s),
        queueing_s=fmean(waits),
        queueing_ratio=fmean(waits) / max(1e-9, fmean(model_waits)),
        rank=spearman(starts, model),
        within_2s=fmean(one <= 2 for one in off),
        within_5s=fmean(one <= 5 for one in off),
        within_5_percent=fmean(one <= 0.05 * end for one in off),
        most_off_s=max(off),
        no_backfill_rank=spearman(starts, [began or 0.0 for began in plain.began_s]),
        no_backfill_makespan_ratio=end / max(ended or 0.0 for ended in plain.ended_s),
        out_of_turn=fmean(start > min(starts[n:]) for n, start in enumerate(starts)),
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; ties get the mean of their ranks."""
    a, b = _ranks(one), _ranks(other)
    ma, mb = fmean(a), fmean(b)
    above = sum((x - ma) * (y - mb) for x, y in zip(a, b, strict=True))
    return above / math.sqrt(sum((x - ma) ** 2 for x in a) * sum((y - mb) ** 2 for y in b))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    places: dict[float, list[int]] = {}
    for rank, place in enumerate(order):
        places.setdefault(values[place], []).append(rank)
    return [fmean(places[value]) for value in values]


def table(rows: Sequence[Likeness]) -> str:
    """Return the comparison as text."""
    names = [name for name in asdict(rows[0]) if name != "load"]
    lines = [f"{'':28}" + "".join(f"{row.load:>14}" for row in rows)]
    for name in names:
        lines.append(f"{name:28}" + "".join(f"{getattr(row, name):>14.3f}" for row in rows))
    return "\n".join(lines)


def main() -> int:
    """Run the loads; return exit code 1 when the model deviates too much."""
    options = _parsed()
    rows, record = [], []
    with account(), parent() as directory:
        wanted = Wanted(
            directory=directory / "model", base_port=options.base_port, nodes=NODES, gpus=GPUS, cpus=CPUS,
            mem_mib=MEM_GB * 1024, poll_s=60.0,
        )  # fmt: skip
        with lab(wanted) as running:
            longer_s, react_s = calibrated(running)
            print(f"a run takes {longer_s:.3f} s beyond its sleep; from an end to the next start {react_s:.3f} s")
            world = replace(LAB, react_s=react_s)
            for name, jobs in _loads(options).items():
                for _ in range(options.repeat):
                    real = replayed(running, jobs)
                    rows.append(likeness(name, jobs, real, world, longer_s))
                    starts = {
                        n: (run.start - real.zero, run.end - real.zero, run.nodes) for n, run in real.runs.items()
                    }
                    record.append({"load": name, "submitted": real.submitted, "runs": starts, **asdict(rows[-1])})
    print(table(rows))
    if options.out:
        found = {"longer_s": longer_s, "react_s": react_s, "loads": record}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    missed = [r for r in rows if abs(r.makespan_ratio - 1) > MOST_MAKESPAN or r.rank < LEAST_RANK]
    return 1 if missed else 0


def _loads(options: argparse.Namespace) -> dict[str, tuple[SimJob, ...]]:
    """Return the loads by name."""
    first, last = (int(part) for part in options.seeds.split("-"))
    loads = {"philly": philly(options.scale)} if "philly" in options.loads else {}
    if "drawn" in options.loads:
        loads |= {f"drawn {seed}": drawn(seed) for seed in range(first, last + 1)}
    return loads


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", nargs="+", choices=("philly", "drawn"), default=["philly", "drawn"])
    parser.add_argument("--seeds", default="1-4", help="of the drawn loads, as first-last")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--scale", type=float, default=200.0, help="seconds of the trace in one second")
    parser.add_argument("--base-port", type=int, default=24000)
    parser.add_argument("--out", type=Path, help="JSON file: everything that was seen")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
