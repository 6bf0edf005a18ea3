"""Read epoch, step and clock of a row that shows a loss. Pure."""

from __future__ import annotations

import re
from calendar import timegm

from slurmwrap.fast_dataclasses import dataclass

_CAP = 600
# "Epoch(train) [1][ 50/1000]", "Epoch: [0]  [ 10/1251]", "Train: [3/300][10/1251]".
_BOXES = re.compile(
    r"(?:epoch|train|test|val|eval)\w{0,6}(?:\(\w{1,8}\))?[\W_]{0,4}\[\s{0,6}(\d{1,7})(?:/(\d{1,7}))?\]\s{0,4}"
    r"\[\s{0,10}(\d{1,12})\s{0,4}/\s{0,6}(\d{1,12})"
)
# "Train: 0 [  50/1251 (  4%)]", "Train Epoch: 1 [640/60000 (1%)]", "Epoch 3 [100/600]".
_BOX_AFTER_EPOCH = re.compile(
    r"(?:epoch|train)\W{0,3}(\d{1,7})(?:/\d{1,7})?\W{0,3}\[\s{0,10}(\d{1,12})\s{0,4}/\s{0,6}(\d{1,12})"
)
_PADDLE = re.compile(r"\[epoch (\d{1,7})/(\d{1,7})\]\[iter: (\d{1,12})/(\d{1,12})\]")
_CIFAR = re.compile(r"^\W{0,2}\[(\d{1,7}),\s{1,9}(\d{1,12})\] loss")
# "[000500/50000] | loss 0.5".
_LEADING_BOX = re.compile(r"^\W{0,2}\[\s{0,8}(\d{1,12})\s{0,4}/\s{0,8}(\d{1,12})\]")
_ESPNET = re.compile(r"(\d{1,7})epoch:train:(?:\d{1,12})-(\d{1,12})batch")
_ESPNET_RESULT = re.compile(r"(\d{1,7})epoch results:")
_EPOCH = re.compile(
    r"(?<![\w-])(?:epochs?|ep|training epoch)(?:\s?\(\w{1,8}\))?['\"]?\.?\s{0,3}[:=#|]{0,2}\s{0,6}[\[(]?\s{0,4}['\"]?"
    r"(\d{1,7}(?:\.\d{1,20})?(?:e[-+]?\d{1,3})?)(?:\s{0,3}(?:/|of)\s{0,3}(\d{1,7}))?(?![\w%])"
)
_GLOBAL_STEP = re.compile(
    r"(?:global[_ ]?steps?|num_updates|current_steps|consumed_steps)['\"]?\s{0,3}[:=]?\s{0,8}['\"]?"
    r"(\d{1,12}(?:\.\d{1,9})?(?:e[+]?\d{1,2})?)(?!\d)"
)
_COUNT = (
    r"(?:\(\w{1,8}\))?['\"]?\]?\.?\s{0,3}[:=#\N{FULLWIDTH COLON}]?\s{0,14}[\[(#]?\s{0,10}['\"]?(\d{1,12})"
    r"(?:\s{0,12}(?:/|of)\s{0,12}(\d{1,12}))?\b(?!\.\d|%|\s{0,2}(?:ms|s)\b|:\d\d)"
)
_STEP = re.compile(rf"(?<![\w/-])steps?{_COUNT}")
# Names of steps that give way to "step" in the same row. The last ones are "number of training" and "of iterations".
_OTHER_STEP = re.compile(
    r"(?:(?<![\w/-])(?:iters?|iterations?|it|updates?|up|batch(?:_idx|_id)?)"
    rf"|\u8bad\u7ec3\u6b21\u6570|\u8fed\u4ee3\u6b21\u6570){_COUNT}"
)
_BAR = re.compile(
    r"\d{1,3}%(?:\|[^|]{0,160}\|)? {0,9}(\d{1,12})/(\d{1,12}) ?\[(?:(?:(\d{1,3}):)?(\d{1,3}):(\d\d)(?=[<,\]]))?"
)
# With `verbose=2` Keras draws no bar: "100/100 - 5s - loss: 0.5".
_KERAS = re.compile(r"(?:^|\s)(\d{1,9})/(\d{1,9}) (?:\[[=.>]|\N{BOX DRAWINGS HEAVY HORIZONTAL}|- \d{1,7}s\b)")
# OpenNMT-py of 2018: "Epoch  1, 12850/37527; acc: 3.99; ppl: 12792.57; xent: 9.46".
_OPENNMT = re.compile(r"epoch\s{1,9}(\d{1,7}),\s{1,9}(\d{1,12})/\s{0,9}(\d{1,12});")
# fairseq of 2018 and earlier: "epoch 010  7000 / 8223 loss=0.86".
_FAIRSEQ = re.compile(r"epoch (\d{1,7}):?\s{1,9}(\d{1,12}) / (\d{1,12}) loss=")
_RICH = re.compile(r"\N{BOX DRAWINGS HEAVY HORIZONTAL}[^\d]{0,120}(\d{1,9})/(\d{1,9})\s")
_DATE = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_DAY = re.compile(r"\[?(\d\d)[-/](\d\d) (\d\d):(\d\d):(\d\d)")
_TIME = re.compile(r"^\W{0,2}(?:\w{1,10}\W{1,2})?(\d\d):(\d\d):(\d\d)(?=[^\d:]|$)")
_CLOCK_CAP = 120
_HEAVY = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the training is by one row, as it is printed. None: the row does not say."""

    epoch: float | None = None
    epochs: float | None = None  # number of epochs in total
    step: float | None = None
    steps: float | None = None  # number of steps in total, or in an epoch
    inner: bool = False  # the step counts within an epoch
    bar: bool = False  # a progress bar

    def with_epoch(self, other: Progress) -> Progress:
        """Return this with the epoch of another row."""
        return Progress(
            epoch=other.epoch, epochs=other.epochs, step=self.step, steps=self.steps, inner=self.inner, bar=self.bar
        )


def read_progress(row: str, lower: str) -> Progress:
    """Return the epoch and the step that a row shows. `lower`: the row in lower case."""
    lower = lower[:_CAP]
    named = _GLOBAL_STEP.search(lower) if "step" in lower or "num_updates" in lower else None
    epoch, epochs = _read_epoch(lower) if "ep" in lower else (None, None)
    bar = _BAR.search(row) if "%|" in row or ("% " in row and "<" in row) else None
    if named:
        return Progress(epoch=epoch, epochs=epochs, step=float(named[1]), bar=bar is not None)
    if bar:
        return _make(epoch, epochs, bar[1], bar[2], inner=epoch is not None, bar=True)
    if " / " in lower and (old := _FAIRSEQ.search(lower)):
        return _make(float(old[1]), None, old[2], old[3], inner=True)
    if "; " in lower and (old := _OPENNMT.search(lower)):
        return _make(float(old[1]), None, old[2], old[3], inner=True)
    if _HEAVY in row or " [" in row or "s - " in row:
        drawn = _KERAS.search(row) or (_RICH.search(row) if _HEAVY in row else None)
        if drawn:
            return _make(epoch, epochs, drawn[1], drawn[2], inner=True, bar=True)
    if "[" in lower:
        boxed = _read_boxes(lower)
        if boxed is not None:
            return boxed
    if "epoch:train:" in lower and (one := _ESPNET.search(lower)):
        return _make(float(one[1]), None, one[2], None, inner=True)
    step = _STEP.search(lower) if "step" in lower else None
    step = step or (_LEADING_BOX.match(lower) if "[" in lower else None)
    step = step or (_OTHER_STEP.search(lower) if _has_step_word(lower) else None)
    if step:
        return _make(epoch, epochs, step[1], step[2])
    return Progress(epoch=epoch, epochs=epochs)


def _has_step_word(lower: str) -> bool:
    return "it" in lower or "up" in lower or "batch" in lower or "\u6b21\u6570" in lower


def _read_epoch(lower: str) -> tuple[float | None, float | None]:
    found = _EPOCH.search(lower)
    if found:
        return float(found[1]), float(found[2]) if found[2] else None
    result = _ESPNET_RESULT.search(lower) or _ESPNET.search(lower)
    return (float(result[1]), None) if result else (None, None)


def _read_boxes(lower: str) -> Progress | None:
    if found := _PADDLE.search(lower):
        return _make(float(found[1]), float(found[2]), found[3], found[4], inner=True)
    if found := _BOXES.search(lower):
        return _make(float(found[1]), float(found[2]) if found[2] else None, found[3], found[4], inner=True)
    if found := _BOX_AFTER_EPOCH.search(lower):
        return _make(float(found[1]), None, found[2], found[3], inner=True)
    if found := _CIFAR.search(lower):
        return _make(float(found[1]), None, found[2], None, inner=True)
    return None


def _make(
    epoch: float | None,
    epochs: float | None,
    step: str,
    steps: str | None,
    *,
    inner: bool = False,
    bar: bool = False,
) -> Progress:
    total = float(steps) if steps else None
    return Progress(epoch=epoch, epochs=epochs, step=float(step), steps=total, inner=inner, bar=bar)


def read_bar_clock(row: str) -> tuple[float, int, int] | None:
    """Return the elapsed seconds of a progress bar (tqdm), its steps that are done, and all; None without a time."""
    found = _BAR.search(row)
    if found is None or found[5] is None:
        return None
    seconds = int(found[3] or 0) * 3600 + int(found[4]) * 60 + int(found[5])
    return float(seconds), int(found[1]), int(found[2])


def read_clock(row: str) -> tuple[float | None, bool]:
    """Return the seconds by the clock at the start of a row, and whether it has a date with a year.

    The time zone is unknown: the clock is read as UTC. Without a year the seconds count from the start of a leap year,
    without a day from midnight.
    """
    head = row[:_CLOCK_CAP]
    if ":" not in head:
        return None, False
    if found := _DATE.search(head):
        year, month, day, hour, minute, second = (int(found[i]) for i in range(1, 7))
        fraction = float(f"0.{found[7]}") if found[7] else 0.0
        return _to_seconds(year, month, day, hour, minute, second, fraction), True
    if found := _DAY.search(head):
        month, day, hour, minute, second = (int(found[i]) for i in range(1, 6))
        return _to_seconds(2000, month, day, hour, minute, second), False
    if found := _TIME.search(head):
        return float(int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])), False
    return None, False


def _to_seconds(
    year: int, month: int, day: int, hour: int, minute: int, second: int, part: float = 0.0
) -> float | None:
    """Return Unix seconds of a date; None if it is not one."""
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 25 and minute < 61 and second < 62):
        return None
    return timegm((year, month, day, hour, minute, second, 0, 0, 0)) + part
