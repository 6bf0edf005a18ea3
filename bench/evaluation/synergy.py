"""Synergy's loads: its published traces, its documented check, and how much the results vary over generated traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation import published
from evaluation.commands import Bench, Command, Run
from evaluation.published import Figure
from evaluation.tables import HOUR, agrees, block, number, off, table

PROFILES = ("--profiles", "tests/data/profiles/synergy_profiles.csv")
MECHANISMS = ("proportional", "greedy", "tune", "opt", "graded")
ALL = ("--mechanism", ",".join(MECHANISMS))
NAMES = {"makespan_s": "makespan", "mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT", "median_jct_s": "median JCT"}

STATIC100 = Command(("tests/data/traces/synergy_static100.csv", *PROFILES, "--policy", "fifo", *ALL))
DYNAMIC100 = Command(("tests/data/traces/synergy_dynamic100.csv", *PROFILES, "--policy", "srtf", *ALL))
_SINGLE9 = ("synergy-dynamic", "--run-times", "gavel", "--seed", "42", "--jobs", "7000", "--jobs-per-hour", "9",
            "--split", "20,70,10", *PROFILES, "--servers", "16", "--measure", "4000-4999")  # fmt: skip
SINGLE9 = (
    Command((*_SINGLE9, "--policy", "fifo", "--mechanism", "tune,proportional")),
    Command((*_SINGLE9, "--policy", "srtf", "--mechanism", "tune")),
)
SEED_MECHANISMS = ("--mechanism", "proportional,tune,graded,opt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A generated load whose spread over seeds is shown. `authors`: their ratios proportional / tune, seeds 1 to 10."""

    name: str
    words: tuple[str, ...]
    measure: str
    authors: Sequence[float]

    @property
    def other(self) -> str:
        """The other of the two measures."""
        return {"makespan_s": "mean_jct_s", "mean_jct_s": "makespan_s"}[self.measure]


LOADS = (
    Load(
        name="static, FIFO",
        words=("synergy-static", "--policy", "fifo"),
        measure="makespan_s",
        authors=published.SEEDS_STATIC,
    ),
    Load(
        name="dynamic, SRTF",
        words=("synergy-dynamic", "--policy", "srtf"),
        measure="mean_jct_s",
        authors=published.SEEDS_DYNAMIC,
    ),
)


def seeds(load: Load, count: int) -> Command:
    return Command((*load.words, *PROFILES, *SEED_MECHANISMS), count)


def commands(seed_count: int, *, quick: bool) -> list[Command]:
    shipped = [STATIC100, DYNAMIC100] if quick else [*SINGLE9, STATIC100, DYNAMIC100]
    return [*shipped, *(seeds(load, seed_count) for load in LOADS)]


def shipped(bench: Bench) -> str:
    """Return tables of both published traces: each mechanism next to the paper's and the authors' own figures."""
    parts = []
    for title, command, figures in (
        ("100 jobs at once, FIFO", STATIC100, published.STATIC100),
        ("100 jobs over 3.34 h, SRTF", DYNAMIC100, published.DYNAMIC100),
    ):
        runs = {run["mechanism"]: run for run in bench.runs(command)}
        parts += [f"**{title}**", "", _beside(runs, figures), "", block(command), ""]
    return "\n".join(parts).strip()


def _beside(runs: Mapping[str, Run], figures: Mapping[tuple[str, str], Figure]) -> str:
    rows = []
    for measure in dict.fromkeys(measure for _, measure in figures):
        for mechanism in MECHANISMS:
            theirs = figures.get((mechanism, measure), Figure())
            rows.append([f"{NAMES[measure]} h", mechanism, *_cells(runs[mechanism][measure] / HOUR, theirs, 3)])
    return table(["measure", "mechanism", ">paper", ">authors' simulator", ">ours", ">ours to authors'", ""], rows)


def _cells(ours: float, theirs: Figure, digits: int) -> list[str]:
    known = float(theirs.authors) if theirs.authors else None
    given = len(theirs.authors.partition(".")[2])
    verdict = agrees(ours, known, digits=given)
    return [theirs.paper or "-", theirs.authors or "-", number(ours, digits), off(ours, known), verdict]


def single9(bench: Bench) -> str:
    """Run the check that the authors document."""
    runs = {(run["policy"], run["mechanism"]): run for command in SINGLE9 for run in bench.runs(command)}
    rows = [
        [f"{policy}, {mechanism}", f"{NAMES[measure]} h", *_cells(runs[policy, mechanism][measure] / HOUR, theirs, 4)]
        for (policy, mechanism, measure), theirs in published.SINGLE9.items()
    ]
    head = ["policy, mechanism", "measure", ">documented", ">authors' simulator", ">ours", ">ours to authors'", ""]
    return "\n".join([table(head, rows), "", block(*SINGLE9)])


# ------------------------------------------------------------------------------------------- the spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The result of one seed: ratios of the measure; above 1, the second is shorter."""

    seed: int
    tune: float  # proportional / tune
    graded: float  # tune / graded
    opt: float  # tune / opt
    way: float | None  # part of the gap from tune to opt that graded closes; None: the gap is at most 1 %
    graded_other: float  # tune / graded of the other measure: makespan and mean JCT both count


GAP = 0.01


def spread(bench: Bench, load: Load, count: int) -> list[Seed]:
    by_seed: dict[int, dict[str, Run]] = {}
    for run in bench.runs(seeds(load, count)):
        by_seed.setdefault(run["seed"], {})[run["mechanism"]] = run
    return [_seed(seed, runs, load.measure, load.other) for seed, runs in by_seed.items()]


def _seed(seed: int, runs: Mapping[str, Run], measure: str, other: str) -> Seed:
    plain, tune, graded, opt = (runs[name][measure] for name in ("proportional", "tune", "graded", "opt"))
    return Seed(
        seed=seed,
        tune=plain / tune,
        graded=tune / graded,
        opt=tune / opt,
        way=(tune - graded) / (tune - opt) if tune / opt - 1 > GAP else None,
        graded_other=runs["tune"][other] / runs["graded"][other],
    )


def spread_page(bench: Bench, count: int) -> str:
    parts = []
    for load in LOADS:
        found = spread(bench, load, count)
        parts += [f"**{load.name}: {NAMES[load.measure]}, seeds 1 to {count}**", "", _spread_table(found, load), ""]
        parts += [_sums(found, load), "", block(seeds(load, count)), ""]
    return "\n".join(parts).strip()


def _spread_table(found: Sequence[Seed], load: Load) -> str:
    theirs = dict(enumerate(load.authors, start=1))
    other = NAMES[load.other]
    head = [
        ">seed",
        ">proportional / tune",
        ">the same, authors' simulator",
        ">tune / graded",
        f">tune / graded, {other}",
        ">tune / opt",
        ">way from tune to opt",
    ]
    rows = [
        [
            str(one.seed),
            number(one.tune, 3),
            number(theirs.get(one.seed), 3),
            number(one.graded, 3),
            number(one.graded_other, 3),
            number(one.opt, 3),
            "gap ≤ 1 %" if one.way is None else f"{100 * one.way:.0f} %",
        ]
        for one in found
    ]
    return table(head, rows)


def _sums(found: Sequence[Seed], load: Load) -> str:
    ways = [one.way for one in found if one.way is not None]
    mean = f"{100 * fmean(ways):.0f} % on average over the {len(ways)} seeds whose gap exceeds 1 %" if ways else "-"
    return (
        f"Proportional / tune: {_range([one.tune for one in found])}; with the authors' simulator "
        f"{_range(load.authors[: len(found)])}. Tune / graded: {_range([one.graded for one in found])}; "
        f"{worse(found)}. Way from `tune` to `opt`: {mean}."
    )


def worse(found: Sequence[Seed]) -> str:
    """Return a sentence with the seeds on which `graded` is worse than `tune` in either measure, and by how much."""
    behind = [(one.seed, min(one.graded, one.graded_other)) for one in found if min(one.graded, one.graded_other) < 1]
    which = ", ".join(f"seed {seed} by {100 * (1 / ratio - 1):.1f} %" for seed, ratio in behind)
    much = f" ({which})" if behind else ""
    return f"`graded` is behind `tune` in makespan or mean JCT on {len(behind)} of {len(found)} seeds{much}"


def _range(values: Sequence[float]) -> str:
    return f"mean {fmean(values):.3f}, {min(values):.3f} to {max(values):.3f}"
