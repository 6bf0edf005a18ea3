"""Write docs/evaluation.md and its plots: python bench/evaluation [--quick] [--out DIR]; `make evaluation`.

--quick: three seeds, no long trace, small prefixes for the speed; for tests of this program, not for publication.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from simulation.child import ROOT, simulated

from evaluation import failures, order_study, plots, short, speed, synergy, tiresias, worlds
from evaluation.commands import Bench

DRAWN = {"static100.svg": synergy.STATIC100, "philly480.svg": tiresias.PLOT}


def values(bench: Bench, plots_at: Path, *, quick: bool) -> dict[str, Any]:
    """Return the values of the page's template. Timed parts run last, when nothing else runs."""
    seeds = 3 if quick else 10
    with ProcessPoolExecutor(2) as pool:
        studies = failures.start(pool, quick=quick)
        orders = order_study.start(pool, quick=quick)
        found = _untimed(bench, plots_at, seeds, studies, orders, quick=quick)
    return found | {"speed": speed.page(speed.report(plots_at / "speed.svg", quick=quick))}


def _untimed(
    bench: Bench,
    plots_at: Path,
    seeds: int,
    studies: failures.Started,
    orders: order_study.Started,
    *,
    quick: bool,
) -> dict[str, Any]:
    for command in (*synergy.commands(seeds, quick=quick), *tiresias.commands(), *worlds.commands()):
        bench.start(command)
    for name, command in DRAWN.items():
        simulated([*command.words, "--plot", str(plots_at / name)])
    panels = {
        f"{load.name}: {synergy.NAMES[load.measure]}": synergy.spread(bench, load, seeds) for load in synergy.LOADS
    }
    plots.spread(panels, plots_at / "seeds.svg")
    return {
        "quick": quick,
        "short": short.page(bench, seeds, quick=quick),
        "shipped": synergy.shipped(bench),
        "single9": "" if quick else synergy.single9(bench),
        "spread": synergy.spread_page(bench, seeds),
        "tiresias": tiresias.page(bench),
        "gittins": tiresias.gittins(bench),
        "worlds": worlds.page(bench),
        "failures": failures.page(studies),
        "orders": order_study.page(orders, plots_at),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", metavar="DIR")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="simulations at a time")
    options = parser.parse_args()
    plots_at = options.out / "evaluation"
    plots_at.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    bench = Bench(options.workers)
    try:
        found = values(bench, plots_at.resolve(), quick=options.quick)
    finally:
        bench.close()
    loader = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701 - no HTML
    (options.out / "evaluation.md").write_text(templates.get_template("page.md.j2").render(found), encoding="utf-8")
    print(f"{options.out / 'evaluation.md'}, after {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
