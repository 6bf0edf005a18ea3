"""Tiresias's conditions: rounds without length, preemption without cost. Its trace of 60 jobs, and a Philly window."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation import published
from evaluation.commands import Bench, Command, Run
from evaluation.tables import agrees, block, number, table

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
    ratios = large["mean_jct_s"] / published.PHILLY480[name][0], small["mean_jct_s"] / published.TIRESIAS_60[name]
    return (
        f"2D-Gittins cannot agree to the digit ({ratios[0]:.3f} and {ratios[1]:.3f} of theirs): the authors' code "
        "knows services from a table of another cluster (yarn-gput1000.csv) and sums S where the paper sums S - a; "
        "ours knows those of the trace itself."
    )
