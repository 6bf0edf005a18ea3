"""How often the pre-run's CPU sweep finds the right CPUs, and how well it knows the speeds that it did not measure.

    bench/cpu_choice.py                              loaders simulated event by event (bench/loader_model.py)
    bench/cpu_choice.py --profiles PROFILES.csv      and measured profiles: columns model, mem_gb, cpus, throughput
    bench/cpu_choice.py --check                      exit code 1 if a speed is wrong by more than 5 % with no noise

Each curve is swept as a pre-run does it (prerun/trial/cpu_profiler.py): every window is the true speed times noise. The
right answer is that of the rule, "least CPUs within 5 % of the best", on the true curve. `first` is the sweep without
the rules for uncertain sizes and for points near the limit, `now` the sweep in use. The error is that of the worst
size below the answer that was not measured (bench/cpu_interpolation.py), one figure per curve.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from cpu_interpolation import predict
from loader_model import compute_steps_per_s, invent_job

from slurmwrap.model.cpu_sweep import (
    GOOD,
    UNSURE,
    choose_next_cpus,
    choose_uncertain_cpus,
    curve_of,
    least_cpus,
    list_unsettled_points,
)
from slurmwrap.prerun.trial.cpu_profiler import SETTLE_S, WINDOW_S

Truth = dict[int, float]
NOISES = (0.0, 0.02, 0.04)
# Steps per second of a job that is simulated on every number of CPUs up to these.
TOPS = (4, 8, 16)
MOST_ERROR = 0.05
# A choice is good if it gives this share of the best speed and takes at most one size more than the least.
NEARLY_GOOD = GOOD - 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one sweep of one curve found. `error`: of the worst size below the answer; None if all were measured."""

    exact: bool
    within_one: bool
    good: bool
    error: float | None
    windows: int


def sweep(truth: Truth, noise: float, chance: random.Random, *, first: bool) -> Sweep:
    """Sweep `truth` as a pre-run does, with or without (`first`) the later rules."""
    sizes = sorted(truth)
    rounds: dict[int, list[float]] = {}
    while True:
        curve = curve_of(rounds)
        if (cpus := choose_next_cpus(curve, sizes)) is not None:
            wanted: tuple[int, ...] = (cpus,)
        elif again := list_unsettled_points(rounds, near_limit=not first):
            wanted = again
        elif (cpus := choose_uncertain_cpus(curve, sizes, unsure=math.inf if first else UNSURE)) is not None:
            wanted = (cpus,)
        else:
            break
        for size in wanted:
            rounds.setdefault(size, []).append(truth[size] * math.exp(chance.gauss(0, noise)))
    return _judge(truth, rounds)


def _judge(truth: Truth, rounds: dict[int, list[float]]) -> Sweep:
    sizes, curve = sorted(truth), curve_of(rounds)
    right = least_cpus(curve_of({cpus: [rate] for cpus, rate in truth.items()})) or 0
    found = least_cpus(curve) or 0
    away = sizes.index(found) - sizes.index(right)
    errors = [abs((predict(curve, k) or 0.0) / rate - 1) for k, rate in truth.items() if k < right and k not in rounds]
    return Sweep(
        exact=away == 0,
        within_one=abs(away) <= 1,
        good=truth[found] >= NEARLY_GOOD * max(truth.values()) and away <= 1,
        error=max(errors, default=None),
        windows=sum(map(len, rounds.values())),
    )


def read_profiles(path: Path) -> list[Truth]:
    """Return the different curves of a file with one row per model, memory and number of CPUs."""
    found: defaultdict[tuple[str, str], Truth] = defaultdict(dict)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            found[row["model"], row["mem_gb"]][int(row["cpus"])] = float(row["throughput"])
    return list({tuple(sorted(truth.items())): truth for truth in found.values()}.values())


def invent_curves(count: int, top: int, seed: int) -> list[Truth]:
    chance = random.Random(seed)
    jobs = [invent_job(chance, top) for _ in range(count)]
    return [{cpus: compute_steps_per_s(job, cpus, seed=seed) for cpus in range(1, top + 1)} for job in jobs]


def report(name: str, curves: list[Truth], repeats: int) -> float:
    """Print both sweeps of these curves, with each noise; return the worst error of the one in use without noise."""
    worst = 0.0
    for noise in NOISES:
        windows = {}
        for label, first in (("first", True), ("now", False)):
            found = [
                sweep(truth, noise, random.Random(f"{number} {again}"), first=first)
                for number, truth in enumerate(curves)
                for again in range(repeats if noise else 1)
            ]
            windows[label] = statistics.fmean(one.windows for one in found)
            errors = sorted(one.error for one in found if one.error is not None)
            over = sum(error > MOST_ERROR for error in errors) / len(found)
            share = [100 * statistics.fmean(getattr(one, key) for one in found) for key in _SHARES]
            print(
                f"  {name:24}{100 * noise:>4.0f} %  {label:6}{share[0]:>6.1f} %{share[1]:>9.1f} %{share[2]:>7.1f} %"
                f"{100 * over:>9.1f} %{100 * max(errors, default=0.0):>8.1f} %{windows[label]:>9.1f}"
            )
            if not noise and not first:
                worst = max(errors, default=0.0)
        extra = (windows["now"] - windows["first"]) * (SETTLE_S + WINDOW_S)
        print(f"  {'':24}{'':6}  extra time of the sweep: {extra:.0f} s with windows of {WINDOW_S:.0f} s")
    return worst


_SHARES = ("exact", "within_one", "good")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, metavar="CSV", help="measured curves")
    parser.add_argument("--jobs", type=int, default=100, help="simulated jobs for each number of CPUs")
    parser.add_argument("--repeats", type=int, default=5, help="sweeps of each curve with noise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit code 1 if an error without noise exceeds 5 %%")
    given = parser.parse_args()
    print("the CPUs chosen: exactly right, within one size, good; curves with an error above 5 %, the worst; windows")
    print(f"  {'curves':24}{'noise':>6}  {'sweep':6}{'exact':>8}{'within 1':>11}{'good':>9}{'> 5 %':>11}{'worst':>10}")
    sets = {f"loaders, {top} CPUs": invent_curves(given.jobs, top, given.seed) for top in TOPS}
    if given.profiles is not None:
        sets["profiles"] = read_profiles(given.profiles)
    worst = max(report(name, curves, given.repeats) for name, curves in sets.items())
    held = worst <= MOST_ERROR
    target = f"target {100 * MOST_ERROR:.0f} %: {'holds' if held else 'MISSED'}"
    print(f"worst error without noise {100 * worst:.1f} %, {target}")
    return 1 if given.check and not held else 0


if __name__ == "__main__":
    sys.exit(main())
