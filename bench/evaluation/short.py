"""The first table of the page: the figures that the simulator must reproduce, each with its verdict."""

from __future__ import annotations

from collections.abc import Sequence

import graded_rounds

from evaluation import published, synergy, tiresias
from evaluation.commands import Bench, Command
from evaluation.tables import HOUR, agrees, number, table

_Row = tuple[str, float, float, int]  # what, theirs, ours, digits


def page(bench: Bench, seed_count: int, *, quick: bool) -> str:
    rows = [*_shipped(bench), *([] if quick else _single9(bench)), *_tiresias(bench)]
    lines = [
        [what, number(theirs, digits), number(ours, digits), agrees(ours, theirs, digits=digits)]
        for what, theirs, ours, digits in rows
    ]
    reproduced = table(["reproduced (world: rounds)", ">authors' simulator", ">ours", ""], lines)
    return f"{reproduced}\n\n{_beaten(bench, seed_count)}"


def _shipped(bench: Bench) -> list[_Row]:
    found: list[_Row] = []
    for command, figures, measure, name, digits in (
        (synergy.STATIC100, published.STATIC100, "makespan_s", "100 jobs at once, FIFO makespan h", 2),
        (synergy.DYNAMIC100, published.DYNAMIC100, "mean_jct_s", "100 jobs over 3.34 h, SRTF mean JCT h", 3),
    ):
        for run in bench.runs(command):
            theirs = figures.get((run["mechanism"], measure))
            if theirs and theirs.authors:
                ours = run[measure] / HOUR
                found.append((f"{name}, {run['mechanism']}", float(theirs.authors), ours, digits))
    return found


def _single9(bench: Bench) -> list[_Row]:
    (run,) = (run for run in bench.runs(synergy.SINGLE9[0]) if run["mechanism"] == "tune")
    return [
        (f"16 servers, FIFO, tune: {name} h", float(theirs.authors), run[measure] / HOUR, 3)
        for measure, name in (("mean_jct_s", "mean JCT"), ("p99_jct_s", "p99 JCT"))
        if (theirs := published.SINGLE9["fifo", "tune", measure])
    ]


def _tiresias(bench: Bench) -> list[_Row]:
    wanted = ("fifo", "fifo, yarn", "dlas-gpu", "shortest-gpu")
    found: list[_Row] = []
    for name, words in tiresias.SCHEDULES:
        if name in wanted:
            (run,) = bench.runs(Command((*tiresias.PHILLY480, *words)))
            found.append(
                (f"480 jobs of Philly, mean JCT s, {name}", published.PHILLY480[name][0], run["mean_jct_s"], 0)
            )
    return found


def _beaten(bench: Bench, count: int) -> str:
    """Return lines that compare production's `graded` with Synergy-Tune on generated loads."""
    said = []
    for load in synergy.LOADS:
        found = synergy.spread(bench, load, count)
        ratios = f"{_range([one.graded for one in found])}, {_range([one.graded_other for one in found])}"
        names = (synergy.NAMES[load.measure], synergy.NAMES[load.other])
        said.append(
            f"- {load.name}, {count} seeds: {_way(found)}. Tune / graded in {' and in '.join(names)}: {ratios}; "
            f"{synergy.worse(found)}."
        )
    return "Beyond `tune` with production's `graded` (world: rounds):\n\n" + "\n".join([*said, _in_order(count)])


def _in_order(count: int) -> str:
    """Return a line on the gain from CPUs and memory alone, when `graded` too uses the order of SRTF."""
    case = graded_rounds.Case(load="dynamic", policy="srtf", strict_order=True)
    rows = list(graded_rounds.measured(case, range(1, count + 1)))
    makespans, jcts = (graded_rounds.spread_of(rows, measure) for measure in graded_rounds.MEASURES)
    return (
        "- of the dynamic load the division of CPUs and memory alone (no job before its turn, section 2): makespan "
        f"{_shorter(makespans)}, mean JCT {_shorter(jcts)} than `tune`'s."
    )


def _shorter(spread: graded_rounds.Spread) -> str:
    mean, worst = 100 * spread.gain_mean, 100 * spread.gain_worst
    return f"{mean:.1f} % shorter (worst {worst:.1f} %, longer on {len(spread.worse)})"


def _way(found: Sequence[synergy.Seed]) -> str:
    ways = [one.way for one in found if one.way is not None]
    if not ways:
        return "no seed leaves more than 1 % between `tune` and `opt`"
    return f"{100 * sum(ways) / len(ways):.0f} % of the way from `tune` to `opt` on average ({len(ways)} seeds)"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"
