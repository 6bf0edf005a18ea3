"""Turn the rows with a loss into a curve: steps counted over all epochs, times, one point for each step. Pure.

Times come from the output's own clocks: the date of each row, else the elapsed time of its progress bars. Without any,
steps are taken to last equally long, and rows without steps to be equally far apart.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

from slurmwrap.diagnosis.loss_rows import BarClock, LossRow, LossRows
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.running_job import LossPoint

MOST_POINTS = 256
# Number of points of validation that are kept in any case.
_MOST_VALIDATIONS = 64
# Rows that show neither a step nor an epoch count from this number on.
_FEWEST_BARE_ROWS = 5
# A row that is printed again after so many others is one of another training.
_REPEATED_WITHIN = 100
# Progress bars of epochs count for times as they are if they cover this share of the run.
_COVERED = 0.5
_DAY_S = 86400.0
_YEAR_S = 366 * _DAY_S
# Largest difference between the clock of a node and Slurm's.
_CLOCK_SKEW_S = 120.0
_ZONE_UNITS_S = (3600.0, 1800.0, 900.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpan:
    """When a run began and how long it lasted, in seconds. `began`: Unix seconds; None: unknown."""

    run_s: float
    began: float | None = None
    # Seconds by which the local time of the node is ahead of UTC.
    zone_s: float = 0.0


@dataclass(slots=True)
class _Point:
    """A point while it is put together from its rows."""

    row: LossRow
    at_s: float
    step: float | None
    epoch: float | None
    loss: float | None
    validation: float | None


def make_points(found: LossRows, span: RunSpan) -> tuple[LossPoint, ...]:
    """Return the points of the curve, in the order of the output. A loss that is NaN or infinite is None."""
    rows = _drop_bare(_drop_means(_drop_parts(found.rows)))
    rows = _drop_repeated(_number_steps(rows))
    if not rows:
        return ()
    times = _find_times(rows, found.bars, span)
    points: list[_Point] = []
    for row, at_s in zip(rows, times, strict=True):
        _add_row(points, row, at_s)
    return tuple(
        LossPoint(
            at_s=point.at_s,
            step=point.step,
            epoch=point.epoch,
            loss=_check_finite(point.loss),
            validation_loss=_check_finite(point.validation),
        )
        for point in points
    )


def _check_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# ---- which rows count, and their steps


def _drop_parts(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows without parts of the loss, if others show the whole loss."""
    whole = sum(row.loss is not None and not row.part for row in rows)
    if whole < _FEWEST_BARE_ROWS and whole * 2 < sum(row.part for row in rows):
        return list(rows)
    kept = (replace(row, loss=None) if row.part else row for row in rows)
    return [row for row in kept if row.loss is not None or row.validation is not None]


def _drop_means(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows without the means of whole epochs, if others show the loss in more detail."""
    detailed = sum(row.loss is not None and not row.mean for row in rows)
    if detailed <= sum(row.mean for row in rows):
        return list(rows)
    kept = (replace(row, loss=None) if row.mean else row for row in rows)
    return [row for row in kept if row.loss is not None or row.validation is not None]


def _drop_bare(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows without those that show no progress, such as the settings of a loss.

    Losses of validation may be printed without a step. If no row shows progress, all count if they are many.
    """
    known = [row for row in rows if row.progress.step is not None or row.progress.epoch is not None]
    if not known:
        return list(rows) if len(rows) >= _FEWEST_BARE_ROWS else []
    first = known[0].position
    return [
        row
        for row in rows
        if row.progress.step is not None
        or row.progress.epoch is not None
        or (row.loss is None and row.position > first)
    ]


def _number_steps(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows with steps that count over all epochs."""
    rows = _drop_steps_of_validation(rows)
    training = [row for row in rows if row.progress.step is not None and row.loss is not None]
    if not training:
        return rows
    if all(row.progress.epoch is None for row in training):
        return _count_bars(rows) if training[0].progress.bar else rows
    inner = _restarts_each_epoch(training)
    epochs = [row.progress.epoch for row in training if row.progress.epoch is not None]
    base = 0.0 if min(epochs) < 1 else 1.0
    total = max((row.progress.steps or 0.0) for row in training) or max(
        row.progress.step for row in training if row.progress.step is not None
    )

    def number(row: LossRow) -> LossRow:
        progress = row.progress
        if progress.step is None or progress.epoch is None or not (progress.inner or inner):
            return row
        whole = max(0.0, math.floor(progress.epoch) - base)
        return replace(row, progress=replace(progress, step=whole * (progress.steps or total) + progress.step))

    return [number(row) for row in rows]


def _drop_steps_of_validation(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows without the steps of passes over the validation data."""
    totals = Counter(row.progress.steps for row in rows if row.loss is not None)
    kept = []
    for row in rows:
        progress = row.progress
        own = progress.bar or progress.inner or (progress.steps is not None and progress.steps not in totals)
        if row.loss is None and progress.step is not None and own and not _is_whole_bar(row, totals):
            row = replace(row, progress=replace(progress, step=None, steps=None))
        kept.append(row)
    return kept


def _is_whole_bar(row: LossRow, totals: Counter[float | None]) -> bool:
    return row.progress.steps is not None and totals[row.progress.steps] > 1


def _restarts_each_epoch(training: Sequence[LossRow]) -> bool:
    """Return True if the printed steps start again with each epoch."""
    restarts = goes_on = 0
    for before, after in pairwise(training):
        if before.progress.epoch is None or after.progress.epoch is None or before.progress.step is None:
            continue
        if math.floor(after.progress.epoch) > math.floor(before.progress.epoch) and after.progress.step is not None:
            restarts += after.progress.step <= before.progress.step
            goes_on += after.progress.step > before.progress.step
    return restarts > goes_on


def _count_bars(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows of a bar that is drawn anew in each epoch, with steps that count over all of them."""
    counted, before, total, earlier = [], 0.0, 0.0, 0.0
    for row in rows:
        step = row.progress.step
        if step is not None:
            if step < before and before == total:
                earlier += before
            before, total = step, row.progress.steps or 0.0
            row = replace(row, progress=replace(row.progress, step=step + earlier))
        counted.append(row)
    return counted


def _drop_repeated(rows: Sequence[LossRow]) -> list[LossRow]:
    """Return the rows without those that repeat an earlier one, as several ranks print them."""
    seen: dict[tuple[float | None, ...], int] = {}
    kept = []
    for i, row in enumerate(rows):
        key = (row.progress.epoch, row.progress.step, row.loss, row.validation)
        if row.progress.step is None or i - seen.get(key, -_REPEATED_WITHIN) >= _REPEATED_WITHIN:
            kept.append(row)
        seen[key] = i
    return kept


def _add_row(points: list[_Point], row: LossRow, at_s: float) -> None:
    """Add a row to the last point if both are of the same step, else as a new point."""
    progress = row.progress
    last = points[-1] if points else None
    if last is not None and _is_same_step(last, row):
        if row.loss is not None and (last.loss is None or row.redrawn or progress.bar):
            last.loss, last.at_s = row.loss, at_s
        if row.validation is not None:
            last.validation, last.at_s = row.validation, at_s
        last.epoch = last.epoch if last.epoch is not None else progress.epoch
        last.step = last.step if last.step is not None else progress.step
        return
    points.append(
        _Point(row=row, at_s=at_s, step=progress.step, epoch=progress.epoch, loss=row.loss, validation=row.validation)
    )


def _is_same_step(last: _Point, row: LossRow) -> bool:
    step, epoch = row.progress.step, row.progress.epoch
    if row.loss is None and step is None:
        # A pass over the validation data belongs to the training before it.
        return epoch is None or last.epoch is None or epoch == last.epoch
    if step is not None and last.step is not None:
        return step == last.step and (
            epoch is None or last.epoch is None or math.floor(epoch) == math.floor(last.epoch)
        )
    if step is None and last.step is None and epoch is not None:
        return epoch == last.epoch and (row.redrawn or last.loss is None or row.loss is None)
    # "Epoch 3: loss" after the validation of the same epoch, or the other way round.
    return last.loss is None and epoch is not None and epoch == last.epoch


# ---- times


def _find_times(rows: Sequence[LossRow], bars: Sequence[BarClock], span: RunSpan) -> list[float]:
    """Return for each row the seconds since the start of the run, ascending."""
    found = _read_clocks(rows, span) or _read_bars(rows, bars, span) or _count_steps(rows, span.run_s)
    times: list[float] = []
    latest = 0.0
    for at in found:
        latest = min(max(latest, at), span.run_s)
        times.append(latest)
    return _spread_equal_times(times, span.run_s)


def _spread_equal_times(times: Sequence[float], run_s: float) -> list[float]:
    """Return the times with equal ones spread up to the next one: clocks show whole seconds."""
    spread: list[float] = []
    for time, group in groupby(times):
        n = sum(1 for _ in group)
        after = times[len(spread) + n] if len(spread) + n < len(times) else run_s
        spread += [time + (after - time) * i / n for i in range(n)]
    return spread


def _read_clocks(rows: Sequence[LossRow], span: RunSpan) -> list[float] | None:
    """Return the times by the clocks of the rows; None if too few rows have one."""
    known = [(i, row.clock) for i, row in enumerate(rows) if row.clock is not None]
    if len(known) < 2 or 2 * len(known) < len(rows):
        return None
    dated = sum(row.dated for row in rows)
    wrap = 0.0 if 2 * dated > len(known) else _DAY_S if max(clock for _, clock in known) < 2 * _DAY_S else _YEAR_S
    clocks, turns, before = [], 0.0, -math.inf
    for _, clock in known:
        if wrap and clock < before - wrap / 2:
            turns += wrap
        before = clock
        clocks.append(clock + turns)
    if clocks[-1] <= clocks[0]:
        return None
    utc = all(row.utc for row in rows if row.clock is not None)
    placed = _place_dates(clocks, span, utc=utc) if not wrap else None
    seconds = placed if placed is not None else _align_at_end(clocks, span.run_s)
    return _interpolate([i for i, _ in known], seconds, list(range(len(rows))))


def _place_dates(clocks: Sequence[float], span: RunSpan, *, utc: bool) -> list[float] | None:
    """Return the seconds since the start of the run; None if no time zone puts all of them into the run."""
    if span.began is None:
        return None
    low, high = min(clocks) - span.began, max(clocks) - span.began
    latest = span.run_s + _CLOCK_SKEW_S
    # Of other time zones, the one in which the last row is nearest to the end of the run; whole hours first.
    others = (-unit * math.floor((latest - high) / unit) for unit in _ZONE_UNITS_S)
    shifts = (0.0,) if utc else (span.zone_s, 0.0, *others)
    for shift in shifts:
        if low - shift >= -_CLOCK_SKEW_S and high - shift <= latest:
            return [clock - span.began - shift for clock in clocks]
    return None


def _align_at_end(clocks: Sequence[float], run_s: float) -> list[float]:
    """Return the seconds since the start, if the last row was printed at the end of the run."""
    length = clocks[-1] - clocks[0]
    factor = run_s / length if length > run_s else 1.0
    return [run_s - (clocks[-1] - clock) * factor for clock in clocks]


def _read_bars(rows: Sequence[LossRow], bars: Sequence[BarClock], span: RunSpan) -> list[float] | None:
    """Return the times by the elapsed seconds of the progress bar that is drawn most often; None without one."""
    counts = Counter(bar.total for bar in bars)
    # Of bars that are drawn about as often, the longest one is that of the training.
    often = [total for total, n in counts.items() if n * 4 >= max(counts.values())]
    mine = [bar for bar in bars if bar.total == max(often)] if often else []
    if len(mine) < 3:
        return None
    clocks, turns, before = [], 0.0, mine[0]
    for bar in mine:
        turns += before.elapsed_s if _is_new_bar(bar, before) else 0.0
        before = bar
        clocks.append(turns + bar.elapsed_s)
    if clocks[-1] <= clocks[0]:
        return None
    positions = [bar.position for bar in mine]
    # Bars of epochs that cover little of the run do not show what lasted longer: validation, or saving.
    covered = clocks[-1] - clocks[0]
    if turns and covered < _COVERED * span.run_s:
        seconds = [span.run_s * clock / clocks[-1] for clock in clocks]
    else:
        seconds = _align_at_end(clocks, span.run_s)
    return _interpolate(positions, seconds, [row.position for row in rows])


def _is_new_bar(bar: BarClock, before: BarClock) -> bool:
    """Return True if a bar was begun anew. Of a short epoch only the complete bar may be shown."""
    complete = before.done == before.total and bar.elapsed_s != before.elapsed_s
    return complete or bar.elapsed_s < before.elapsed_s or bar.done < before.done


def _interpolate(known: Sequence[float], values: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Return the values at `wanted` by straight lines through the known ones; beyond the ends with the mean slope."""
    slope = (values[-1] - values[0]) / ((known[-1] - known[0]) or 1)
    found = []
    for at in wanted:
        after = bisect_left(known, at)
        if after == 0:
            found.append(max(0.0, values[0] - (known[0] - at) * slope))
        elif after == len(known):
            found.append(values[-1] + (at - known[-1]) * slope)
        else:
            low, high = known[after - 1], known[after]
            share = (at - low) / (high - low) if high > low else 1.0
            found.append(values[after - 1] + share * (values[after] - values[after - 1]))
    return found


def _count_steps(rows: Sequence[LossRow], run_s: float) -> list[float]:
    """Return the times if all steps last equally long, or else the epochs, or else the rows."""
    for name in ("step", "epoch"):
        values = [getattr(row.progress, name) for row in rows]
        known = [(i, value) for i, value in enumerate(values) if value is not None]
        if len(known) >= 2 and 2 * len(known) >= len(rows):
            done = _count_done([value for _, value in known])
            if done[-1] > 0:
                seconds = [run_s * one / done[-1] for one in done]
                return _interpolate([i for i, _ in known], seconds, list(range(len(rows))))
    return [run_s * (i + 1) / len(rows) for i in range(len(rows))]


def _count_done(values: Sequence[float]) -> list[float]:
    """Return the work done at each value of a counter that may jump back to a checkpoint."""
    gaps = sorted(after - before for before, after in pairwise(values) if after > before)
    usual = gaps[len(gaps) // 2] if gaps else 1.0
    done = [values[0] if 0 < values[0] <= 2 * usual else 0.0 if values[0] == 0 else usual]
    for before, after in pairwise(values):
        done.append(done[-1] + (after - before if after >= before else usual))
    return done


# ---- fewer points


def reduce_points(points: Sequence[LossPoint], most: int = MOST_POINTS) -> tuple[LossPoint, ...]:
    """Return at most `most` of the points: both ends, the lowest losses, and medians of equally many points."""
    if len(points) <= most:
        return tuple(points)
    kept = {0, len(points) - 1}
    for losses in (_list_losses(points, "loss"), _list_losses(points, "validation_loss")):
        kept.update(i for _, i in sorted(losses)[:1])
    validations = [i for _, i in _list_losses(points, "validation_loss")]
    kept.update(_pick_evenly(validations, min(_MOST_VALIDATIONS, most // 4)))
    left = [i for i in range(len(points)) if i not in kept]
    groups = max(1, most - len(kept))
    for group in range(groups):
        part = left[len(left) * group // groups : len(left) * (group + 1) // groups]
        known = sorted((loss, i) for i in part if (loss := points[i].loss) is not None)
        kept.update(i for _, i in known[len(known) // 2 :][:1])
        kept.update(part[len(part) // 2 :][:1] if not known else ())
    return tuple(points[i] for i in sorted(kept))


def _list_losses(points: Sequence[LossPoint], name: str) -> list[tuple[float, int]]:
    """Return the known losses with their indexes."""
    return [(loss, i) for i, point in enumerate(points) if (loss := getattr(point, name)) is not None]


def _pick_evenly(indexes: Sequence[int], most: int) -> list[int]:
    if len(indexes) <= most:
        return list(indexes)
    return [indexes[(len(indexes) - 1) * i // (most - 1)] for i in range(most)]
