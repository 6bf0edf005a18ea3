"""Measure the time of a submission by gsub, sbatch, simple_slurm and submitit. Runs as root.

Each round submits the same held job of 16 GPUs on 2 nodes by each program in turn, so that all run under the same
conditions; medians and ratios of one run are printed, since only those can be compared. The clusters are a lab of 8
nodes, and a slurmctld of 10,000 nodes without slurmds. `gsub, a plan` queries Slurm for everything; `again` uses what a
call some seconds earlier has read, as in a loop. Then loops of 200 submissions are timed, and the messages that each
causes at the controller are counted (sdiag). docs/latency.md has the figures of a run. `make bench` runs this program.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

from latency.calls import calls, counted, loop, timed
from latency.clusters import cluster

BUDGETS = {8: 60.0, 10_000: 300.0}  # milliseconds over sbatch
PEERS = ("simple_slurm", "submitit")
WARM_UP = 2  # rounds that fill the page cache and compile the modules


def measured(nodes: int, rounds: int, environ: dict[str, str], place: Path) -> str:
    """Return the table and the breakdown for one cluster."""
    chosen = calls(place)
    taken: dict[str, list[float]] = {call.name: [] for call in chosen if not call.why_not}
    stages: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds + WARM_UP):
        for call in chosen:
            if call.why_not:
                continue
            milliseconds, told = timed(call, environ, place)
            if number < WARM_UP:
                continue
            taken[call.name].append(milliseconds)
            for stage, value in told:
                stages.setdefault(call.name, {}).setdefault(stage, []).append(value)
    left_out = [f"{call.name}: {call.why_not}" for call in chosen if call.why_not]
    return "\n\n".join([table(nodes, taken), *left_out, breakdown(stages), judged(nodes, taken)])


def table(nodes: int, taken: dict[str, list[float]]) -> str:
    base = median(taken["sbatch"])
    rows = [f"| {nodes} nodes, n = {len(taken['sbatch'])} | median ms | min | max | over sbatch | times sbatch |"]
    rows.append("|---|---|---|---|---|---|")
    for name, values in taken.items():
        mid = median(values)
        cells = (f"{mid:.1f}", f"{min(values):.1f}", f"{max(values):.1f}", f"{mid - base:+.1f}", f"{mid / base:.1f}")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def breakdown(stages: dict[str, dict[str, list[float]]]) -> str:
    """Return the medians of gsub's own stages, in their order."""
    names = list(stages)
    rows = [f"| stage, median ms | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for stage in dict.fromkeys(stage for told in stages.values() for stage in told):
        cells = [f"{median(stages[name][stage]):.1f}" if stage in stages[name] else "–" for name in names]
        rows.append(f"| {stage} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def judged(nodes: int, taken: dict[str, list[float]]) -> str:
    """Return a line with the budget and the ratio of gsub's time to that of the other Python programs."""
    plan = median(taken["gsub, a plan"])
    over = plan - median(taken["sbatch"])
    words = [f"gsub − sbatch: {over:.1f} ms"]
    if nodes in BUDGETS:
        words.append(f"budget {BUDGETS[nodes]:.0f} ms: {'kept' if over <= BUDGETS[nodes] else 'MISSED'}")
    words += [f"{plan / median(taken[peer]):.2f} of {peer}'s" for peer in PEERS if peer in taken]
    return "; ".join(words)


def loops(times: int, environ: dict[str, str], place: Path) -> str:
    """Measure the messages that many submissions in a row cause at the controller."""
    rows = [
        f"| {times} submissions in a row | messages to slurmctld | in seconds | what they were |",
        "|---|---|---|---|",
    ]
    for name, argv in {
        "sbatch": ("sbatch", "gpu.sbatch"),
        "gsub, a plan": ("gsub", "--prerun=off", "gpu.sbatch"),
        "gsub, a pre-run for all of them": ("gsub", "gpu.sbatch"),
        "gsub, no GPU": ("gsub", "plain.sbatch"),
    }.items():
        seconds, messages = loop(argv, times, environ, place)
        shown = ", ".join(f"{kind.removeprefix('REQUEST_')} {count}" for kind, count in messages.items())
        rows.append(f"| {name} | {sum(messages.values())} | {seconds:.1f} | {shown} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--nodes", type=int, action="append", help="how many; 8 is a lab (default: 8 and 10000)")
    parser.add_argument("--loop", type=int, default=200, help="submissions in a row on the lab; 0: none")
    parser.add_argument("--dir", default="", help="a lab that is up already; default: one is made for the run")
    parser.add_argument("--realtime", action="store_true", help="before all other work of a busy machine (SCHED_FIFO)")
    options = parser.parse_args()
    if options.realtime:  # inherited by every program measured and by the daemons started here
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(30))
    for nodes in options.nodes or list(BUDGETS):
        with tempfile.TemporaryDirectory(prefix="slurmwrap-bench-", dir="/var/tmp") as scratch:
            place = Path(scratch)
            place.chmod(0o755)  # the lab serves several users
            with cluster(nodes, place, options.dir) as environ:
                counted(environ)  # fails early where sdiag may not be asked
                print(measured(nodes, options.rounds, environ, place), flush=True)
                if nodes == 8 and options.loop:
                    print("\n" + loops(options.loop, environ, place), flush=True)
                print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
