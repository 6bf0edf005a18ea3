"""Tiresias's conditions: rounds without length, preemption without cost. Its trace of 60 jobs, and a Philly window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from simulation.child import ROOT

from evaluation import published
from evaluation.commands import Bench, Command, Run
from evaluation.tables import agrees, block, number, table
from slurmwrap.placement.allocate import allocate_proportional
from slurmwrap.sim.engines.rounds_engine import play_rounds
from slurmwrap.sim.queue_policies import make_policy
from slurmwrap.sim.sim_job import make_equal_servers
from slurmwrap.sim.sim_outcome import summarize_outcome
from slurmwrap.sim.trace.read_trace import read_load

# (the authors' name, options of slurmwrap)
SCHEDULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fifo", ("--policy", "fifo")),
    ("fifo, yarn", ("--policy", "fifo", "--placement", "consolidate")),
    ("shortest", ("--policy", "srtf")),
    ("shortest-gpu", ("--policy", "srsf")),
    ("dlas-gpu", ("--policy", "las")),
    ("dlas-gpu-8", ("--policy", "las", "--promote", "8")),
    ("dlas-gpu-1", ("--policy", "las", "--promote", "1")),
    ("dlas-gpu-gittins", ("--policy", "gittins")),
)
PHILLY480 = ("tests/data/traces/philly480_window.csv", "--servers", "15", "--gpus", "4")
SMALL = ("tests/data/traces/tiresias_60.csv", "--servers", "4", "--gpus", "4")
PLOT = Command((*PHILLY480, "--policy", "fifo,srtf,srsf,las,gittins"))


def commands() -> list[Command]:
    return [Command((*PHILLY480, *words)) for _, words in SCHEDULES] + [
        Command((*SMALL, *words)) for name, words in SCHEDULES if name in published.TIRESIAS_60
    ]


def page(bench: Bench) -> str:
    """Return the table for the Philly window, in seconds like the authors' figures."""
    rows, used = [], []
    for name, words in SCHEDULES:
        (run,) = bench.runs(Command((*PHILLY480, *words)))
        rows.append(_row(name, words, run, published.PHILLY480[name]))
        used.append(Command((*PHILLY480, *words)))
    head = ["authors' schedule", "ours", ">mean JCT s, theirs", ">ours", ">ours / theirs", "", ">median", ">p95"]
    large = table(head, rows)
    rows = []
    for name, words in SCHEDULES:
        if name in published.TIRESIAS_60:
            (run,) = bench.runs(Command((*SMALL, *words)))
            rows.append(_row(name, words, run, (published.TIRESIAS_60[name],))[:6])
            used.append(Command((*SMALL, *words)))
    small = table(head[:6], rows)
    return "\n".join(
        [
            "**480 jobs of Philly on 15 x 4 GPUs** (median and p95: theirs / ours)", "", large, "",
            "**Tiresias's 60 jobs on 4 x 4 GPUs**", "", small, "", block(*used),
        ]
    )  # fmt: skip


def _row(name: str, words: Sequence[str], run: Run, theirs: Sequence[float]) -> list[str]:
    ours = run["mean_jct_s"]
    cells = [
        name,
        " ".join(word.removeprefix("--") for word in words),
        number(theirs[0], 1 if theirs[0] < 1000 else 0),
        number(ours, 1),
        number(ours / theirs[0], 4),
        agrees(ours, theirs[0], digits=1 if theirs[0] < 1000 else 0),
    ]
    for known, measure in zip(theirs[1:], ("median_jct_s", "p95_jct_s"), strict=False):
        cells.append(f"{number(known, 0)} / {number(run[measure], 0)}")
    return cells


def gittins(bench: Bench) -> str:
    """Return a paragraph on why and how far 2D-Gittins differs from the authors' figures."""
    name, words = SCHEDULES[-1]
    (large,), (small,) = (bench.runs(Command((*trace, *words))) for trace in (PHILLY480, SMALL))
    theirs = published.PHILLY480[name][0], published.TIRESIAS_60[name]
    ratios = large["mean_jct_s"] / theirs[0], small["mean_jct_s"] / theirs[1]
    same = _play_gittins_as_theirs(PHILLY480), _play_gittins_as_theirs(SMALL)
    return (
        f"2D-Gittins differs ({ratios[0]:.3f} and {ratios[1]:.3f} of theirs) because of its history and its index: the "
        "authors' code knows 1,000 services of another cluster (yarn-gput1000.csv) where ours knows those of the trace "
        "itself; it sums S where the paper sums S - a, rounds that down in an integer division, and keeps one index "
        "for all services between two of its history. With their history and their index "
        f"(`make_policy(..., services=...)`) ours gives {same[0]:,.0f} s and {same[1]:.1f} s, theirs "
        f"{theirs[0]:,.0f} s and {theirs[1]:.1f} s, with as many preemptions."
    )


def _play_gittins_as_theirs(words: Sequence[str]) -> float:
    """Return the mean JCT in seconds with the authors' history and index."""
    trace, servers, gpus = ROOT / words[0], int(words[2]), int(words[4])
    history = (ROOT / "tests/data/traces/tiresias_yarn1000.csv").read_text(encoding="ascii").split()[1:]
    jobs, nodes = read_load(trace).jobs, make_equal_servers(servers, gpus=gpus, cpus=24, mem_gb=500)
    policy = make_policy("gittins", jobs, services=np.array(history, dtype=np.float64))
    outcome = play_rounds(jobs, nodes, policy, allocate_proportional, profiles={}, round_s=0)
    return summarize_outcome(jobs, outcome, nodes).mean_jct_s
