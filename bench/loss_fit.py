"""Train 40 small models and report how well the final loss is predicted from the first half of each run.

The trainings differ in model, task, optimizer and schedule of the learning rate; each is real, on the CPU, with torch.
The loss of each step goes through the counter's own history (inject/slurmwrap_losses.py), so the fit sees at most 256
means. The true final loss is the mean over the last 5 % of the steps. Compared are profiling/loss_fit.py, Optimus' fit
(1/(a k + b) + c with non-negative a and b, least squares of 1/(l - c), EuroSys'18), and the last value (the mean over
the last 5 % of the steps so far). Half of the trainings (`development`) were used to choose the settings of the module,
the others (`test`) were not. Then it reports where --stop-at would stop each run, without waiting for a checkpoint, and
by what share its loss still fell until the end. Takes about 2 minutes. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from slurmwrap.inject.slurmwrap_losses import Losses
from slurmwrap.model.running_job import LossPoint
from slurmwrap.policy.stop_conditions import find_plateau
from slurmwrap.profiling.loss_fit import fit_loss
from slurmwrap.sbatch.stop_option import Plateau, parse_plateau

TAIL = 0.05  # share of the steps whose mean is the final loss


class Training(NamedTuple):
    """One training. `batch`: returns the loss of one batch."""

    name: str
    steps: int
    model: nn.Module
    batch: Callable[[], torch.Tensor]


# --- tasks: each returns a model and a function that returns the loss of a random batch ----------------------------


def make_regression(width: int, noise: float) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    teacher = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 1))
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def batch() -> torch.Tensor:
        x = torch.randn(32, 16)
        with torch.no_grad():
            y = 3 * teacher(x) + noise * torch.randn(32, 1)
        return nn.functional.mse_loss(model(x), y)

    return model, batch


def make_linear(condition: float) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    scales = torch.logspace(0, -math.log10(condition), 40)
    weights = torch.randn(40, 1)
    model = nn.Linear(40, 1)

    def batch() -> torch.Tensor:
        x = torch.randn(64, 40) * scales
        return nn.functional.mse_loss(model(x), x @ weights + 0.3 * torch.randn(64, 1))

    return model, batch


def make_classes(classes: int, flipped: float, samples: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Make a classification of a fixed data set, which a large model can learn by heart."""
    centers = torch.randn(classes, 20)
    labels = torch.randint(classes, (samples,))
    data = 0.7 * centers[labels] + torch.randn(samples, 20)
    labels = torch.where(torch.rand(samples) < flipped, torch.randint(classes, (samples,)), labels)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, classes))

    def batch() -> torch.Tensor:
        rows = torch.randint(samples, (32,))
        return nn.functional.cross_entropy(model(data[rows]), labels[rows])

    return model, batch


def make_images(noise: float) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Make a classification of 8x8 images by a small convolutional network."""
    shapes = torch.randn(6, 1, 8, 8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64, 6),
    )  # fmt: skip

    def batch() -> torch.Tensor:
        labels = torch.randint(6, (32,))
        return nn.functional.cross_entropy(model(shapes[labels] + noise * torch.randn(32, 1, 8, 8)), labels)

    return model, batch


def make_text(order: int, hidden: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Make a language model (GRU) of a random Markov chain."""
    letters = 12
    table = torch.softmax(2.0 * torch.randn(letters**order, letters), 1)
    text = [0] * order
    draws = torch.rand(20_000)
    sums = table.cumsum(1)
    for draw in draws.tolist():
        state = 0
        for letter in text[-order:]:
            state = state * letters + letter
        text.append(min(letters - 1, int(torch.searchsorted(sums[state], draw))))
    data = torch.tensor(text)
    embedding, cell, head = nn.Embedding(letters, 16), nn.GRU(16, hidden, batch_first=True), nn.Linear(hidden, letters)
    model = nn.ModuleList((embedding, cell, head))

    def batch() -> torch.Tensor:
        rows = torch.randint(len(data) - 17, (16, 1)) + torch.arange(17)
        lines = data[rows]
        out = head(cell(embedding(lines[:, :-1]))[0])
        return nn.functional.cross_entropy(out.reshape(-1, letters), lines[:, 1:].reshape(-1))

    return model, batch


def make_autoencoder(code: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    mixing = torch.randn(10, 32) / 3
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, code), nn.Linear(code, 32))

    def batch() -> torch.Tensor:
        x = torch.tanh(torch.randn(48, 10) @ mixing) + 0.1 * torch.randn(48, 32)
        return nn.functional.mse_loss(model(x), x)

    return model, batch


def make_factors(rank: int) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Make a factorization of a matrix with noise (recommendation)."""
    users, items = torch.randn(200, 5), torch.randn(300, 5)
    ratings = users @ items.T / 2 + 0.5 * torch.randn(200, 300)
    model = nn.ModuleList((nn.Embedding(200, rank), nn.Embedding(300, rank)))
    for table in model:
        nn.init.normal_(table.weight, std=0.3)  # type: ignore[arg-type]

    def batch() -> torch.Tensor:
        rows, columns = torch.randint(200, (128,)), torch.randint(300, (128,))
        return nn.functional.mse_loss((model[0](rows) * model[1](columns)).sum(1), ratings[rows, columns])

    return model, batch


def make_attention() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Make a transformer layer that copies a sequence from before a separator."""
    embedding, position = nn.Embedding(10, 24), nn.Parameter(0.1 * torch.randn(12, 24))
    layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.1, batch_first=True)
    head = nn.Linear(24, 10)
    model = nn.ModuleList((embedding, layer, head))
    model.position = position
    mask = nn.Transformer.generate_square_subsequent_mask(12)

    def batch() -> torch.Tensor:
        half = torch.randint(1, 10, (32, 6))
        lines = torch.cat((half, torch.zeros(32, 1, dtype=torch.long), half), 1)
        out = head(layer(embedding(lines[:, :-1]) + position, src_mask=mask, is_causal=True))
        return nn.functional.cross_entropy(out.reshape(-1, 10), lines[:, 1:].reshape(-1))

    return model, batch


TASKS: dict[str, tuple[int, Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]]] = {
    "regression": (3000, lambda: make_regression(32, 0.3)),
    "regression, no noise": (3000, lambda: make_regression(64, 0.0)),
    "linear": (3000, lambda: make_linear(30.0)),
    "classes": (3000, lambda: make_classes(5, 0.1, 20_000)),
    "classes by heart": (2500, lambda: make_classes(8, 0.2, 400)),
    "images": (1500, lambda: make_images(1.5)),
    "text": (1200, lambda: make_text(1, 32)),
    "long text": (1000, lambda: make_text(2, 64)),
    "autoencoder": (3000, lambda: make_autoencoder(8)),
    "factors": (3000, lambda: make_factors(6)),
    "attention": (1000, make_attention),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=2e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=5e-3, weight_decay=0.05),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.03),
}
# Factor of the learning rate by share of the run.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    "warm cosine": lambda share: min(1.0, share / 0.05) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * share))),
    "linear": lambda share: 1.0 - share,
    "steps": lambda share: 0.3 ** int(share * 3),
    "inverse root": lambda share: 1 / math.sqrt(1 + 20 * share),
}


def list_trainings() -> list[tuple[str, str, str]]:
    """Return 40 combinations of task, optimizer and schedule, in an order without a pattern."""
    every = [(task, optimizer, plan) for task in TASKS for optimizer in OPTIMIZERS for plan in SCHEDULES]
    generator = torch.Generator().manual_seed(21)
    return [every[i] for i in torch.randperm(len(every), generator=generator)[:40].tolist()]


def train(task: str, optimizer_name: str, schedule: str, seed: int) -> tuple[list[float], list[LossPoint]]:
    """Return the loss of each step, and the counter's history after half of the steps."""
    torch.manual_seed(seed)
    steps, make = TASKS[task]
    model, batch = make()
    optimizer = OPTIMIZERS[optimizer_name](list(model.parameters()))
    plan = SCHEDULES[schedule]
    lr = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1e-6, plan(step / steps)))
    history, losses, half = Losses(None), [], []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = batch()
        loss.backward()
        optimizer.step()
        lr.step()
        losses.append(loss.item())
        if step <= steps // 2:
            history.add(step, float(step), losses[-1])
    half = [LossPoint(at_s=at, step=float(number), loss=mean) for number, at, mean, _ in history.rows]
    return losses, half


# --- predictions ----------------------------------------------------------------------------------------------------


def predict_by_optimus(points: list[LossPoint], step: float) -> float:
    """Return Optimus' prediction: for each c, the line a k + b = 1/(l - c) by least squares with a, b >= 0."""
    steps = [point.step or 0.0 for point in points]
    losses = [point.loss or 0.0 for point in points]
    least, best = min(losses), (math.inf, statistics.fmean(losses[-5:]))
    for number in range(100):
        c = max(0.0, least) * number / 100
        values = [1 / max(loss - c, 1e-9) for loss in losses]
        a, b = fit_nonnegative_line(steps, values)
        if a <= 0 and b <= 0:
            continue
        fitted = [1 / max(a * k + b, 1e-12) + c for k in steps]
        error = sum((one - other) ** 2 for one, other in zip(fitted, losses, strict=True))
        best = min(best, (error, 1 / (a * step + b) + c))
    return best[1]


def fit_nonnegative_line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    a = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    b = mean_y - a * mean_x
    if a < 0:
        return 0.0, mean_y
    if b < 0:
        return sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs), 0.0
    return a, b


class Outcome(NamedTuple):
    name: str
    final: float
    fit: float
    optimus: float
    last: float
    inside: bool  # the final loss is inside the band
    width: float  # of the band, relative to the final loss
    family: str
    seconds: float


def evaluate(name: str, losses: list[float], half: list[LossPoint]) -> Outcome:
    """Predict the final loss of one training from its first half."""
    final = statistics.fmean(losses[-max(1, int(TAIL * len(losses))) :])
    seen = losses[: len(losses) // 2]
    last = statistics.fmean(seen[-max(1, int(TAIL * len(seen))) :])
    # The middle of the last steps, over which the final loss is a mean.
    at = len(losses) * (1 - TAIL / 2)
    began = time.perf_counter()
    fit = fit_loss(tuple(half), len(losses))
    took = time.perf_counter() - began
    assert fit is not None, name
    inside = fit.low <= final <= fit.high
    width = (fit.high - fit.low) / abs(final)
    return Outcome(name, final, fit.final, predict_by_optimus(half, at), last, inside, width, fit.family, took)


def list_errors(found: list[Outcome]) -> Iterator[tuple[str, list[float]]]:
    for name in ("fit", "optimus", "last"):
        yield name, [abs(getattr(one, name) - one.final) / abs(one.final) for one in found]


def report(what: str, found: list[Outcome]) -> None:
    print(f"\n{what}: n = {len(found)}; relative error of the predicted final loss at half of the run")
    for name, errors in list_errors(found):
        errors = sorted(errors)
        print(
            f"  {name:8} median {100 * statistics.median(errors):6.2f} %  mean {100 * statistics.fmean(errors):6.2f} %"
            f"  third quartile {100 * errors[len(errors) * 3 // 4]:6.2f} %  worst {100 * errors[-1]:6.1f} %"
        )
    inside = sum(one.inside for one in found)
    widths = statistics.median(one.width for one in found)
    print(
        f"  the band (90 %) holds the final loss in {inside} of {len(found)}; its median width is {100 * widths:.1f} %"
        f"; a fit takes {1000 * statistics.median(one.seconds for one in found):.0f} ms"
    )


def find_stop(losses: list[float], plateau: Plateau, total: bool) -> tuple[float, float] | None:
    """Return (share of the steps at which --stop-at stops the run, share by which its loss fell after that).

    None if it is not stopped. `total`: the number of steps is known while it runs. It is looked at 50 times.
    """
    history, steps, tail = Losses(None), len(losses), max(1, int(TAIL * len(losses)))
    for step, loss in enumerate(losses, 1):
        history.add(step, float(step), loss)
        if step % (steps // 50) == 0 and step < steps:
            points = [LossPoint(at_s=at, step=float(number), loss=mean) for number, at, mean, _ in history.rows]
            if find_plateau(points, plateau, steps if total else None):
                now = statistics.fmean(losses[max(0, step - tail) : step])
                return step / steps, (now - statistics.fmean(losses[-tail:])) / abs(now)
    return None


def report_stops(runs: list[list[float]]) -> None:
    for option in ("plateau:0.1%/20%", "plateau:1%/20%"):
        for total in (True, False):
            stops = [find_stop(losses, parse_plateau(option), total) for losses in runs]
            found = [stop for stop in stops if stop is not None]
            lost = sorted(100 * gain for _, gain in found) or [0.0]
            at = 100 * statistics.median(share for share, _ in found) if found else 100.0
            print(
                f"--stop-at={option}, number of steps {'known' if total else 'not known'}: stops {len(found)} of "
                f"{len(runs)}, median at {at:.0f} % of the steps; then the loss still fell by "
                f"{statistics.median(lost):.1f} % (median), {lost[-1]:.1f} % (worst)"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, help="read the losses from this file if it exists; else write them")
    parser.add_argument("--part", choices=("development", "test", "both"), default="both")
    parser.add_argument("--each", action="store_true", help="print a line for each training")
    options = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, Any] = (
        json.loads(options.curves.read_text()) if options.curves and options.curves.exists() else {}
    )
    parts: dict[str, list[Outcome]] = {"development": [], "test": []}
    for number, names in enumerate(list_trainings()):
        part = "development" if number % 2 == 0 else "test"
        if options.part not in (part, "both"):
            continue
        name = f"{number}: {', '.join(names)}"
        if name not in curves:
            losses, half = train(*names, seed=number)
            curves[name] = (losses, [(point.at_s, point.step, point.loss) for point in half])
        losses, rows = curves[name]
        half = [LossPoint(at_s=at, step=step, loss=loss) for at, step, loss in rows]
        found = evaluate(name, losses, half)
        parts[part].append(found)
        if options.each:
            print(
                f"{name:45} {found.final:.4g}  fit {found.fit:.4g} ({found.family})  optimus {found.optimus:.4g}  "
                f"last {found.last:.4g}  {'' if found.inside else 'outside the band'}"
            )
    if options.curves:
        options.curves.write_text(json.dumps(curves))
    for part, outcomes in parts.items():
        if outcomes:
            report(part, outcomes)
    print()
    report_stops([losses for losses, _ in curves.values()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
