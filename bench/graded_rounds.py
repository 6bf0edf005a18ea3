"""Compare `graded` with Synergy-Tune and the optimum when leases end: Synergy's generated loads, seed by seed.

    python bench/graded_rounds.py                              # seeds 1 to 10, static by FIFO and dynamic by SRTF
    python bench/graded_rounds.py --load dynamic --seeds 2001-2300 --processes 4
    python bench/graded_rounds.py --load static --policy las --split 30,60,10 --servers 8x4x20x400 --json

Prints for each seed the makespan and mean JCT, in hours, of tune (the authors' own, with its quirks), graded (the
allocate() in production), opt (an integer program on one pool of all servers) and proportional; and which part of the
gap between tune and opt graded closes, when the gap is above 1 %. Then the spread over the seeds. measured() returns
the same as records.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.cli.profile.profile_files import parse_profiles
from slurmwrap.sim.run_simulation import Simulation, run_simulation
from slurmwrap.sim.sim_job import make_equal_servers
from slurmwrap.sim.trace.synergy_loads import GPU_DEMANDS, RUN_TIMES, generate_load

PROFILES = Path(__file__).resolve().parents[1] / "tests" / "data" / "profiles" / "synergy_profiles.csv"
MECHANISMS = ("tune", "graded", "opt", "proportional")
MEASURES = ("makespan_s", "mean_jct_s")
POLICY = {"static": "fifo", "dynamic": "srtf"}
GAP = 0.01  # part of tune's figure; a smaller gap to opt is not evaluated
_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load and a cluster. `servers`: how many, and GPUs, CPUs and GB of each."""

    load: str
    policy: str
    jobs: int = 100
    jobs_per_hour: float | None = None
    split: tuple[float, ...] | None = None
    gpu_demand: str = "single"
    run_times: str = "small"
    servers: tuple[int, int, int, float] = (4, 8, 24, 500.0)
    strict_order: bool = False  # critical jobs are not preferred


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one seed, in seconds by mechanism."""

    seed: int
    makespan_s: dict[str, float]
    mean_jct_s: dict[str, float]

    def way(self, measure: str) -> float | None:
        """Position between tune (0) and opt (1); None if these are closer than GAP."""
        taken: dict[str, float] = getattr(self, measure)
        gap = taken["tune"] - taken["opt"]
        return (taken["tune"] - taken["graded"]) / gap if gap > GAP * taken["tune"] else None

    def gain(self, measure: str) -> float:
        """How much shorter than tune's, relative to it; below 0: longer."""
        taken: dict[str, float] = getattr(self, measure)
        return (taken["tune"] - taken["graded"]) / taken["tune"]


def measured(case: Case, seeds: Sequence[int], processes: int = 1) -> Iterator[Row]:
    """Return one row per seed, in their order."""
    if processes == 1:
        yield from map(partial(_row, case), seeds)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(partial(_row, case), seeds, chunksize=4)


def _row(case: Case, seed: int) -> Row:
    jobs = generate_load(
        f"synergy-{case.load}",
        seed=seed,
        jobs=case.jobs,
        jobs_per_hour=case.jobs_per_hour,
        split=case.split,
        gpu_demand=case.gpu_demand,
        run_times=case.run_times,
    )
    count, gpus, cpus, mem_gb = case.servers
    plain = Simulation(
        jobs=jobs,
        servers=make_equal_servers(count, gpus=gpus, cpus=cpus, mem_gb=mem_gb),
        policy=case.policy,
        round_s=300.0,
        strict_order=case.strict_order,
        profiles={one.key: one for one in parse_profiles(PROFILES.read_text().splitlines(), at=0.0)},
    )
    found = {name: run_simulation(replace(plain, mechanism=name))[1] for name in MECHANISMS}
    return Row(
        seed=seed,
        makespan_s={name: one.makespan_s for name, one in found.items()},
        mean_jct_s={name: one.mean_jct_s for name, one in found.items()},
    )


# ------------------------------------------------------------------------------------------- what is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One measure over the seeds. Gains are relative to tune's; `half`: half the width of the mean's 95 % interval."""

    seeds: int
    worse: tuple[int, ...]  # seeds on which graded is longer than tune
    ties: int
    gain_mean: float
    gain_half: float
    gain_worst: float
    gap_mean: float  # between tune and opt
    gaps: int  # seeds on which the gap is above GAP
    way_mean: float | None
    way_half: float | None
    way_worst: float | None


def spread_of(rows: Sequence[Row], measure: str) -> Spread:
    """`measure`: one of MEASURES."""
    gains = [row.gain(measure) for row in rows]
    ways = [way for row in rows if (way := row.way(measure)) is not None]
    gaps = [1 - getattr(row, measure)["opt"] / getattr(row, measure)["tune"] for row in rows]
    return Spread(
        seeds=len(rows),
        worse=tuple(row.seed for row, gain in zip(rows, gains, strict=True) if gain < 0),
        ties=sum(gain == 0 for gain in gains),
        gain_mean=fmean(gains),
        gain_half=_half(gains),
        gain_worst=min(gains),
        gap_mean=fmean(gaps),
        gaps=len(ways),
        way_mean=fmean(ways) if ways else None,
        way_half=_half(ways) if ways else None,
        way_worst=min(ways, default=None),
    )


def _half(values: Sequence[float]) -> float:
    return 1.96 * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _line(row: Row) -> str:
    cells = [f"{row.seed:6d}"]
    for measure in MEASURES:
        way = row.way(measure)
        cells += [f"{getattr(row, measure)[name] / _HOUR:9.3f}" for name in MECHANISMS]
        cells.append(f"{row.gain(measure):+8.2%}" + ("       -" if way is None else f"{way:8.2f}"))
    return " ".join(cells)


def _told(spread: Spread, measure: str) -> str:
    way = (
        "no gap above 1 %"
        if spread.way_mean is None
        else f"{spread.way_mean:.2f} ± {spread.way_half:.2f} of the way from tune to opt, worst {spread.way_worst:.2f} "
        f"({spread.gaps} seeds with a gap above 1 %)"
    )
    worse = ", ".join(map(str, spread.worse)) or "none"
    return (
        f"{measure}: {spread.gain_mean:+.2%} ± {spread.gain_half:.2%} shorter than tune (gap to opt "
        f"{spread.gap_mean:.2%}), worst {spread.gain_worst:+.2%}; equal on {spread.ties} of {spread.seeds}; "
        f"longer on {len(spread.worse)}: {worse}; {way}"
    )


def main() -> None:
    """Print a line for each seed and the spread of each load, or all of it as JSON."""
    options = _options()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    said = []
    for case in _cases(options):
        rows = _print(case, measured(case, seeds, options.processes), quiet=options.json)
        spreads = {measure: asdict(spread_of(rows, measure)) for measure in MEASURES}
        said.append({"case": asdict(case), "rows": [asdict(row) for row in rows], "spread": spreads})
    if options.json:
        json.dump(said, sys.stdout, indent=1)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for load in (options.load,) if options.load else tuple(POLICY):
        yield Case(
            load=load,
            policy=options.policy or POLICY[load],
            jobs=options.jobs,
            jobs_per_hour=options.jobs_per_hour,
            split=None if options.split is None else tuple(map(float, options.split.split(","))),
            gpu_demand=options.gpu_demand,
            run_times=options.run_times,
            servers=_servers(options.servers),
            strict_order=options.strict_order,
        )


def _print(case: Case, rows: Iterator[Row], *, quiet: bool) -> list[Row]:
    found = []
    if not quiet:
        print(
            f"{case.load}, {case.policy}: hours of {', '.join(MECHANISMS)}, gain over tune, way to opt: makespan, JCT"
        )
    for row in rows:
        found.append(row)
        if not quiet:
            print(_line(row), flush=True)
    if not quiet:
        print(*(_told(spread_of(found, measure), measure) for measure in MEASURES), "", sep="\n")
    return found


def _servers(text: str) -> tuple[int, int, int, float]:
    count, gpus, cpus, mem_gb = text.split("x")
    return int(count), int(gpus), int(cpus), float(mem_gb)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-10")
    parser.add_argument("--load", choices=tuple(POLICY), help="both without it")
    parser.add_argument("--policy", help="fifo for static and srtf for dynamic without it")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--jobs-per-hour", type=float)
    parser.add_argument("--split", help="image, language, speech: 60,30,10")
    parser.add_argument("--gpu-demand", choices=GPU_DEMANDS, default="single")
    parser.add_argument("--run-times", choices=RUN_TIMES, default="small")
    parser.add_argument("--servers", default="4x8x24x500", help="how many, x GPUs x CPUs x GB of each")
    parser.add_argument(
        "--strict-order", action="store_true", help="no critical job goes first (sim/engines/rounds_engine.py)"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
