"""How well the shares of docs/convergence.md are found on generated curves, and how fast losses are read.

    bench/convergence.py                               both tables
    bench/convergence.py --plot docs/convergence.svg   draws three generated runs as `slurmwrap convergence --svg` does

The truth is that of the curve without its noise. Each cell is the share of 24 curves (exponential, power law, drops of
the learning rate, a loss that rises again) whose share of the time is within two points of the truth, and the 90 %
quantile of the error in points.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

from slurmwrap.diagnosis.loss_points import RunSpan, make_points, reduce_points
from slurmwrap.diagnosis.loss_rows import read_loss_rows
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import LossCurve, LossPoint
from slurmwrap.profiling.convergence import NEAR, measure_convergence
from slurmwrap.report.convergence_plot import draw_convergence

RUN_S = 36_000.0
NOISE = (0.0, 0.0005, 0.002, 0.005, 0.02)
COUNTS = (50, 500, 5000)
_CURVES = 24
Curve = Callable[[float], float]


def make_curve(kind: int, generator: random.Random) -> Curve:
    """Return the loss at a share of the run."""
    floor, height = generator.choice((0.3, 1.0, 2.5)), generator.choice((0.5, 2.0, 8.0))
    speed, place = generator.uniform(6, 40), generator.uniform(0.3, 0.8)
    curves: tuple[Curve, ...] = (
        lambda x: floor * (1 + height * math.exp(-speed * x)),
        lambda x: floor * (1 + height / (1 + 40 * speed * x)),
        lambda x: floor * (1 + 0.3 * math.exp(-speed * x) + (0.2 if x < place / 2 else 0.05 if x < place else 0)),
        lambda x: floor * (1 + 0.6 * math.exp(-speed * x) + max(0.0, 0.5 * (x - place))),
    )
    return curves[kind % len(curves)]


def find_error(curve: Curve, n: int, noise: float, generator: random.Random) -> float:
    """Return the error of the share of the time, in points."""
    clean = [curve((i + 1) / n) for i in range(n)]
    points = [
        LossPoint(at_s=RUN_S * (i + 1) / n, step=float(i + 1), loss=value * (1 + generator.gauss(0, noise)))
        for i, value in enumerate(clean)
    ]
    found = measure_convergence(points, RUN_S)
    assert found is not None
    true = next(i for i, value in enumerate(clean) if value <= min(clean) * (1 + NEAR))
    return 100 * abs(found.time_share - (true + 1) / n)


def measure_errors() -> None:
    """Print the errors by noise and number of values."""
    generator = random.Random(1)
    print("share of the time, by noise (standard deviation, of the loss) and number of values:")
    print("noise   " + "".join(f"{n:>20,}" for n in COUNTS))
    for noise in NOISE:
        cells = []
        for n in COUNTS:
            curves = [make_curve(kind, generator) for kind in range(_CURVES)]
            errors = sorted(find_error(curve, n, noise, generator) for curve in curves)
            within = sum(error <= 2 for error in errors) / len(errors)
            cells.append(f"{100 * within:4.0f} %, p90 {errors[int(0.9 * len(errors))]:5.1f}")
        print(f"{100 * noise:5.2f} % " + "".join(f"{cell:>20}" for cell in cells))


def measure_speed() -> None:
    """Print how long it takes to read outputs: full of losses, and without any."""
    losses = "".join(f"{{'loss': {1 + 1 / (i + 1):.4f}, 'grad_norm': 1.2, 'epoch': {i / 100}}}\n" for i in range(7000))
    others = "2026-01-01 10:00:00 INFO loader: shard 1234 of 9999 was read in 0.12 seconds, next one please\n" * 7000
    for name, text in (("of losses", losses), ("without losses", others)):
        began = time.perf_counter()
        found = read_loss_rows([(float(at), row) for at, row in enumerate(text.split("\n"))])
        points = make_points(found, RunSpan(run_s=RUN_S))
        seconds = time.perf_counter() - began
        print(f"{len(text) / 1e6:.1f} MB {name}: {len(points):,} points in {1000 * seconds:.0f} ms")


def draw(path: Path) -> None:
    """Draw three generated members of a sweep."""
    found = []
    for number, (kind, noise) in enumerate(((0, 0.002), (1, 0.003), (3, 0.002)), start=1):
        generator = random.Random(number)
        curve = make_curve(kind, random.Random(11))
        points = tuple(
            LossPoint(
                at_s=RUN_S * i / 4000,
                step=float(i),
                loss=(1 + 0.04 * number) * curve(i / 4000) * (1 + generator.gauss(0, noise)),
            )
            for i in range(1, 4001)
        )
        key = RunKey(cluster="", job_id=number, submit_time=1)
        run = JobRun(attempt=key, address=f"77_{number}", gpus=8, start_time=0, end_time=int(RUN_S))
        shares = measure_convergence(points, RUN_S)
        assert shares is not None
        found.append(
            (
                run,
                LossCurve(
                    attempt=key,
                    source="",
                    points=reduce_points(points),
                    lowest=shares.lowest,
                    time_share=shares.time_share,
                ),
            )
        )
    drawn = draw_convergence(found)
    assert drawn is not None, "matplotlib is needed"
    path.write_text(drawn, encoding="utf-8")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw, and measure nothing")
    asked = parser.parse_args()
    if asked.plot:
        draw(asked.plot)
        return
    measure_errors()
    measure_speed()


if __name__ == "__main__":
    main()
