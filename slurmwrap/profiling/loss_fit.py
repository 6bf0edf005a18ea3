"""Predict the loss at the end of a running training from its curve so far; compare the members of a sweep. Pure.

Two families of curves are fitted: l(k) = 1/(a k + b) + c (Optimus, EuroSys'18) and A exp(-k/t) + c. With k0 = b/a the
first is A / (k + k0) + c: for a fixed shape (k0 or t) both are linear in A and c, so a small grid of shapes and least
squares with Huber's weights suffice. The prediction is a mean of both and of the last value, weighted by how well each
would have predicted the newest part of the curve. The band comes from such earlier predictions too: how far they were
off, for a horizon that is as long in log(steps) as the one that is left. Other powers of k + k0 made predictions worse
(bench/loss_fit.py, development half).

A schedule of the learning rate that lowers the loss towards the end cannot be seen in the first part of a curve: then
the prediction is too high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import erf, exp, inf, isfinite, log, sqrt

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.running_job import LossPoint

# Fewer points than this are no curve.
LEAST_POINTS = 16
# The band holds the final loss with this probability, if errors are normally distributed.
BAND = 0.9
_BAND_SD = 1.645
# The curve is reduced to so many means before it is fitted.
_BINS = 48
# Share of the run whose mean is the "last value" and "final loss".
_TAIL = 0.05
# Shares of the curve from which its newest part is predicted, to weight the families and for the band.
_CUTS = (0.4, 0.5, 0.6, 0.7)
# A family must have predicted clearly better than the last value to count more: factor on its squared errors.
_LAST_FAVOUR = 0.5
# A point further than this from the median of its neighbours is moved there, in median absolute deviations.
_OUTLIER = 4.0
_NEIGHBOURS = 4
# Shapes: k0 and t as shares of the steps so far.
_OFFSETS = tuple(0.002 * 2**number for number in range(9))
_TIMES = tuple(0.05 * 2 ** (number / 4) for number in range(17))
OPTIMUS, EXPONENTIAL, LAST = "inverse", "exponential", "last value"

Shape = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossFit:
    """A predicted loss curve. Steps are in the unit of the points: steps, epochs or seconds."""

    final: float  # predicted loss at the end of the run
    low: float  # the final loss is between `low` and `high` with probability BAND
    high: float
    now: float  # smoothed loss now
    step: float  # of the last point
    total: float  # of the whole run
    family: str  # the one that counts most: OPTIMUS, EXPONENTIAL or LAST
    curve: tuple[tuple[float, float], ...]  # predicted (step, loss) from now to the end

    @property
    def improvement(self) -> float:
        """By what share of the present loss the rest of the run will lower it; negative if it will rise."""
        return (self.now - self.final) / abs(self.now) if self.now else 0.0

    def find_steps_to(self, within: float) -> float | None:
        """Return the steps that are left until the loss is within this share of the predicted final one.

        0: it is already. None: only at the very end.
        """
        goal = self.final + within * abs(self.final)
        for step, loss in self.curve[:-1]:
            if loss <= goal:
                return max(0.0, step - self.step)
        return None


def fit_loss(points: Sequence[LossPoint], total: float, unit: str = "step") -> LossFit | None:
    """Return the predicted curve of a run of `total` steps; None with too few points or if the run is over.

    `unit`: the field of LossPoint that `total` is measured in: "step", "epoch" or "at_s".
    """
    xs, ys = list_values(points, unit)
    if len(xs) < LEAST_POINTS or not xs[-1] < total or not xs[0] < xs[-1]:
        return None
    curve = _reduce(xs, smooth(ys))
    models = [_Model(curve, 1.0), *(_Model(curve, cut) for cut in _CUTS)]
    weights, errors = _weigh(models)
    now = models[0].last
    ahead = [xs[-1] + (total - xs[-1]) * number / 100 for number in range(101)]
    predicted = [(step, models[0].predict(step, weights)) for step in ahead]
    # The final loss is that of the last steps, on average.
    final = models[0].predict(total * (1 - _TAIL / 2), weights)
    spread = _BAND_SD * sqrt(_get_variance(errors, log(total / xs[-1])) + models[0].noise ** 2)
    low = final - spread
    if min(ys) >= 0:
        low = max(0.0, low)
    return LossFit(
        final=final, low=low, high=final + spread, now=now, step=xs[-1], total=total,
        family=max(weights, key=lambda name: weights[name]), curve=tuple(predicted),
    )  # fmt: skip


def list_values(points: Sequence[LossPoint], unit: str = "step") -> tuple[list[float], list[float]]:
    """Return the steps and losses of the points that have both, in order; after a step back, only the newer ones."""
    xs: list[float] = []
    ys: list[float] = []
    for point in points:
        x, y = getattr(point, unit), point.loss
        if x is None or y is None or not isfinite(x) or not isfinite(y) or x < 0:
            continue
        while xs and xs[-1] >= x:
            xs.pop()
            ys.pop()
        xs.append(float(x))
        ys.append(float(y))
    return xs, ys


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the losses with outliers moved to the median of their neighbours."""
    found = list(losses)
    medians = [_median(losses[max(0, i - _NEIGHBOURS) : i + _NEIGHBOURS + 1]) for i in range(len(losses))]
    gaps = [abs(loss - median) for loss, median in zip(losses, medians, strict=True)]
    limit = _OUTLIER * 1.483 * _median(gaps)
    for i, gap in enumerate(gaps):
        # The first points may fall so fast that they look like outliers.
        if gap > limit > 0 and i > _NEIGHBOURS:
            found[i] = medians[i]
    return found


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class _Curve:
    xs: list[float]
    ys: list[float]


def _reduce(xs: list[float], ys: list[float]) -> _Curve:
    """Return at most _BINS means over equal numbers of points."""
    size = max(1, -(-len(xs) // _BINS))
    starts = range(len(xs) % size, len(xs), size)
    return _Curve(
        [sum(xs[i : i + size]) / size for i in starts],
        [sum(ys[i : i + size]) / size for i in starts],
    )


class _Model:
    """The families fitted to the first part of a curve."""

    def __init__(self, curve: _Curve, cut: float) -> None:
        self.end = max(8, round(cut * len(curve.xs)))
        xs, ys = curve.xs[: self.end], curve.ys[: self.end]
        self.x = xs[-1]
        tail = ys[-max(2, len(ys) // 10) :]
        self.last = sum(tail) / len(tail)
        self.fits = {name: _fit_family(shapes, xs, ys) for name, shapes in _list_families(self.x)}
        best = min(error for _, _, _, error in self.fits.values())
        self.noise = best / sqrt(max(1.0, _TAIL * len(curve.xs)))

    def predict_by(self, name: str, step: float) -> float:
        if name == LAST:
            return self.last
        offset, scale, shape, _ = self.fits[name]
        return offset + scale * shape(step)

    def predict(self, step: float, weights: dict[str, float]) -> float:
        return sum(weight * self.predict_by(name, step) for name, weight in weights.items())


def _list_families(x: float) -> Iterator[tuple[str, list[Shape]]]:
    """Yield each family and its shapes, for a curve that ends at `x`."""

    def inverse(k0: float) -> Shape:
        return lambda k: 1 / (k / x + k0)

    def decay(t: float) -> Shape:
        return lambda k: exp(-min(k / x / t, 500.0))

    yield OPTIMUS, [inverse(k0) for k0 in _OFFSETS]
    yield EXPONENTIAL, [decay(t) for t in _TIMES]


def _fit_family(shapes: Sequence[Shape], xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float, Shape, float]:
    """Return c, A and the shape that fit best, and the root mean square error."""
    best: tuple[float, float, Shape, float] | None = None
    least = 0.0 if min(ys) >= 0 else -inf
    # Newer points count more.
    age = [x / xs[-1] for x in xs]
    for shape in shapes:
        values = [shape(x) for x in xs]
        weights = age
        offset = scale = 0.0
        for _ in range(2):
            offset, scale = _solve(values, ys, weights, least)
            gaps = [abs(y - offset - scale * value) for y, value in zip(ys, values, strict=True)]
            limit = 2 * _median(gaps) + 1e-12
            weights = [one * min(1.0, limit / gap) if gap else one for one, gap in zip(age, gaps, strict=True)]
        error = sqrt(sum(w * gap * gap for w, gap in zip(age, gaps, strict=True)) / sum(age))
        if best is None or error < best[3]:
            best = (offset, scale, shape, error)
    assert best is not None
    return best


def _solve(values: Sequence[float], ys: Sequence[float], weights: Sequence[float], least: float) -> tuple[float, float]:
    """Return c >= `least` and A >= 0 of y = c + A v by weighted least squares."""
    total = sum(weights)
    mean_v = sum(w * v for w, v in zip(weights, values, strict=True)) / total
    mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    spread = sum(w * (v - mean_v) ** 2 for w, v in zip(weights, values, strict=True))
    if spread <= 1e-15:
        return mean_y, 0.0
    scale = sum(w * (v - mean_v) * (y - mean_y) for w, v, y in zip(weights, values, ys, strict=True)) / spread
    offset = mean_y - scale * mean_v
    if scale <= 0:
        return mean_y, 0.0
    if offset < least:
        squares = sum(w * v * v for w, v in zip(weights, values, strict=True))
        return least, sum(w * v * (y - least) for w, v, y in zip(weights, values, ys, strict=True)) / squares
    return offset, scale


def _weigh(models: Sequence[_Model]) -> tuple[dict[str, float], list[tuple[float, float]]]:
    """Return the weight of each family, and (log horizon, error) of the mean's earlier predictions of the present."""
    now, x = models[0].last, models[0].x
    floor = models[0].noise ** 2 + 1e-24
    raw = {}
    for name in (OPTIMUS, EXPONENTIAL, LAST):
        square = sum((model.predict_by(name, x) - now) ** 2 for model in models[1:]) / len(models[1:])
        raw[name] = 1 / (square * (_LAST_FAVOUR if name == LAST else 1.0) + floor) ** 2
    weights = {name: one / sum(raw.values()) for name, one in raw.items()}
    return weights, [(log(x / model.x), model.predict(x, weights) - now) for model in models[1:]]


def _get_variance(errors: Sequence[tuple[float, float]], horizon: float) -> float:
    """Return the variance of a prediction over `horizon`: that of earlier ones, which grows with its square."""
    return horizon**2 * sum((error / max(0.05, back)) ** 2 for back, error in errors) / len(errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dominated:
    """A member of a sweep that will hardly become its best. `best`: the one with the lowest predicted final loss."""

    name: str
    best: str
    probability: float  # that its final loss is higher than that of `best`
    final: float
    best_final: float


def find_dominated(
    fits: dict[str, LossFit | None], certainty: float = 0.95, least_share: float = 0.2
) -> tuple[Dominated, ...]:
    """Return the members whose final loss is higher than the best one's with this probability (POP, Middleware'17).

    `fits`: one per member; None where nothing is predicted yet. Members before `least_share` of their steps are not
    judged. Advice only: the errors of two predictions are taken as independent and normal.
    """
    known = {name: fit for name, fit in fits.items() if fit is not None}
    if not known:
        return ()
    best = min(known, key=lambda name: (known[name].final, name))
    found = []
    for name, fit in known.items():
        if name == best or fit.step < least_share * fit.total:
            continue
        sd = sqrt(sum(((one.high - one.final) / _BAND_SD) ** 2 for one in (fit, known[best])))
        gap = fit.final - known[best].final
        probability = 0.5 * (1 + erf(gap / sd / sqrt(2))) if sd else float(gap > 0)
        if probability >= certainty:
            found.append(
                Dominated(name=name, best=best, probability=probability, final=fit.final, best_final=known[best].final)
            )
    return tuple(sorted(found, key=lambda one: -one.final))
