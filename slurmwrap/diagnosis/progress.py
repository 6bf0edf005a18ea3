"""Tells lines that show training progress or a good end, and whether an error was survived. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from slurmwrap.diagnosis.lines import Log

_NUMBER = r"[-+]?\d[\d.,]{0,20}(?:[eE][-+]?\d{1,4})?"
_PROGRESS = re.compile(
    r"\d{1,3}%\|"  # tqdm
    rf"|\b\w{{0,20}}loss\w{{0,10}}['\"]?\s{{0,4}}[=: ]\s{{0,4}}\(?(?:{_NUMBER}|nan|inf)"
    r"|\b\d{1,9}/\d{1,9} \[[=.>]"  # Keras
    r"|\biteration\s{1,8}\d{1,9}/\s{0,10}\d{1,9} \|"  # Megatron
    r"|\b(?:it|steps?|samples|examples|tokens)/s(?:ec)?\b.{0,60}\d"
    r"|\bglobal_step/sec: "
)
_HINTS = ("%|", "loss", "Loss", "/s", "iteration", "global_step/sec", " [=")
_NAN = re.compile(
    r"\b\w{0,20}(?:[lL]oss|LOSS|ppl|perplexity|grad[_ ]?norm|gnorm)\w{0,12}['\"]?\)?\s{0,4}"
    r"(?:[=:]|\bis\b|became)?\s{0,4}"
    r"(?:tensor\()?\[?-?(?:nan|NaN|NAN|inf|Inf|INF)\b"
)
_FINISHED = re.compile(
    r"(?:[Tt]raining|[Ff]ine-?tuning|[Rr]un|[Jj]ob|[Ee]valuation|[Pp]rocess) (?:is |has |was )?"
    r"(?:done|finished|complete[d]?|ended)\b(?! with| unsuccess)"
    r"|[Ff]inished (?:training|successfully)|`Trainer\.fit` stopped: `max_(?:epochs|steps)="
    r"|[Tt]raining completed|exited? (?:with )?code 0\b|Saved final (?:weights|model)|train_runtime"
)
_END_HINTS = ("inish", "omplete", "train_runtime", "xit", "Saved final", "done", "ended", "Trainer.fit")
_NAN_WORDS = ("nan", "NaN", "NAN", "inf", "Inf", "INF")
_CAP = 400
SURVIVED_BY = 2  # distinct progress lines after an error: one may be another rank's, or tqdm's last redraw


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Rows of one log, ascending."""

    rows: tuple[int, ...]  # progress, without consecutive repetitions
    nan: tuple[int, ...]  # progress lines or others that show a NaN or infinite loss
    finished: tuple[int, ...]

    def survived(self, row: int) -> bool:
        """Whether the program went on after `row`: more progress, or it says that it finished."""
        later = len(self.rows) - bisect_right(self.rows, row)
        return later >= SURVIVED_BY or (later >= 1 and bool(self.finished) and self.finished[-1] > row)

    def nan_before(self, row: int) -> int | None:
        """The first row before `row` that shows NaN and was not followed by finite loss again."""
        at = bisect_right(self.nan, row)
        return self.nan[0] if at else None


def find_progress(log: Log, *, after: int = 0) -> Progress:
    """Progress and finishing lines of `log` from row `after` on, and all lines with NaN."""
    rows: list[int] = []
    finished: list[int] = []
    seen: set[str] = set()
    for index in range(after, len(log.rows)):
        row = log.rows[index]
        if len(row) > _CAP:
            row = row[:_CAP]
        if any(hint in row for hint in _HINTS) and _PROGRESS.search(row):
            if row not in seen:
                rows.append(index)
                seen.add(row)
        elif any(hint in row for hint in _END_HINTS) and _FINISHED.search(row):
            finished.append(index)
    return Progress(rows=tuple(rows), nan=_nan_rows(log), finished=tuple(finished))


def _nan_rows(log: Log) -> tuple[int, ...]:
    rows: set[int] = set()
    for word in _NAN_WORDS:
        at = log.text.find(word)
        while at >= 0:
            row = bisect_right(log.starts, at) - 1
            rows.add(row)
            at = log.text.find(word, log.starts[row + 1]) if row + 1 < len(log.starts) else -1
    return tuple(row for row in sorted(rows) if _NAN.search(log.rows[row][:_CAP]))
