"""Measure how often the night report's intervals contain the true value, and compare other methods.

    python bench/interval_coverage              some minutes: the table of docs/report.md
    python bench/interval_coverage --quick      a tenth of the periods
    python bench/interval_coverage --table      the critical values of slurmwrap/report/confidence_interval.py anew

Seeded: the same figures each time. Needs numpy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from interval_coverage import table
from interval_coverage.trials import WAYS, Found, Trial, measured, of_holdout, of_prerun, of_sum
from interval_coverage.worlds import SUMS, Dice

CASES = (20, 50, 200)
SEED = 20260101
Made = Callable[[], Callable[[Dice], Trial | None]]


def studies() -> Iterator[tuple[str, int, Made, int]]:
    """Return (name, number of cases, function that makes a trial, number of trials)."""
    for number, world in enumerate(SUMS):
        for n in CASES:
            yield world.name, n, partial(_sum, number, n), 1000
    for n in CASES:
        yield "prerun-1, σ = 1.75, GPUs 1 to 512", n, partial(of_prerun, n), 1000
    for sigma in (1.0, 1.5, 2.0):
        for n in CASES:
            yield f"holdout-1, σ = {sigma:g}, GPUs 1 to 512", n, partial(of_holdout, n, sigma), 1000


def _sum(number: int, n: int) -> Callable[[Dice], Trial | None]:
    """Run a study by its number, because a World has functions, which cannot be pickled for another process."""
    return of_sum(SUMS[number], n)


def _study(made: Made, trials: int, seed: int) -> dict[str, Found]:
    return measured(made(), trials, seed)


def page(*, quick: bool) -> str:
    """Return a Markdown table."""
    asked = list(studies())
    with ProcessPoolExecutor() as pool:
        found = pool.map(
            _study,
            [made for _, _, made, _ in asked],
            [trials // (10 if quick else 1) for *_, trials in asked],
            [SEED + number for number in range(len(asked))],
        )
        rows = [_row(name, n, one) for (name, n, _, _), one in zip(asked, found, strict=True)]
    head = ["cases are", "n", *WAYS]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows))


def _row(name: str, n: int, found: dict[str, Found]) -> list[str]:
    return [name, str(n), *(_cell(found[way]) if way in found else "-" for way in WAYS)]


def _cell(one: Found) -> str:
    return f"{100 * one.held:.0f} %, {_short(one.width)} ({_short(one.mean_width)})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}" if value < 10_000 else "> 10,000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the periods")
    parser.add_argument("--table", action="store_true", help="print the critical values instead")
    given = parser.parse_args()
    print(table.text() if given.table else page(quick=given.quick))


if __name__ == "__main__":
    main()
