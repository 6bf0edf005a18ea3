"""How far training came, from what it printed: for the retry ledger (progress resets it) and for `resize`. Pure.

All of it is the user's claim. Only the start and the end of each log are read: the furthest step stands near the end,
where a run resumed near the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from slurmwrap.diagnosis.log_rows import LogRows
from slurmwrap.fast_dataclasses import dataclass

_FIRST, _LAST = 80, 160  # rows read at either end of a log
_STEPS_CAP = 300
_MOST = 10**12
_STEP = re.compile(
    r"(?:^|[^\w-])(?:global[_ ]?step|step|iteration|iter|update|batch_idx|num_updates)"
    r"['\"]?\s{0,3}[=:#\[]?\s{0,12}(\d{1,12})\b"
    r"(?!\.\d|%|\s{0,3}(?:steps?|ms|s)\b)",
    re.IGNORECASE,
)
_BAR = re.compile(r"\d{1,3}%\|[^|]{0,120}\| {0,9}(\d{1,9})/(\d{1,9}) ?\[")
_KERAS = re.compile(r"(?:^|\s)(\d{1,9})/(\d{1,9}) (?:\[[=.>]|\N{BOX DRAWINGS HEAVY HORIZONTAL})")
_EPOCH = re.compile(r"(?:^|[^\w-])epoch['\"]?\s{0,3}[=:#\[]?\s{0,4}\[?(\d{1,7})\b(?!\.\d)", re.IGNORECASE)
_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id(?:ation|ating|ate)?)?|eval(?:uat\w{1,4})?|test(?:ing)?|predict\w{0,4}|[Ww]arm-?up|[Dd]ownload\w{0,4}"
    r"|[Ll]oading|[Tt]okeniz\w{0,4}|[Mm]ap|[Ff]ilter|[Gg]enerating|[Ff]etching|[Ss]anity)\b|B/s\]",
    re.IGNORECASE,
)
_RESUMED = re.compile(
    r"[Rr]esum(?:ing|ed)\b.{0,80}(?:from|at|checkpoint|ckpt|step|epoch|iteration)"
    r"|[Ss]uccessfully loaded checkpoint|[Ll]oaded (?:the )?(?:last |latest )?(?:training )?checkpoint"
    r"|[Cc]ontinuing training from (?:checkpoint|global step|epoch)"
    r"|[Rr]estor(?:ed|ing) (?:all )?(?:states?|parameters|checkpoint|from)"
    r"|\bloading (?:the )?(?:last |latest )?checkpoint (?:from|at|'|\")|[Ll]oad(?:ing|ed) (?:model and )?optimizer stat"
)
_NOT_RESUMED = re.compile(
    r"not (?:found|resum)|[Nn]o checkpoint|from scratch|shards|fail|[Ee]rror|[Cc]ould not|can't|cannot|None\b|False\b"
)
# Plain pieces without one of which an expression cannot match; those in lower case are looked for in lower case.
_RESUME_HINTS = ("esum", "oaded", "oading", "ontinuing", "estor")
_ASIDE_HINTS = (
    *("val", "test", "predict", "warm", "download", "loading", "tokeniz", "map", "filter", "generating", "fetching"),
    *("sanity", "b/s]"),
)
_COUNTED_HINTS = ("step", "iter", "update", "batch_idx")
_SAVED = re.compile(
    r"(?:[Ss]av(?:ed|ing|e)\b|[Ww]rote|[Ww]riting|[Ww]ritten|checkpointed).{0,200}?"
    r"(?:checkpoint|ckpt|global_?step|step|iteration|iter)s?[-_=/: ]{0,12}(\d{1,12})(?!\d)",
    re.IGNORECASE,
)
_SAVED_AT = re.compile(
    r"(?:global[_ ]?step|step|iteration|iter)[-_=: ]{1,3}(\d{1,12})\b.{0,120}(?:sav(?:ed|ing)|checkpoint written)",
    re.IGNORECASE,
)
_DONE = re.compile(r"\b(?:saved|wrote|written|checkpointed)\b", re.IGNORECASE)
_SAVE_HINTS = ("sav", "Sav", "SAV", "rote", "rit", "checkpointed")
_STEP_HINTS = (
    "tep",
    "TEP",
    "iter",
    "Iter",
    "update",
    "batch_idx",
    "%|",
    "poch",
    "POCH",
    " [",
    "\N{BOX DRAWINGS HEAVY HORIZONTAL}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSteps:
    """What an attempt's output shows; None where it shows nothing."""

    step: int | None = None  # the furthest; epochs where nothing else is counted
    resumed: bool = False  # it said so, or began far beyond its first step
    checkpoint_step: int | None = None  # of the newest checkpoint that was written to its end


def find_last_progress(logs: Sequence[LogRows]) -> TrainingSteps:
    """How far the attempt came, over all of its logs."""
    found = [_find_in_log(log) for log in logs]
    return TrainingSteps(
        step=max((one.step for one in found if one.step is not None), default=None),
        resumed=any(one.resumed for one in found),
        checkpoint_step=max((one.checkpoint_step for one in found if one.checkpoint_step is not None), default=None),
    )


def _find_in_log(log: LogRows) -> TrainingSteps:
    counted: list[int] = []
    epochs: list[int] = []
    saved: list[int] = []
    pending: int | None = None  # begun, and not known to have ended
    resumed = False
    epoch = 0
    hints = _find_hints(log)
    for row in _list_row_ends(log):
        if _has_hint(row, hints.save) and (at := _parse_saved_step(row)) is not None:
            if _DONE.search(row):
                saved.append(at)
            else:
                pending = at
            continue
        resumed = resumed or (_has_hint(row, hints.resume) and _is_resumed_row(row))
        if not _has_hint(row, hints.step):
            continue
        lower = row.lower()
        if _has_hint(lower, hints.aside) and _NOT_TRAINING.search(row):
            continue
        if "epoch" in lower and (found := _EPOCH.search(row)):
            epoch = int(found[1])
            epochs.append(epoch)
        step = _step(row, lower, epoch)
        if step is not None:
            counted.append(step)
            if pending is not None:
                saved.append(pending)
                pending = None
    best = counted or epochs
    return TrainingSteps(
        step=max(best, default=None),
        resumed=resumed or (log.whole and _has_begun_late(counted)),
        checkpoint_step=max(saved, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hints:
    """Those of the hints that a log holds at all: most hold few, and each row need not be searched for the others."""

    save: tuple[str, ...]
    resume: tuple[str, ...]
    step: tuple[str, ...]
    aside: tuple[str, ...]


def _find_hints(log: LogRows) -> _Hints:
    text = "\n".join(_list_row_ends(log))
    lower = text.lower()
    return _Hints(
        save=tuple(hint for hint in _SAVE_HINTS if hint in text),
        resume=tuple(hint for hint in _RESUME_HINTS if hint in text),
        step=tuple(hint for hint in _STEP_HINTS if hint in text),
        aside=tuple(hint for hint in _ASIDE_HINTS if hint in lower),
    )


def _has_hint(row: str, hints: tuple[str, ...]) -> bool:
    for hint in hints:  # noqa: SIM110 - any() of a generator takes several times as long, and this is asked most
        if hint in row:
            return True
    return False


def _list_row_ends(log: LogRows) -> Iterator[str]:
    rows: Iterable[str] = log.rows
    if len(log.rows) > _FIRST + _LAST:
        rows = (*log.rows[:_FIRST], *log.rows[-_LAST:])
    return (row[:_STEPS_CAP] for row in rows)


def _is_resumed_row(row: str) -> bool:
    return bool(_RESUMED.search(row)) and not _NOT_RESUMED.search(row)


def _parse_saved_step(row: str) -> int | None:
    found = _SAVED.search(row) or _SAVED_AT.search(row)
    return int(found[1]) if found else None


def _step(row: str, lower: str, epoch: int) -> int | None:
    """The step a row shows; a bar that starts anew each epoch is counted on from the epochs before."""
    if _has_hint(lower, _COUNTED_HINTS) and (found := _STEP.search(row)):
        return _check_step(int(found[1]))
    if "/" in row and (found := _BAR.search(row) or _KERAS.search(row)):
        done, total = int(found[1]), int(found[2])
        return _check_step(epoch * total + done) if done <= total else None
    return None


def _check_step(step: int) -> int | None:
    return step if step < _MOST else None


def _has_begun_late(counted: list[int]) -> bool:
    """Whether the first step printed lies further from zero than two of its distances to the next ones."""
    distinct = list(dict.fromkeys(counted[:6]))
    if len(distinct) < 3:
        return False
    gaps = [after - before for before, after in pairwise(distinct)]
    return min(gaps) > 0 and distinct[0] > 2 * max(gaps)
