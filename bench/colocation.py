"""Fit and judge the forecast of two jobs on one GPU (slurmwrap/profiling/colocation.py), one model left out each time.

    bench/colocation.py --pairs PAIRS.csv --alone ALONE.csv                            the table
    bench/colocation.py --pairs PAIRS.csv --alone ALONE.csv --limits                   can another form do better
    bench/colocation.py --pairs PAIRS.csv --alone ALONE.csv --fit                      the coefficients of all pairs
    bench/colocation.py --pairs PAIRS.csv --alone ALONE.csv --plot docs/colocation.svg
    bench/colocation.py --pairs PAIRS.csv --alone ALONE.csv --check                    exit code 1 if a target is missed

The files are simulation/data/colocate_info.csv and simulation/analyzer/single_data.csv of Lucid's artifact (Hu et al.,
ASPLOS 2023; github.com/S-Lab-System-Group/Lucid). Their licence keeps them out of slurmwrap; without them nothing is
done. Each row is a pair of trainings on one GPU: the speed of both relative to alone; of each alone the GPU
utilization, the memory utilization, the samples per second and the batch size are known.

For each model (ResNet18, LSTM, ...) the coefficients and the threshold of the alarm are fitted on the pairs without it,
and all pairs with it are predicted; a pair of two models is so predicted twice. One row of the table predicts each pair
once, from the pairs with neither of its models. The threshold is the one that finds 96 % of the bad pairs of the fit.

`--limits` asks whether the share of false alarms is the form's fault. It chooses the form of the model, too, inside
each fit (by leaving out one of the models of the fit in turn), and it fits all measured quantities with the models of
both jobs known (ten parts of all pairs, each left out once).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slurmwrap.fast_dataclasses import replace
from slurmwrap.profiling.colocation import BAD_SPEED, MEASURED, ColocationModel, GpuDemand, predict_pair

# Targets: median error of the combined throughput, bad pairs found, good pairs called bad.
MOST_ERROR, LEAST_FOUND, MOST_FALSE = 0.08, 0.95, 0.10
# The share of the bad pairs that the threshold finds among the pairs of its fit; the rest of the target is a margin.
FOUND_IN_FIT = 0.96
# The same for the trade-off between bad pairs found and good ones called bad.
SHARES = (0.60, 0.70, 0.80, 0.85, 0.90, 0.93, 0.96, 0.98, 1.0)
FREE = (0.8, 0.9, 1.0, 1.1, 1.2)
SIMILARITY = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# A pair whose slower job runs below this is near the limit of BAD_SPEED.
IN_BETWEEN = 0.8
# Jobs that together overload the GPU and are measured faster than alone, in the mean, were not measured together.
OVERLOADED, IMPLAUSIBLE = 1.1, 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two measured jobs: their models, what they use alone, and their speeds together, relative to alone."""

    models: tuple[str, str]
    demands: tuple[GpuDemand, GpuDemand]
    speeds: tuple[float, float]

    @property
    def bad(self) -> bool:
        return min(self.speeds) < BAD_SPEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """A held-out pair, its predicted combined throughput, and a score that is higher the worse it should run."""

    left_out: str
    pair: Pair
    throughput: float
    score: float
    alarm: bool

    @property
    def error(self) -> float:
        true = sum(self.pair.speeds)
        return abs(self.throughput - true) / true


# A predictor is fitted on pairs and returns (combined throughput, score, alarm) of a pair.
Predictor = Callable[[Pair], tuple[float, float, bool]]
Fit = Callable[[Sequence[Pair]], Predictor]
# One form of the model: what is fitted, `free`, `similarity`, and the name of a further term.
Form = tuple[str, float, float, str]


def read_pairs(pairs: Path, alone: Path) -> list[Pair]:
    """Return all pairs of which both jobs were measured alone."""
    fields = ("model", "dataset", "batchsize", "amp")
    with alone.open(newline="") as lines:
        jobs = {tuple(row[name] for name in fields): _read_demand(row) for row in csv.DictReader(lines)}
    found = []
    with pairs.open(newline="") as lines:
        for row in csv.DictReader(lines):
            keys = [tuple(row[name + number] for name in fields) for number in "12"]
            if all(key in jobs for key in keys):
                found.append(
                    Pair(
                        models=(row["model1"], row["model2"]),
                        demands=(jobs[keys[0]], jobs[keys[1]]),
                        speeds=(float(row["speed1"]), float(row["speed2"])),
                    )
                )
    return found


def _read_demand(row: dict[str, str]) -> GpuDemand:
    util, steps_per_s = float(row["gpu_util"]) / 100, float(row["speed"]) / float(row["batchsize"])
    return GpuDemand(
        gpu_util=util,
        gpu_s_per_step=util / steps_per_s,
        gpu_mem_util=float(row["gmem_util"]) / 100,
        gpu_mem_mib=float(row["gmem"]),
    )


# --- predictors ----------------------------------------------------------------------------------------------------


def fit_non_negative(columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the non-negative coefficients of least squares, by trying all sets of columns (few)."""
    best, best_error = np.zeros(columns.shape[1]), float(wanted @ wanted)
    for size in range(1, columns.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(columns.shape[1]), size)):
            found = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)[0]
            left = columns[:, chosen] @ found - wanted
            if found.min() >= 0 and float(left @ left) < best_error:
                best, best_error = np.zeros(columns.shape[1]), float(left @ left)
                best[chosen] = found
    return best


def find_threshold(scores: Iterable[float], share: float = FOUND_IN_FIT) -> float:
    """Return the highest threshold that this share of the scores of bad pairs reaches."""
    ordered = sorted(scores, reverse=True)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.inf


def fit_model(pairs: Sequence[Pair], share: float = FOUND_IN_FIT) -> ColocationModel:
    """Return the model with the least squared error of the mean slow-down, 1 / speed - 1, of both jobs of a pair.

    A mean speed above 1 counts as 1. `free` and `similarity` are the best ones of a grid.
    """
    uses = np.array([[demand.gpu_util for demand in pair.demands] for pair in pairs], dtype=float)
    ratios = np.array([_compare_steps(pair) for pair in pairs])
    wanted = np.array([max(0.0, 2 / sum(pair.speeds) - 1) for pair in pairs])
    best, best_error = MEASURED, math.inf
    for free, similarity in itertools.product(FREE, SIMILARITY):
        columns = np.stack([uses.prod(axis=1), np.maximum(0, uses.sum(axis=1) - free)], axis=1)
        columns *= (ratios**similarity)[:, None]
        product, overload = fit_non_negative(columns, wanted)
        error = float(((columns @ [product, overload] - wanted) ** 2).sum())
        if error < best_error:
            best = ColocationModel(
                product=float(product), overload=float(overload), free=free, similarity=similarity, alarm=math.inf
            )
            best_error = error
    scores = (predict_pair(*pair.demands, model=best).slowdown for pair in pairs if pair.bad)
    return replace(best, alarm=find_threshold(scores, share))


def _compare_steps(pair: Pair) -> float:
    times = [demand.gpu_s_per_step or math.nan for demand in pair.demands]
    return min(times) / max(times) if all(map(math.isfinite, times)) else 1.0


def fit_ours(pairs: Sequence[Pair], share: float = FOUND_IN_FIT) -> Predictor:
    model = fit_model(pairs, share)

    def predict(pair: Pair) -> tuple[float, float, bool]:
        found = predict_pair(*pair.demands, model=model)
        return found.throughput, found.slowdown, found.bad

    return predict


def fit_without_steps(pairs: Sequence[Pair]) -> Predictor:
    """As fit_ours, where the GPU time of a step is never known."""
    predict = fit_ours([_forget_steps(pair) for pair in pairs])
    return lambda pair: predict(_forget_steps(pair))


def _forget_steps(pair: Pair) -> Pair:
    one, other = (replace(demand, gpu_s_per_step=None) for demand in pair.demands)
    return replace(pair, demands=(one, other))


def fit_first(pairs: Sequence[Pair]) -> Predictor:
    """Fit the first model that was tried: four products, fitted for each job, and an alarm below BAD_SPEED."""

    def list_terms(one: GpuDemand, other: GpuDemand) -> tuple[float, ...]:
        use, other_use = one.gpu_util or 0.0, other.gpu_util or 0.0
        memory, other_memory = one.gpu_mem_util or 0.0, other.gpu_mem_util or 0.0
        return use * other_use, use * max(0.0, use + other_use - 1), memory * other_memory, use * other_memory

    def list_slowdowns(pair: Pair) -> list[float]:
        return [float(found @ list_terms(*demands)) for demands in (pair.demands, pair.demands[::-1])]

    columns = np.array([list_terms(*demands) for pair in pairs for demands in (pair.demands, pair.demands[::-1])])
    found = fit_non_negative(columns, np.array([max(0.0, 1 / speed - 1) for pair in pairs for speed in pair.speeds]))

    def predict(pair: Pair) -> tuple[float, float, bool]:
        slowdowns = list_slowdowns(pair)
        return sum(1 / (1 + one) for one in slowdowns), max(slowdowns), max(slowdowns) > 1 / BAD_SPEED - 1

    return predict


def predict_always(pair: Pair) -> tuple[float, float, bool]:
    return 2.0, 0.0, False


def add_utilizations(pair: Pair) -> float:
    return sum(demand.gpu_util or 0.0 for demand in pair.demands)


def predict_by_sum(pair: Pair) -> tuple[float, float, bool]:
    """Share the GPU in proportion where the utilizations add up to more than 100 %, and call such pairs bad."""
    together = add_utilizations(pair)
    return 2 / max(1.0, together), together, together > 1


def fit_sum(pairs: Sequence[Pair], share: float = FOUND_IN_FIT) -> Predictor:
    """As predict_by_sum, but with a threshold that is fitted as that of fit_ours."""
    threshold = find_threshold((add_utilizations(pair) for pair in pairs if pair.bad), share)

    def predict(pair: Pair) -> tuple[float, float, bool]:
        throughput, score, _ = predict_by_sum(pair)
        return throughput, score, score >= threshold

    return predict


ALWAYS, SUM, SUM_FITTED = "always pack", "sum of utilizations over 100 %", "sum of utilizations, threshold fitted"
FIRST, OURS, NO_STEPS = "the first model", "slurmwrap", "slurmwrap, time per step unknown"
PREDICTORS: dict[str, Fit] = {
    ALWAYS: lambda _: predict_always,
    SUM: lambda _: predict_by_sum,
    SUM_FITTED: fit_sum,
    FIRST: fit_first,
    NO_STEPS: fit_without_steps,
    OURS: fit_ours,
}


# --- what other forms could do -------------------------------------------------------------------------------------

# Each further term has a physical reason: a job that fills the GPU alone, memory bandwidth shared or used up, the
# larger of two different jobs suffering more.
TERMS: dict[str, Callable[[GpuDemand, GpuDemand], float]] = {
    "none": lambda one, other: 0.0,
    "full": lambda one, other: max(0.0, max(_use(one), _use(other)) - 0.8) * min(_use(one), _use(other)),
    "memory": lambda one, other: (one.gpu_mem_util or 0.0) * (other.gpu_mem_util or 0.0),
    "memory used up": lambda one, other: max(0.0, (one.gpu_mem_util or 0.0) + (other.gpu_mem_util or 0.0) - 0.8),
    "unequal": lambda one, other: _use(one) * _use(other) * abs(_use(one) - _use(other)),
}
# What is fitted: the slow-down of the mean of both jobs or of the slower one.
TARGETS: dict[str, Callable[[Pair], float]] = {
    "mean": lambda pair: max(0.0, 2 / sum(pair.speeds) - 1),
    "slower": lambda pair: max(0.0, 1 / min(pair.speeds) - 1),
}


def _use(demand: GpuDemand) -> float:
    return demand.gpu_util or 0.0


class FormChoice:
    """Scores of all pairs by all forms, each fitted without some models; what was fitted once is kept."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.models = sorted({model for pair in pairs for model in pair.models})
        self.forms: list[Form] = list(itertools.product(TARGETS, FREE, SIMILARITY, TERMS))
        self.bad = np.array([pair.bad for pair in pairs])
        self._targets = {name: np.array([target(pair) for pair in pairs]) for name, target in TARGETS.items()}
        self._terms = {name: np.array([term(*pair.demands) for pair in pairs]) for name, term in TERMS.items()}
        self._uses = np.array([[_use(demand) for demand in pair.demands] for pair in pairs])
        self._ratios = np.array([_compare_steps(pair) for pair in pairs])
        self._has = {model: np.array([model in pair.models for pair in pairs]) for model in self.models}
        self._scores: dict[tuple[Form, frozenset[str]], np.ndarray] = {}

    def score(self, form: Form, left_out: frozenset[str]) -> np.ndarray:
        if (form, left_out) not in self._scores:
            target, free, similarity, term = form
            columns = [self._uses.prod(axis=1), np.maximum(0, self._uses.sum(axis=1) - free)]
            columns += [self._terms[term]] if term != "none" else []
            table = np.stack(columns, axis=1) * (self._ratios**similarity)[:, None]
            fit = ~np.logical_or.reduce([self._has[model] for model in left_out])
            found = table @ fit_non_negative(table[fit], self._targets[target][fit])
            self._scores[form, left_out] = found
        return self._scores[form, left_out]

    def list_inner(self, form: Form, left_out: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores, and whether the pair is bad, where each other model is left out in turn."""
        scores, bad = [], []
        for model in self.models:
            if model != left_out:
                held = self._has[model] & ~self._has[left_out]
                scores.append(self.score(form, frozenset((left_out, model)))[held])
                bad.append(self.bad[held])
        return np.concatenate(scores), np.concatenate(bad)

    def evaluate(self, share: float) -> tuple[float, float]:
        """Return the bad pairs found and the good ones called bad, with form and threshold chosen in each fit."""
        alarms, bad = [], []
        for model in self.models:
            inner = {form: self.list_inner(form, model) for form in self.forms}
            form = min(self.forms, key=lambda form: _count_false(*inner[form], LEAST_FOUND))
            scores, was_bad = inner[form]
            held = self._has[model]
            alarms.append(self.score(form, frozenset((model,)))[held] >= find_threshold(scores[was_bad], share))
            bad.append(self.bad[held])
        alarm, truth = np.concatenate(alarms), np.concatenate(bad)
        return float(alarm[truth].mean()), float(alarm[~truth].mean())


def _count_false(scores: np.ndarray, bad: np.ndarray, share: float) -> float:
    return float((scores[~bad] >= find_threshold(scores[bad], share)).mean())


def fit_known_models(pairs: Sequence[Pair], parts: int = 10) -> float:
    """Return the good pairs called bad at 95 % found (with hindsight) by a logistic regression that knows the models.

    It gets every measured quantity of both jobs and which models they are, and is tested on pairs of models that it
    was fitted on. No forecast for a new program has this knowledge, so it shows how much is chance in the pairs.
    """
    models = sorted({model for pair in pairs for model in pair.models})
    rows = []
    for pair in pairs:
        row = [_use(pair.demands[0]) * _use(pair.demands[1]), math.log(_compare_steps(pair))]
        for name in ("gpu_util", "gpu_s_per_step", "gpu_mem_util", "gpu_mem_mib"):
            low, high = sorted(getattr(demand, name) or 0.0 for demand in pair.demands)
            row += [low, high, low + high] if name.endswith("util") else [math.log(low), math.log(high)]
        rows.append(row + [float(pair.models.count(model)) for model in models])
    table, bad = np.array(rows), np.array([pair.bad for pair in pairs])
    table = np.hstack([(table - table.mean(axis=0)) / table.std(axis=0), np.ones((len(pairs), 1))])
    part = np.random.default_rng(0).permutation(len(pairs)) % parts
    scores = np.empty(len(pairs))
    for number in range(parts):
        scores[part == number] = table[part == number] @ _fit_logistic(table[part != number], bad[part != number])
    return _count_false(scores, bad, LEAST_FOUND)


def _fit_logistic(table: np.ndarray, bad: np.ndarray, ridge: float = 1.0) -> np.ndarray:
    weights = np.zeros(table.shape[1])
    for _ in range(30):
        chance = 1 / (1 + np.exp(-np.clip(table @ weights, -30, 30)))
        slope = table.T @ (chance - bad) + ridge * weights
        curve = (table * (chance * (1 - chance))[:, None]).T @ table + ridge * np.eye(table.shape[1])
        weights -= np.linalg.solve(curve, slope)
    return weights


def report_limits(pairs: Sequence[Pair]) -> None:
    choice = FormChoice(pairs)
    print(f"form, coefficients and threshold chosen in each fit, among {len(choice.forms)} forms; one model left out")
    for share in SHARES:
        found, false = choice.evaluate(share)
        print(f"  threshold for {100 * share:.0f} % of the fit: {100 * found:.1f} % found, {100 * false:.1f} % false")
    known = 100 * fit_known_models(pairs)
    print(f"all quantities, and the models of both jobs known, with hindsight: 95 % found, {known:.1f} % false")


# --- evaluation ----------------------------------------------------------------------------------------------------


def leave_out(pairs: Sequence[Pair], fit: Fit, *, strict: bool = False) -> Iterator[Guess]:
    """Yield what is predicted of each pair by a fit without the left-out models."""
    models = sorted({model for pair in pairs for model in pair.models})
    groups: Iterable[tuple[str, ...]] = zip(models)
    if strict:
        groups = itertools.combinations_with_replacement(models, 2)
    for left_out in groups:
        if strict:
            held = [pair for pair in pairs if tuple(sorted(pair.models)) == left_out]
        else:
            held = [pair for pair in pairs if left_out[0] in pair.models]
        if not held:
            continue
        predict = fit([pair for pair in pairs if not set(pair.models) & set(left_out)])
        for pair in held:
            throughput, score, alarm = predict(pair)
            yield Guess(left_out=" + ".join(left_out), pair=pair, throughput=throughput, score=score, alarm=alarm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of guesses; shares from 0 to 1, NaN where there is nothing to count."""

    guesses: int
    bad: int
    error: float  # median, of the combined throughput
    error_p90: float
    found: float
    false: float  # share of the good pairs that are called bad
    false_at_95: float  # the same with the threshold that finds 95 % of the bad ones, chosen with hindsight


def summarize(guesses: Sequence[Guess]) -> Figures:
    bad = [guess for guess in guesses if guess.pair.bad]
    good = [guess for guess in guesses if not guess.pair.bad]
    errors = sorted(guess.error for guess in guesses)
    at_95 = find_threshold((guess.score for guess in bad), LEAST_FOUND)
    return Figures(
        guesses=len(guesses),
        bad=len(bad),
        error=statistics.median(errors),
        error_p90=errors[math.ceil(0.9 * len(errors)) - 1],
        found=_share(guess.alarm for guess in bad),
        false=_share(guess.alarm for guess in good),
        false_at_95=_share(guess.score >= at_95 for guess in good),
    )


def _share(values: Iterable[bool]) -> float:
    seen = list(values)
    return sum(seen) / len(seen) if seen else math.nan


HEAD = f"  {'':40}{'guesses':>8}{'error':>8}{'p90':>8}{'found':>8}{'false':>8}{'false at 95 %':>15}"


def format_line(name: str, found: Figures) -> str:
    shares = (found.error, found.error_p90, found.found, found.false, found.false_at_95)
    texts = ["-" if math.isnan(share) else f"{100 * share:.1f} %" for share in shares]
    return f"  {name:40}{found.guesses:>8,}{texts[0]:>8}{texts[1]:>8}{texts[2]:>8}{texts[3]:>8}{texts[4]:>15}"


def report(pairs: Sequence[Pair]) -> Figures:
    """Print all tables, and return the figures of the model in use."""
    bad = sum(pair.bad for pair in pairs)
    print(f"{len(pairs):,} pairs, {bad} bad: the slower job runs below {BAD_SPEED} of its speed alone")
    print("one model left out; error of the combined throughput (median, p90); bad pairs found, good ones called bad")
    print(HEAD)
    found = {name: list(leave_out(pairs, fit)) for name, fit in PREDICTORS.items()}
    for name, guesses in found.items():
        print(format_line(name, summarize(guesses)))
    strict = list(leave_out(pairs, fit_ours, strict=True))
    print(format_line("slurmwrap, both models of a pair left out", summarize(strict)))
    print("slurmwrap, by the model that is left out")
    for model, guesses in itertools.groupby(found[OURS], key=lambda guess: guess.left_out):
        print(format_line(model, summarize(list(guesses))))
    noisy = {models for models in {guess.pair.models for guess in found[OURS]} if _is_implausible(pairs, models)}
    rest = [guess for guess in found[OURS] if guess.pair.models not in noisy]
    names = ", ".join(sorted(" + ".join(models) for models in noisy)) or "none"
    print(f"without combinations that overload the GPU and yet run faster than alone ({names})")
    print(format_line(OURS, summarize(rest)))
    print("slurmwrap, by the share of the bad pairs of its fit that the threshold finds")
    for share in SHARES:
        print(format_line(f"{100 * share:.0f} %", summarize(list(leave_out(pairs, _fix_share(fit_ours, share))))))
    _report_slower_jobs(found[OURS])
    return summarize(found[OURS])


def _fix_share(fit: Callable[[Sequence[Pair], float], Predictor], share: float) -> Fit:
    return lambda pairs: fit(pairs, share)


def _report_slower_jobs(guesses: Sequence[Guess]) -> None:
    """Print how fast the slower jobs of good pairs that are called bad run: how much a false alarm gives away."""
    slower = sorted(min(guess.pair.speeds) for guess in guesses if guess.alarm and not guess.pair.bad)
    if slower:
        together = statistics.median(sum(guess.pair.speeds) for guess in guesses if guess.alarm and not guess.pair.bad)
        near = _share(speed < IN_BETWEEN for speed in slower)
        print(f"good pairs called bad: the slower job at {statistics.median(slower):.2f} (median), {100 * near:.0f} %")
        print(f"  of them below {IN_BETWEEN}; both together {together:.2f} (median)")


def _is_implausible(pairs: Sequence[Pair], models: tuple[str, str]) -> bool:
    """Return whether the pairs of these models that overload the GPU run, in the mean, faster than alone."""
    speeds = [
        statistics.fmean(pair.speeds)
        for pair in pairs
        if sorted(pair.models) == sorted(models) and add_utilizations(pair) > OVERLOADED
    ]
    return len(speeds) > 1 and statistics.fmean(speeds) > IMPLAUSIBLE


def draw(pairs: Sequence[Pair], path: Path) -> None:
    """Plot the errors, and the bad pairs found over the good ones called bad; no measured pair is shown."""
    import_module("matplotlib").rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "slurmwrap"})
    figure = import_module("matplotlib.figure").Figure(figsize=(9.6, 3.6), layout="constrained")
    errors, alarms = figure.subplots(1, 2)
    for name, colour in ((ALWAYS, "#888888"), (SUM_FITTED, "#e9c46a"), (OURS, "#264653")):
        guesses = list(leave_out(pairs, PREDICTORS[name]))
        label = "sum of utilizations" if name == SUM_FITTED else name
        percents = range(31)
        below = [100 * _share(100 * guess.error <= percent for guess in guesses) for percent in percents]
        errors.plot(percents, below, color=colour, label=label)
        if name == ALWAYS:
            continue
        fit = fit_sum if name == SUM_FITTED else fit_ours
        curve = [summarize(list(leave_out(pairs, _fix_share(fit, share / 100)))) for share in range(50, 101, 2)]
        alarms.plot([100 * one.false for one in curve], [100 * one.found for one in curve], color=colour, label=label)
        found = summarize(guesses)
        alarms.plot([100 * found.false], [100 * found.found], "o", color=colour, markersize=5)
    errors.axvline(100 * MOST_ERROR, color="#888888", linewidth=0.8)
    errors.set(xlabel="error of the combined throughput, %", ylabel="pairs below, %", title="Error (line: target)")
    alarms.axvspan(0, 100 * MOST_FALSE, ymin=(95 - 50) / 52, color="#888888", alpha=0.2, linewidth=0)
    alarms.set(
        xlabel="good pairs called bad, %", ylabel="bad pairs found, %", title="Alarms (grey: target; points: in use)",
        xlim=(0, 40), ylim=(50, 102),
    )  # fmt: skip
    for axes in (errors, alarms):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="measured pairs")
    parser.add_argument("--alone", type=Path, metavar="FILE", help="the same jobs alone")
    parser.add_argument("--limits", action="store_true", help="print only what other forms could do; a minute")
    parser.add_argument("--fit", action="store_true", help="print the coefficients of a fit on all pairs only")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw this file only")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a target is missed")
    given = parser.parse_args()
    if given.pairs is None or given.alone is None:
        print("nothing was fitted: --pairs and --alone name files that slurmwrap does not contain (--help)")
        return 2 if given.fit or given.plot or given.check or given.limits else 0
    pairs = read_pairs(given.pairs, given.alone)
    if given.fit:
        print(fit_model(pairs))
        return 0
    if given.limits:
        report_limits(pairs)
        return 0
    if given.plot is not None:
        draw(pairs, given.plot)
        return 0
    found = report(pairs)
    targets = (
        (found.error <= MOST_ERROR, f"median error {100 * found.error:.1f} %, target {100 * MOST_ERROR:.0f} %"),
        (found.found >= LEAST_FOUND, f"bad pairs found {100 * found.found:.1f} %, at least {100 * LEAST_FOUND:.0f} %"),
        (found.false <= MOST_FALSE, f"false alarms {100 * found.false:.1f} %, target {100 * MOST_FALSE:.0f} %"),
    )
    missed = [text for held, text in targets if not held]
    print("targets:", "all reached" if not missed else "missed: " + "; ".join(missed))
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
