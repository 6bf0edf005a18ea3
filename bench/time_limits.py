"""Evaluate rule `limit` on invented jobs, with production's functions.

    bench/time_limits.py                 both parts (about a minute)
    bench/time_limits.py --seed 2 --json
    bench/time_limits.py --plot docs/time-limits.svg

1. Limits that fit. Users have several programs each; the run times of one program have a known spread, and its time
limits follow a habit: 1.2 to 10 times the median, rounded up to what people write, or always one or seven days. Causal
replay: each job sees the runs that had ended before its submission. Printed: for how many jobs a lower limit is
chosen, which part of the requested hours it frees while they wait, and how many of these jobs ran longer than it. Those
are not killed: their user's limit is restored when they start. But they delay jobs whose start was planned behind them.

2. The last checkpoint before a time limit. Jobs that resume write checkpoints at intervals with a spread of 10 %. The
reconciler sees a checkpoint up to a minute later, and Slurm ends a job up to half a minute after its limit (it looks
every 30 s). The job's own estimate of its remaining time is wrong by up to a quarter. Printed: GPU time after the last
checkpoint that was complete before the end, without and with slurmwrap, the GPU time of their limits that jobs gave up,
and how many jobs were ended that would have finished before their limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from importlib import import_module
from math import exp
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.config.load_config import Limit
from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.policy.checkpoint_limit import CheckpointRun, choose_checkpoint_limit
from slurmwrap.policy.time_limit import compute_lower_limit
from slurmwrap.profiling.run_time import RunTimeHistory, RunTimeQuery

HOUR, DAY = 3600.0, 86_400.0
SPREADS = (0.1, 0.2, 0.4, 0.8)
# Jobs, programs, and the spread of the medians of programs (log of seconds).
JOBS, PROGRAMS, MEDIAN_SIGMA = 5_000, 120, 1.3
# Limits as people write them, in hours.
WRITTEN = (0.5, 1, 2, 4, 6, 8, 12, 16, 24, 36, 48, 72, 96, 120, 168)
CHECKPOINT_JOBS, LOOK_S, PASS_S = 2_000, 60.0, 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFigures:
    """The first part, for one spread within a program."""

    spread: float
    jobs: int
    lowered: int
    too_short: int
    asked_hours: float
    freed_hours: float  # of the jobs that ended within the lower limit

    def line(self) -> str:
        return (
            f"  {self.spread:>7}{self.jobs:>10,}{self.lowered / self.jobs:>12.1%}"
            f"{self.freed_hours / self.asked_hours:>15.1%}{self.too_short / max(1, self.lowered):>18.2%}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFigures:
    """The second part, for one setting of limit.extend_s."""

    extend_s: float
    jobs: int
    lost_before_hours: float  # GPU time after the last checkpoint, without slurmwrap
    lost_hours: float
    given_up_hours: float  # of the time limits, by jobs that were ended before them
    ended_wrongly: int  # jobs that would have finished before their limit

    def line(self) -> str:
        change = self.lost_hours / self.lost_before_hours - 1
        extended = f"extend_s = {self.extend_s:.0f}"
        return (
            f"  {extended:20}{self.jobs:>8,}{self.lost_before_hours:>12,.0f} h{self.lost_hours:>12,.0f} h"
            f"{change:>9.1%}{self.given_up_hours:>12,.0f} h{self.ended_wrongly:>16}"
        )


def measure_limits(spread: float, seed: int) -> LimitFigures:
    """Replay JOBS jobs of PROGRAMS programs."""
    dice, history, settings = Random(f"{seed} {spread}"), RunTimeHistory(), Limit()
    programs = [_invent_program(dice, number) for number in range(PROGRAMS)]
    running: list[tuple[float, int, RunTimeQuery, float]] = []
    lowered = too_short = 0
    asked = freed = now = 0.0
    for number in range(JOBS):
        now += dice.expovariate(1 / 120)
        while running and running[0][0] <= now:
            _, _, ended, run_s = heappop(running)
            history.add(ended, RunTimeSample(run_s=run_s))
        # A few programs run often, most of them rarely.
        job, median_s, limit_s = programs[min(int(dice.paretovariate(0.6)) - 1, 10**6) % PROGRAMS]
        run_s = min(limit_s, median_s * exp(dice.gauss(0, spread)))
        asked += limit_s
        limit = compute_lower_limit(history.estimate(job), limit_s, settings)
        if limit is not None:
            lowered += 1
            too_short += run_s > limit
            freed += limit_s - limit if run_s <= limit else 0.0
        heappush(running, (now + run_s, number, job, run_s))
    return LimitFigures(
        spread=spread,
        jobs=JOBS,
        lowered=lowered,
        too_short=too_short,
        asked_hours=asked / HOUR,
        freed_hours=freed / HOUR,
    )


def _invent_program(dice: Random, number: int) -> tuple[RunTimeQuery, float, float]:
    """Return a program, the median of its run times and its time limit, in seconds."""
    job = RunTimeQuery(user=f"user{number % 60}", key=f"program{number}", gpus=dice.choice((1, 1, 1, 2, 4, 8)))
    median_s = min(3 * DAY, max(300.0, HOUR * exp(dice.gauss(0.5, MEDIAN_SIGMA))))
    habit = dice.random()
    limit_h = 24.0 if habit < 0.2 else 168.0 if habit < 0.4 else median_s / HOUR * dice.uniform(1.2, 10)
    return job, median_s, next((hours for hours in WRITTEN if hours >= limit_h), 168.0) * HOUR


def measure_checkpoints(extend_s: float, seed: int) -> CheckpointFigures:
    """Run CHECKPOINT_JOBS jobs to their time limit or their end."""
    before = after = given_up = 0.0
    wrong = timeouts = 0
    dice = Random(seed)
    for _ in range(CHECKPOINT_JOBS):
        gpus, limit_s = dice.choice((1, 2, 4, 8)), dice.choice((12, 24, 48, 72)) * HOUR
        interval_s = min(limit_s / 4, max(300.0, HOUR * exp(dice.gauss(-0.5, 0.8))))
        # Most jobs need longer than their limit; some finish shortly before or after it.
        needs_s = limit_s * (dice.uniform(1.5, 10) if dice.random() < 0.8 else dice.uniform(0.8, 1.2))
        saves = list(_invent_saves(dice, interval_s, limit_s + extend_s + 2 * interval_s))
        wrong_by, killed_after = dice.uniform(0.8, 1.25), dice.uniform(0, 30)
        end = _play(saves, limit_s, needs_s, extend_s, wrong_by, dice)
        if needs_s > limit_s:
            timeouts += 1
            before += gpus * _find_lost_s(saves, limit_s + killed_after)
        if needs_s > end:
            after += gpus * _find_lost_s(saves, end + killed_after)
            wrong += needs_s <= limit_s
            given_up += gpus * max(0.0, limit_s - end)
    return CheckpointFigures(
        extend_s=extend_s,
        jobs=timeouts,
        lost_before_hours=before / HOUR,
        lost_hours=after / HOUR,
        given_up_hours=given_up / HOUR,
        ended_wrongly=wrong,
    )


def _invent_saves(dice: Random, interval_s: float, until: float) -> Iterator[float]:
    at = 0.0
    while at < until:
        at += interval_s * max(0.3, dice.gauss(1, 0.1))
        yield at


def _find_lost_s(saves: list[float], end: float) -> float:
    return end - max((at for at in saves if at <= end), default=0.0)


def _play(saves: list[float], limit_s: float, needs_s: float, extend_s: float, wrong_by: float, dice: Random) -> float:
    """Return when the job ends: by itself, or by the limit that it has at last. The reconciler looks once a minute."""
    seen: list[float] = []
    limit, may_extend, written = limit_s, extend_s > 0, 0
    now = limit_s / 2 + dice.uniform(0, LOOK_S)
    while now < min(limit, needs_s):
        before = written
        while saves[written] <= now:
            written += 1
        if written > before:
            seen.append(now)
        run = CheckpointRun(
            start=0,
            limit_s=limit,
            # The first one may have been written at any time before.
            saves=seen[1:],
            remaining_s=(needs_s - now) * wrong_by,
            longest_s=limit_s + extend_s if may_extend else 0.0,
        )
        if change := choose_checkpoint_limit(run, now):
            limit, may_extend = float(change.limit_s), False
            if change.ends:
                break
        now += LOOK_S + dice.uniform(0, PASS_S)
    return min(limit, needs_s)


def draw(limits: list[LimitFigures], checkpoints: list[CheckpointFigures], path: Path) -> None:
    """Plot the requested hours that are freed, and the GPU time after the last checkpoint."""
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.4), layout="constrained")
    freed, lost = figure.subplots(1, 2)
    names = [str(one.spread) for one in limits]
    freed.bar(names, [100 * one.freed_hours / one.asked_hours for one in limits], color="#264653", label="hours freed")
    longer = [100 * one.too_short / max(1, one.lowered) for one in limits]
    freed.plot(names, longer, "o-", color="#e76f51", label="jobs that ran longer than their lower limit")
    freed.set(xlabel="spread of log(run time) within a program", ylabel="%", title="Limits that fit", ylim=(0, 100))
    places = range(len(checkpoints))
    lost.bar(
        [at - 0.2 for at in places],
        [one.lost_before_hours for one in checkpoints],
        0.4,
        color="#e9c46a",
        label="without",
    )
    lost.bar([at + 0.2 for at in places], [one.lost_hours for one in checkpoints], 0.4, color="#264653", label="with")
    lost.set_xticks(list(places), [f"extend_s = {one.extend_s:.0f}" for one in checkpoints])
    lost.set_ylim(0, 1.25 * max(one.lost_before_hours for one in checkpoints))
    lost.set(ylabel="GPU hours", title="Work after the last checkpoint before a time limit")
    for axes in (freed, lost):
        axes.grid(alpha=0.3, axis="y")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw this file as well")
    arguments = parser.parse_args()
    limits = [measure_limits(spread, arguments.seed) for spread in SPREADS]
    checkpoints = [measure_checkpoints(extend_s, arguments.seed) for extend_s in (0.0, 1800.0, 3600.0)]
    if arguments.plot is not None:
        draw(limits, checkpoints, arguments.plot)
    if arguments.json:
        print(
            json.dumps({"limits": [asdict(one) for one in limits], "checkpoints": [asdict(one) for one in checkpoints]})
        )
        return 0
    print("Limits that fit, by the spread of log(run time) within a program")
    print(f"  {'spread':>7}{'jobs':>10}{'lowered':>12}{'hours freed':>15}{'ran longer':>18}")
    print("\n".join(one.line() for one in limits))
    print("\nGPU time after the last checkpoint of jobs that reach their time limit")
    heads = f"{'jobs':>8}{'without':>14}{'with':>14}{'change':>9}{'given up':>14}{'ended wrongly':>16}"
    print(f"  {'':20}{heads}")
    print("\n".join(one.line() for one in checkpoints))
    return 0


if __name__ == "__main__":
    sys.exit(main())
