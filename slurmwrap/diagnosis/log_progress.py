"""Tells lines that show training progress or a good end, and whether an error was survived. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right

from slurmwrap.diagnosis.log_rows import LogRows, find_rows_with
from slurmwrap.fast_dataclasses import dataclass

_NUMBER = r"[-+]?\d[\d.,]{0,20}(?:[eE][-+]?\d{1,4})?"
_PROGRESS = re.compile(
    r"\d{1,3}%\|"  # tqdm
    rf"|\b\w{{0,20}}loss\w{{0,10}}['\"]?\s{{0,4}}[=: ]\s{{0,4}}\(?(?:{_NUMBER}|nan|inf)"
    r"|\b\d{1,9}/\d{1,9} \[[=.>]"  # Keras
    r"|\biteration\s{1,8}\d{1,9}/\s{0,10}\d{1,9} \|"  # Megatron
    r"|\b(?:it|steps?|samples|examples|tokens)/s(?:ec)?\b.{0,60}\d"
    r"|\bglobal_step/sec: "
)
# Bars of what comes before or next to training: they go on in another thread, or are drawn once more at the end.
_BESIDE = re.compile(
    r"(?:[Dd]ownload|[Uu]pload|[Ll]oading|[Ff]etching|[Tt]okeniz|[Mm]ap\b|[Ff]ilter\b|[Gg]enerating|[Ee]xtracting|[Uu]npack"
    r"|[Ss]aving|[Rr]esolving|[Cc]aching|[Pp]reprocess|[Cc]reating)[^|]{0,80}\d{1,3}%\||\d[kMGT]?i?B/s\]"
)
# torch/distributed/elastic/agent/server/api.py, and what training scripts say when they begin again.
_RESTART = re.compile(
    r"will restart worker group|[Rr]estarting (?:worker|training|from|all|attempt|process)"
    r"|[Rr]esum(?:ing|ed) (?:training|from)|[Rr]estart attempt|attempts? left|[Rr]etrying training|[Ss]tarting attempt"
)
_HINTS = ("%|", "loss", "Loss", "/s", "iteration", "global_step/sec", " [=")
_NAN = re.compile(
    r"\b\w{0,20}(?:[lL]oss|LOSS|ppl|perplexity|grad[_ ]?norm|gnorm)\w{0,12}['\"]?\)?\s{0,4}"
    r"(?:[=:]|\bis\b|became)?\s{0,4}"
    r"(?:tensor\()?\[?-?(?:nan|NaN|NAN|inf|Inf|INF)\b"
    # a row of measurements that counts steps, whatever they are called: "iter 4200 | gen nan | disc nan"
    r"|^\W{0,3}(?:\S{1,40} ){0,3}(?:[Ii]ter(?:ation)?|[Ss]tep|[Ee]poch|batch)\b\W{0,3}\d"
    r".{0,200}[\w)] ?[=:|]? ?(?:nan|NaN)(?=[ |,;)\]]|$)"
)
_FINISHED = re.compile(
    r"(?:[Tt]raining|[Ff]ine-?tuning|[Rr]un|[Jj]ob|[Ee]valuation|[Pp]rocess) (?:is |has |was )?"
    r"(?:done|finished|complete[d]?|ended)\b(?! with| unsuccess)"
    r"|[Ff]inished (?:training|successfully)|`Trainer\.fit` stopped: `max_(?:epochs|steps)="
    r"|[Tt]raining completed|exited? (?:with )?code 0\b|Saved final (?:weights|model)|train_runtime"
)
_END_HINTS = ("inish", "omplete", "train_runtime", "xit", "Saved final", "done", "ended", "Trainer.fit")
_RESTART_HINTS = ("estart", "esum", "attempt", "etrying")
_NAN_WORDS = ("nan", "NaN", "NAN", "inf", "Inf", "INF")
_CAP = 400
_ENOUGH = 64  # distinct progress lines
SURVIVED_BY = 2  # distinct progress lines after an error: one may be another rank's, or tqdm's last redraw


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """Rows of one log, ascending."""

    rows: tuple[int, ...]  # progress, the last ones, each text once
    nan: tuple[int, ...]  # progress lines or others that show a NaN or infinite loss
    finished: tuple[int, ...]
    restarts: tuple[int, ...] = ()  # rows that say that training begins again

    def survived(self, row: int) -> bool:
        """Whether the program went on after `row`: more progress, or it says that it finished."""
        later = len(self.rows) - bisect_right(self.rows, row)
        if later >= SURVIVED_BY or (later >= 1 and bool(self.finished) and self.finished[-1] > row):
            return True
        return bool(later) and any(row < again < self.rows[-1] for again in self.restarts)

    def nan_before(self, row: int) -> int | None:
        """The first row before `row` that shows NaN and was not followed by finite loss again."""
        at = bisect_right(self.nan, row)
        return self.nan[0] if at else None


def find_progress(log: LogRows, *, after: int = 0) -> LogProgress:
    """Progress, finishing and restarting lines of `log` after row `after`, and all lines with NaN.

    Read from the end, until there is so much progress that whatever came before was survived.
    """
    rows: list[int] = []
    finished: list[int] = []
    restarts: list[int] = []
    seen: set[str] = set()
    for index in range(len(log.rows) - 1, after - 1, -1):
        row = log.rows[index][:_CAP]
        kind = _classify_row(row) if row not in seen else ""
        if kind == "progress":
            rows.append(index)
            seen.add(row)
            if len(rows) == _ENOUGH:
                break
        elif kind == "finished":
            finished.append(index)
        elif kind == "restart":
            restarts.append(index)
    return LogProgress(
        rows=tuple(reversed(rows)),
        nan=_find_nan_rows(log),
        finished=tuple(reversed(finished)),
        restarts=tuple(reversed(restarts)),
    )


def find_first_progress(log: LogRows) -> int | None:
    """The first row that shows progress, None when none does."""
    return next((row for row, text in enumerate(log.rows) if _classify_row(text[:_CAP]) == "progress"), None)


def is_progress(row: str) -> bool:
    """Whether the row shows training progress."""
    return _classify_row(row[:_CAP]) == "progress"


def has_finished(row: str) -> bool:
    """Whether the row says that training, or what else ran, came to its end."""
    return _classify_row(row[:_CAP]) == "finished"


def _classify_row(row: str) -> str:
    """What a row tells about training: progress, finished, restart, or nothing."""
    if any(hint in row for hint in _HINTS) and _PROGRESS.search(row):
        return "" if _BESIDE.search(row) else "progress"
    if any(hint in row for hint in _END_HINTS) and _FINISHED.search(row):
        return "finished"
    return "restart" if any(hint in row for hint in _RESTART_HINTS) and _RESTART.search(row) else ""


def _find_nan_rows(log: LogRows) -> tuple[int, ...]:
    rows = sorted({row for word in _NAN_WORDS for row in find_rows_with(log, word)})
    return tuple(row for row in rows if _NAN.search(log.rows[row][:_CAP]))
