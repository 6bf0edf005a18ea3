"""Measure what sharing GPUs and moving running jobs are worth in Slurm's queue, on windows of Philly's trace.

The windows, the cluster (15 servers of 4 GPUs) and the loads are those of queue_order.py, which describes them; the
windows are those of its seed 1. Ratios are mean JCT of first come, first served over mean JCT.

    pack       `slurmwrap simulate --pack`: jobs of one GPU of the same virtual cluster share a GPU if the prediction of
               docs/colocation.md is good. The share of jobs whose users consent varies, and the mean GPU utilization of
               which it is drawn; with `slower` pairs run at 0.75 of the predicted speed
    move       `slurmwrap simulate --preempt`: production's choice (policy/move_choice.py), 60 s and the work since the
               last checkpoint per move. Run times are expected from the runs that ended before
    limits     the same on the 480 jobs of philly480_window.csv, for the rule's limits one by one
    scattered  jobs that need whole servers (--placement consolidate) on the same 480 jobs: how long those of 8 GPUs and
               more wait although as many GPUs are free

Nothing was chosen on these windows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import queue_order
from queue_order import LOADS, SERVERS, cut_window, list_ended_before

from slurmwrap.config.config_defaults import Move
from slurmwrap.sim.engines.gpu_sharing import PackSettings
from slurmwrap.sim.engines.sim_moves import MOVES, SimMoveSettings
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.read_trace import read_load

WINDOW480 = queue_order.TRACE.with_name("philly480_window.csv")
# Its first job among those of `queue_order.read_jobs`.
START480 = 45_480
LARGE = 8
_WORKERS = 4
BOTH = SimMoveSettings(occasions=MOVES["both"])
# What is changed -> the fields of Simulation. The first is what the others are compared with.
Variants = Mapping[str, Mapping[str, Any]]
FIFO: Variants = {"fifo": {}}
PACK: Variants = {
    **FIFO,
    "consent 25 %, utilization 52 %": {"pack": PackSettings(consent=0.25)},
    "consent 50 %, utilization 52 %": {"pack": PackSettings(consent=0.5)},
    "consent 100 %, utilization 52 %": {"pack": PackSettings(consent=1.0)},
    "consent 100 %, utilization 30 %": {"pack": PackSettings(consent=1.0, mean_util=0.3)},
    "consent 100 %, utilization 75 %": {"pack": PackSettings(consent=1.0, mean_util=0.75)},
    "consent 100 %, utilization 52 %, slower": {"pack": PackSettings(consent=1.0, speed_factor=0.75)},
}
MOVE: Variants = {
    **FIFO,
    "order shortest": {"order": "shortest"},
    "move": {"move": BOTH},
    "move, order shortest": {"order": "shortest", "move": BOTH},
    "pack 50 %, move, order shortest": {"order": "shortest", "move": BOTH, "pack": PackSettings(consent=0.5)},
}


def _list_limits() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "fifo", {}
    for order in ("shortest", "exact"):
        yield f"order {order}", {"order": order}
    yield "move, as the rule is", {"move": BOTH}
    for order in ("shortest", "srtf", "gittins"):
        yield f"move, order {order}", {"order": order, "move": BOTH}
    changes: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("GPUs at a time: 100 %", {"gpu_share": 1.0}),
        ("GPUs at a time: 20 %", {"gpu_share": 0.2}),
        ("a job every 0 h", {"every_s": 0.0}),
        ("a job every 8 h", {"every_s": 8 * 3600.0}),
        ("gain: 1 x cost", {"gain_factor": 1.0}),
        ("gain: 10 x cost", {"gain_factor": 10.0}),
        ("also in the last 15 %", {"last_share": 0.0}),
        ("none of these limits", {"gpu_share": 1.0, "every_s": 0.0, "gain_factor": 1.0, "last_share": 0.0}),
    )
    for name, change in changes:
        yield f"move, {name}", {"move": replace(BOTH, rule=replace(Move(), **change))}
    for minutes in (10, 120):
        yield f"move, checkpoint every {minutes} min", {"move": replace(BOTH, checkpoint_s=60.0 * minutes)}
    for share in (0.25, 0.5):
        yield f"move, {100 * share:.0f} % of the jobs", {"move": replace(BOTH, consent=share)}
    yield "move, true run times", {"move": replace(BOTH, exact=True)}
    yield "move, order srtf, true run times", {"order": "srtf", "move": replace(BOTH, exact=True)}


def _list_scattered() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for order in ("", "shortest"):
        name = f"order {order}" if order else "fifo"
        common = {"order": order, "placement": "consolidate"}
        yield name, common
        for occasion, occasions in MOVES.items():
            # Without another order, jobs that were moved wait in the class of their attained service.
            yield f"{name}, move: {occasion}", {**common, "move": SimMoveSettings(occasions=occasions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRun:
    """One window under one variant. Seconds; ratios: of the first variant over this one."""

    variant: str
    start: int  # index of the window's first job
    load: float
    mean_jct_s: float
    jct: float
    p99_jct: float
    makespan: float
    gpu_utilisation: float  # GPU time in use, of all GPU time
    gpu_time: float  # GPU time in use
    packed: int
    moved: int
    scattered_s: float  # mean of the jobs of LARGE GPUs and more


def play_variants(
    jobs: tuple[SimJob, ...], start: int, load: float, history: tuple[SimJob, ...], variants: Variants
) -> list[VariantRun]:
    """Return the results of one window."""
    found, first = [], None
    for name, fields in variants.items():
        asked = Simulation(jobs=jobs, servers=SERVERS, mode="slurm", history=history, scattered_gpus=LARGE)
        outcome, summary = run_simulation(replace(asked, **fields))
        in_use = summary.gpu_utilisation * summary.makespan_s
        base, base_use = first or (summary, in_use)
        first = base, base_use
        large = [outcome.scattered_s[job.number] for job in jobs if job.gpus >= LARGE]
        found.append(
            VariantRun(
                variant=name, start=start, load=load, mean_jct_s=summary.mean_jct_s,
                jct=base.mean_jct_s / summary.mean_jct_s, p99_jct=base.p99_jct_s / summary.p99_jct_s,
                makespan=base.makespan_s / summary.makespan_s, gpu_utilisation=summary.gpu_utilisation,
                gpu_time=base_use / in_use, packed=outcome.packed, moved=outcome.preemptions,
                scattered_s=fmean(large) if large else 0.0,
            )
        )  # fmt: skip
        print(f"window {start}, load {load}: {name}", file=sys.stderr)
    return found


def play_ten_windows(variants: Variants) -> list[VariantRun]:
    jobs = queue_order.read_jobs()
    with ProcessPoolExecutor(_WORKERS) as pool:
        windows = [
            pool.submit(
                play_variants, cut_window(jobs, start, load), start, load, list_ended_before(jobs, start), variants
            )
            for load in LOADS
            for start in queue_order.choose_windows(jobs, queue_order.SEED)
        ]
        return [run for window in windows for run in window.result()]


def play_480_jobs(variants: Variants) -> list[VariantRun]:
    jobs, history = read_load(WINDOW480).jobs, list_ended_before(queue_order.read_jobs(), START480)
    first, *others = variants.items()
    with ProcessPoolExecutor(_WORKERS) as pool:
        pairs = [pool.submit(play_variants, jobs, START480, 1.0, history, dict((first, other))) for other in others]
        return [pairs[0].result()[0], *(pair.result()[1] for pair in pairs)]


def format_runs(runs: Sequence[VariantRun]) -> str:
    """Return the means of the windows as a table: one line per load and variant."""
    head = ("load", "variant", "mean JCT", "least", "most", "p99 JCT", "makespan", "GPU time", "GPUs in use", "packed")
    head = (*head, "moves", "scattered s")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for load, variant in dict.fromkeys((run.load, run.variant) for run in runs):
        group = [run for run in runs if (run.load, run.variant) == (load, variant)]
        jcts = [run.jct for run in group]
        ratios = (
            fmean(jcts),
            min(jcts),
            max(jcts),
            *(_mean(group, name) for name in ("p99_jct", "makespan", "gpu_time")),
        )
        counts = (_mean(group, name) for name in ("packed", "moved", "scattered_s"))
        cells = [*(f"{one:.2f}" for one in ratios), f"{100 * _mean(group, 'gpu_utilisation'):.1f} %"]
        lines.append(f"| {load} | {variant} | " + " | ".join([*cells, *(f"{one:,.0f}" for one in counts)]) + " |")
    return "\n".join(lines)


def _mean(group: Sequence[VariantRun], name: str) -> float:
    return fmean(getattr(run, name) for run in group)


STUDIES = {
    "pack": lambda: play_ten_windows(PACK),
    "move": lambda: play_ten_windows(MOVE),
    "limits": lambda: play_480_jobs(dict(_list_limits())),
    "scattered": lambda: play_480_jobs(dict(_list_scattered())),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, nargs="+")
    parser.add_argument("--json", type=Path, metavar="FILE", help="each window")
    options = parser.parse_args()
    found = {study: STUDIES[study]() for study in options.study}
    for study, runs in found.items():
        print(f"{study}\n\n{format_runs(runs)}\n")
    if options.json:
        whole = {study: [asdict(run) for run in runs] for study, runs in found.items()}
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
