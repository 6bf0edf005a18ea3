"""Measure how long gsub reads and plans on clusters of 1,250 to 20,000 nodes of 8 GPUs, a running job for two nodes.

Each size is read and planned in new processes, from the text of scontrol to a PlacementPlan, for four kinds of request,
with 100 suspect nodes and a published load for every node. A process does each step once, like gsub. The figures are
medians over the processes of CPU time, which is affected least by other programs on the machine. In the same run, these
are measured too: json.loads of the same facts, and a real slurmctld of 10,000 nodes, by wall time: its own answer, and
gsub's whole snapshot (two commands and the parsing). Budgets at 10,000 nodes (5,000 jobs): plan 100 ms, parse 250 ms,
300 MiB, and linear in nodes (the exponent of the power law over the sizes is at most 1.2; caches that overflow account
for some of it). Exit code 1 when a budget does not hold. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from synthetic import chart, peers
from synthetic.text import cluster_text

SIZES = (1250, 2500, 5000, 10_000, 20_000)
JUDGED = 10_000
BUDGETS = {"parse ms": 250.0, "plan ms": 100.0, "peak MiB": 300.0}
EXPONENT = 1.2
ONE_PLAN = Path(__file__).with_name("synthetic") / "one_plan.py"


def measured(size: int, jobs_per_node: float, suspects: int, rounds: int, release: str) -> dict[str, Any]:
    """Measure one size: parsing, slowest plan, peak memory, and json.loads of the same facts; milliseconds and MiB."""
    text = cluster_text(size, round(size * jobs_per_node), release)
    with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-") as scratch:
        paths = Path(scratch, "nodes"), Path(scratch, "rest")
        for path, content in zip(paths, (text.nodes, text.rest), strict=True):
            path.write_text(content, encoding="utf-8")
        argv = [sys.executable, str(ONE_PLAN), *map(str, paths), str(suspects)]
        runs = [json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout) for _ in range(rounds)]
    plans = {kind: median(run["plans"][kind] for run in runs) for kind in runs[0]["plans"]}
    return {
        "nodes": size,
        "parse ms": median(run["parse_ms"] for run in runs),
        "plan ms": max(plans.values()),
        "plans": plans,
        "peak MiB": max(run["peak_mib"] for run in runs),
        "json.loads ms": round(peers.json_ms(text.nodes, rounds), 2),
    }


def fitted(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    """Fit `key` over nodes by least squares: µs per node, ms at 0 nodes, R²; and the exponent of the power law."""
    x, y = [float(row["nodes"]) for row in rows], [float(row[key]) for row in rows]
    slope, intercept, fit = _line(x, y)
    return {
        "us_per_node": round(1000 * slope, 3),
        "ms_at_0": round(intercept, 2),
        "r2": round(fit, 4),
        "exponent": round(_line([math.log(v) for v in x], [math.log(v) for v in y])[0], 3),
    }


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    sxx = sum((v - mx) ** 2 for v in x)
    sxy = sum((v - mx) * (w - my) for v, w in zip(x, y, strict=True))
    syy = sum((w - my) ** 2 for w in y)
    return sxy / sxx, my - sxy / sxx * mx, sxy * sxy / (sxx * syy) if syy else 1.0


def missed(rows: Sequence[dict[str, Any]], fits: dict[str, dict[str, float]]) -> list[str]:
    """Return a sentence for each budget that does not hold."""
    judged = [row for row in rows if row["nodes"] == JUDGED]
    over = [f"{key} {row[key]:g} > {most:g}" for row in judged for key, most in BUDGETS.items() if row[key] > most]
    curved = [f"{key} grows as nodes^{fit['exponent']}" for key, fit in fits.items() if fit["exponent"] > EXPONENT]
    return over + curved


def table(report: dict[str, Any]) -> str:
    """Return the report as text."""
    kinds = list(report["rows"][0]["plans"])
    planned = " ".join(f"{f'plan {kind}':>21}" for kind in kinds)
    lines = [f"{'nodes':>7} {'parse ms':>9} {'of json.loads':>14} {planned} {'peak MiB':>9}"]
    for row in report["rows"]:
        plans = " ".join(f"{row['plans'][kind]:>18.1f} ms" for kind in kinds)
        ratio = row["parse ms"] / row["json.loads ms"]
        lines.append(f"{row['nodes']:>7} {row['parse ms']:>9.1f} {ratio:>13.2f}x {plans} {row['peak MiB']:>9.1f}")
    for key, fit in report["fits"].items():
        lines.append(f"{key}: {fit['us_per_node']} µs per node, R² {fit['r2']}, grows as nodes^{fit['exponent']}")
    words = "; ".join(report["missed"]) or "all kept"
    kept = f"budgets at {JUDGED} nodes (parse 250 ms, plan 100 ms, 300 MiB, linear): {words}"
    return "\n".join([*lines, _beside(report["slurm"]), kept])


def _beside(slurm: dict[str, Any]) -> str:
    if "why_not" in slurm:
        return f"no real slurmctld beside it: {slurm['why_not']}"
    alone, whole = slurm["scontrol_ms"], slurm["snapshot_ms"]
    return (
        f"a real slurmctld of {slurm['nodes']} nodes: scontrol show node alone {alone:.0f} ms, "
        f"gsub's whole snapshot {whole:.0f} ms ({whole / alone:.2f} of that)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--jobs-per-node", type=float, default=0.5, help="running jobs: 5,000 on 10,000 nodes")
    parser.add_argument("--suspects", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--release", choices=("22.05", "24.11"), default="22.05", help="whose grammar")
    parser.add_argument("--no-slurm", action="store_true", help="without the real slurmctld")
    parser.add_argument("--plot", type=Path, help="draw an SVG or PNG (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    rows = [
        measured(size, options.jobs_per_node, options.suspects, options.rounds, options.release)
        for size in options.sizes
    ]
    fits = {key: fitted(rows, key) for key in ("parse ms", "plan ms")} if len(rows) > 1 else {}
    why_not = "not asked for" if options.no_slurm else peers.why_no_slurm()
    slurm: dict[str, Any] = {"why_not": why_not}
    if not why_not:
        alone, whole = peers.slurm_ms(JUDGED, options.rounds)
        slurm = {"nodes": JUDGED, "scontrol_ms": round(alone, 1), "snapshot_ms": round(whole, 1)}
    report = {"rows": rows, "fits": fits, "slurm": slurm, "missed": missed(rows, fits)}
    print(json.dumps(report, indent=1) if options.json else table(report))
    if options.plot:
        chart.draw(report, options.plot)
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
