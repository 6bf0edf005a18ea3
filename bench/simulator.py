"""Measure time and memory of `slurmwrap simulate` for prefixes of Philly's trace of increasing length.

Each run is a separate process, from reading the file to the JSON output, as a user starts it. The time to start (with
one job) is subtracted for the cost per job, which is CPU time. The cluster has 96 servers of 8 GPUs, of which Philly's
jobs request 49 % on average and at most 1.6 times as many as there are. Budgets there for all 82,247 jobs, in both
modes and with each policy: 60 s and 2 GiB; and the cost per job grows by no more than the number of jobs to the power
of 0.25 (1 would be a loop over all jobs for each job). FIFO on 64 servers, where the queue grows for weeks, is measured
without a budget.

In the same run, a peer is measured on the same jobs: with --peer DIR the authors' own simulator (a checkout of
msr-fiddle/synergy at 1bb2bed6; simulation/authors.py describes what is left out of it) on their documented check;
without it the straightforward round loop (simulation/naive.py). Both must give the same JCT. Exit code 1 when a budget
does not hold or the JCTs differ. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation import chart, prefixes
from simulation.child import ROOT, ran, simulated

from slurmwrap.sim.queue_policies import POLICIES
from slurmwrap.sim.run_simulation import MODES
from slurmwrap.sim.synergy_models import ITERATION_S
from slurmwrap.sim.trace.synergy_loads import generate_load

DATA = ROOT / "tests" / "data"
PHILLY = DATA / "traces" / "philly.csv.gz"
SIZES = (5000, 10_000, 20_000, 40_000, 82_247)
SERVERS, CROWDED, GPUS = 96, 64, 8
KINDS = (
    ("rounds", "fifo"),
    ("rounds", "srtf"),
    ("rounds", "srsf"),
    ("rounds", "las"),
    ("rounds", "gittins"),
    ("rounds", "ftf"),
    ("slurm", "fifo"),
)
WALL_S, PEAK_MIB, EXPONENT = 60.0, 2048.0, 0.25
HERE = Path(__file__).parent / "simulation"


def measured(trace: Path, sizes: Sequence[int], kinds: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return one row per kind and size, and for FIFO one more with the largest size on the crowded cluster."""
    lines = prefixes.lines_of(trace)
    rows = []
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch:
        wanted = sorted({min(size, len(lines) - 1) for size in sizes})
        one, *paths = (prefixes.write(lines, size, Path(scratch)) for size in (1, *wanted))
        for mode, policy in kinds:
            start = min(_row(mode, policy, one, SERVERS, 0.0)["cpu_s"] for _ in range(3))
            rows += [_row(mode, policy, path, SERVERS, start) for path in paths]
            if policy == "fifo":
                rows.append(_row(mode, policy, paths[-1], CROWDED, start))
    return rows


def _row(mode: str, policy: str, path: Path, servers: int, start_s: float) -> dict[str, Any]:
    done = simulated([str(path), "--servers", str(servers), "--gpus", str(GPUS), "--mode", mode, "--policy", policy])
    jobs = done.answer["trace_jobs"]
    kind = f"{mode} {policy}" if servers == SERVERS else f"{mode} {policy}, {servers} servers"
    print(f"{kind}: {jobs} jobs in {done.wall_s:.1f} s", file=sys.stderr)
    return {
        "kind": kind,
        "jobs": jobs,
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "start_s": start_s,
        "us_per_job": 1e6 * max(0.0, done.cpu_s - start_s) / jobs,
        "peak_mib": done.peak_mib,
        "steps": done.answer["steps"],
    }


def growth(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return kind → exponent of the number of jobs in the cost per job, by least squares; 0: constant cost."""
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        points = [
            (math.log(row["jobs"]), math.log(row["us_per_job"]))
            for row in rows
            if row["kind"] == kind and row["us_per_job"] > 0  # 0: too small next to the time to start
        ]
        if len(points) > 1:
            mx, my = (sum(values) / len(points) for values in zip(*points, strict=True))
            found[kind] = sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)
    return found


def beside_naive(trace: Path, jobs: int) -> dict[str, Any]:
    """Measure FIFO in rounds of 300 s for the first `jobs` jobs of the trace."""
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch:
        path = str(prefixes.write(prefixes.lines_of(trace), jobs, Path(scratch)))
        theirs = ran([sys.executable, str(HERE / "naive.py"), path, str(SERVERS * GPUS), "300"])
        ours = simulated([path, "--servers", str(SERVERS), "--gpus", str(GPUS), "--round", "300"])
    return _beside("the round loop as written first", theirs, theirs.answer["mean_jct_s"], ours)


def beside_authors(checkout: Path) -> dict[str, Any]:
    """Run the authors' documented check: 7,000 jobs on 16 servers, FIFO and Synergy-Tune, by their own simulator."""
    jobs = generate_load("synergy-dynamic", seed=42, jobs=7000, jobs_per_hour=9, split=(20, 70, 10), run_times="gavel")
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch:
        trace = Path(scratch, "check.csv")
        rows = (f"{job.submit_s:.0f},{job.work_s},{job.gpus},{job.model}\n" for job in jobs)
        trace.write_text("".join(["submit_s,duration_s,gpus,model\n", *rows]))
        argv = [str(HERE / "authors.py"), str(checkout.resolve()), str(trace), json.dumps(dict(ITERATION_S))]
        theirs = ran([sys.executable, *argv, "fifo", "tune", "16", "4000", "4999"])
        words = ["--servers", "16", "--mechanism", "tune", "--measure", "4000-4999"]
        ours = simulated([str(trace), *words, "--profiles", str(DATA / "profiles" / "synergy_profiles.csv")])
    jcts = theirs.answer["jct_s"]
    return _beside("the authors' own simulator", theirs, sum(jcts) / len(jcts), ours)


def _beside(name: str, theirs: Any, jct: float, ours: Any) -> dict[str, Any]:
    return {
        "peer": name,
        "jobs": ours.answer["trace_jobs"],
        "theirs_s": theirs.wall_s,
        "ours_s": ours.wall_s,
        "ratio": theirs.wall_s / ours.wall_s,
        "their_mean_jct_s": jct,
        "our_mean_jct_s": ours.answer["mean_jct_s"],
        "same": math.isclose(jct, ours.answer["mean_jct_s"], rel_tol=1e-9),
    }


def missed(rows: Sequence[dict[str, Any]], powers: dict[str, float], peer: dict[str, Any], whole: int) -> list[str]:
    """Return a sentence for each budget that does not hold."""
    judged = [row for row in rows if row["jobs"] == whole and row["kind"] in powers]
    over = [f"{row['kind']}: {row['wall_s']:.1f} s" for row in judged if row["wall_s"] > WALL_S]
    over += [f"{row['kind']}: {row['peak_mib']:.0f} MiB" for row in judged if row["peak_mib"] > PEAK_MIB]
    over += [f"{kind}: cost per job grows as jobs^{power:.2f}" for kind, power in powers.items() if power > EXPONENT]
    return over if peer["same"] else [*over, "the peer comes to another JCT"]


def table(report: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [f"{'mode policy':24} {'jobs':>7} {'wall s':>8} {'µs per job':>11} {'peak MiB':>9}"]
    for row in report["rows"]:
        figures = f"{row['wall_s']:>8.2f} {row['us_per_job']:>11.1f} {row['peak_mib']:>9.1f}"
        lines.append(f"{row['kind']:24} {row['jobs']:>7} {figures}")
    lines += [f"{kind}: cost per job grows as jobs^{power:.2f}" for kind, power in report["growth"].items()]
    peer = report["peer"]
    lines.append(
        f"beside {peer['peer']}, {peer['jobs']} jobs: {peer['theirs_s']:.1f} s, ours {peer['ours_s']:.1f} s "
        f"({peer['ratio']:.1f}x); mean JCT {peer['their_mean_jct_s']:.1f} s and {peer['our_mean_jct_s']:.1f} s"
    )
    return "\n".join([*lines, f"budgets (60 s, 2 GiB, near constant): {report['verdict']}"])


def verdict(report: dict[str, Any]) -> str:
    """Return sentences about the budgets. Time and memory are judged only for the whole trace."""
    judged = any(row["jobs"] == max(SIZES) and row["kind"] in report["growth"] for row in report["rows"])
    kept = "all kept" if judged else f"time and memory not judged: that takes {max(SIZES):,} jobs and a second size"
    return "; ".join(report["missed"]) or kept


def _kind(text: str) -> tuple[str, str]:
    mode, _, policy = text.partition(" ")
    if mode not in MODES or policy not in POLICIES:
        raise argparse.ArgumentTypeError(f"'{text}': mode and policy are wanted, as 'rounds fifo'")
    return mode, policy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=PHILLY)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="jobs, from the trace's beginning")
    parser.add_argument("--kinds", type=_kind, nargs="+", default=list(KINDS), metavar="'MODE POLICY'")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="a checkout of msr-fiddle/synergy")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw an SVG or PNG")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    if min(options.sizes) < 1 or not options.trace.is_file():
        parser.error("--sizes are at least 1, and --trace is a file")
    rows = measured(options.trace, options.sizes, options.kinds)
    peer = beside_authors(options.peer) if options.peer else beside_naive(options.trace, max(options.sizes))
    powers = growth(rows)
    report = {"rows": rows, "growth": powers, "peer": peer}
    report["missed"] = missed(rows, powers, peer, max(SIZES))
    report["verdict"] = verdict(report)
    print(json.dumps(report, indent=1) if options.json else table(report))
    if options.plot:
        chart.draw(report, options.plot)
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
