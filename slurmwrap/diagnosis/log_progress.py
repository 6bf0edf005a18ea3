"""Find lines that show training progress or a good end, and decide whether an error was survived. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

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
# Progress bars of work before or next to training: they continue in another thread, or are drawn again at the end.
_NOT_TRAINING_BAR = re.compile(
    r"(?:[Dd]ownload|[Uu]pload|[Ll]oading|[Ff]etching|[Tt]okeniz|[Mm]ap\b|[Ff]ilter\b|[Gg]enerating|[Ee]xtracting|[Uu]npack"
    r"|[Ss]aving|[Rr]esolving|[Cc]aching|[Pp]reprocess|[Cc]reating)[^|]{0,80}\d{1,3}%\||\d[kMGT]?i?B/s\]"
)
# Messages of torch/distributed/elastic/agent/server/api.py, and of training scripts that start again.
_RESTART = re.compile(
    r"will restart worker group|[Rr]estarting (?:worker|training|from|all|attempt|process)"
    r"|[Rr]esum(?:ing|ed) (?:training|from)|[Rr]estart attempt|attempts? left|[Rr]etrying training|[Ss]tarting attempt"
)
_PROGRESS_HINTS = ("%|", "loss", "Loss", "/s", "iteration", "global_step/sec", " [=")
_NAN = re.compile(
    r"\b\w{0,20}(?:[lL]oss|LOSS|ppl|perplexity|grad[_ ]?norm|gnorm)\w{0,12}['\"]?\)?\s{0,4}"
    r"(?:[=:]|\bis\b|became)?\s{0,4}"
    r"(?:tensor\()?\[?-?(?:nan|NaN|NAN|inf|Inf|INF)\b"
    # A row of measurements that counts steps, by any name: "iter 4200 | gen nan | disc nan".
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
_ENOUGH = 64  # number of distinct progress lines
# Number of distinct progress lines after an error that prove survival. A single one may be another rank's, or tqdm's
# last redraw.
SURVIVED_BY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """Rows of one log that show progress, ascending."""

    # The last rows that show progress, each text once.
    rows: tuple[int, ...]
    # Rows that show a NaN or infinite loss, whether they show progress or not.
    nan: tuple[int, ...]
    finished: tuple[int, ...]
    # Rows that announce that training starts again.
    restarts: tuple[int, ...] = ()

    def survived(self, row: int) -> bool:
        """Return True if the program went on after `row`: more progress, or a message that it finished."""
        later = len(self.rows) - bisect_right(self.rows, row)
        if later >= SURVIVED_BY or (later >= 1 and bool(self.finished) and self.finished[-1] > row):
            return True
        return bool(later) and any(row < again < self.rows[-1] for again in self.restarts)

    def nan_before(self, row: int) -> int | None:
        """Return the first row that shows NaN, if there is one up to `row`; else None."""
        at = bisect_right(self.nan, row)
        return self.nan[0] if at else None


def find_progress(log: LogRows, *, after: int = 0) -> LogProgress:
    """Find progress, finishing and restarting lines of `log` from row `after` on, and all lines with NaN.

    The log is read from its end, until there is so much progress that any error before it was survived.
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
    """Return the first row that shows progress; None if none does."""
    return next((row for row, text in enumerate(log.rows) if _classify_row(text[:_CAP]) == "progress"), None)


def is_progress(row: str) -> bool:
    """Return True if the row shows training progress."""
    return _classify_row(row[:_CAP]) == "progress"


def has_finished(row: str) -> bool:
    """Return True if the row says that training, or another task, came to its end."""
    return _classify_row(row[:_CAP]) == "finished"


def has_finished_training(logs: Sequence[LogRows]) -> bool:
    """Return True if the end of the output says so, or shows that all steps or epochs were made."""
    shown = find_shown_progress(logs, None)
    complete = shown is not None and shown.total > 0 and shown.done >= shown.total
    return complete or any(has_finished(row) for log in logs for row in log.rows[-_FINISHED_ROWS:])


def is_restart(row: str) -> bool:
    """Return True if the row announces that training starts again."""
    return _classify_row(row[:_CAP]) == "restart"


def _classify_row(row: str) -> str:
    """Return what a row shows about training: "progress", "finished", "restart" or ""."""
    if any(hint in row for hint in _PROGRESS_HINTS) and _PROGRESS.search(row):
        return "" if _NOT_TRAINING_BAR.search(row) else "progress"
    if any(hint in row for hint in _END_HINTS) and _FINISHED.search(row):
        return "finished"
    return "restart" if any(hint in row for hint in _RESTART_HINTS) and _RESTART.search(row) else ""


def _find_nan_rows(log: LogRows) -> tuple[int, ...]:
    rows = sorted({row for word in _NAN_WORDS for row in find_rows_with(log, word)})
    return tuple(row for row in rows if _NAN.search(log.rows[row][:_CAP]))


# Estimates of the remaining time, from what the output shows at its end. A progress bar shows it directly ("308/5000
# [01:03<16:18"), and so do lines with an ETA. If only the step or epoch and their total are shown, the rest is assumed
# to take as long in proportion. Number of rows at the end that are read:
_END_ROWS = 200
# Among so many last rows a message that training has finished is the end of the run.
_FINISHED_ROWS = 10
_LONGEST_S = 366 * 86400.0
_CLOCK = r"(?:(?:(\d{1,3}) days?, ?|(\d{1,3})-)?(?:(\d{1,4}):)?(\d{1,3}):(\d\d))"
_REMAINING_BAR = re.compile(
    rf"^(.{{0,200}}?)\d{{1,3}}%\|[^|]{{0,120}}\| {{0,9}}(\d{{1,12}})/(\d{{1,12}}) ?\[([\d:]{{4,12}})<{_CLOCK}"
)
_ETA = re.compile(rf"\b(?:eta|time[ _]left|remaining)\b['\"]?\s?[:=]?\s?['\"]?{_CLOCK}", re.IGNORECASE)
_REMAINING_STEP = re.compile(
    r"(?:^|[^\w-])(?:global[_ ]?step|step|iteration|iter|update)s?['\"]?\s{0,3}[:=#\[(]{0,2}\s{0,12}(\d{1,12})"
    r"\s{0,12}(?:/|of)\s{0,12}(\d{1,12})\b",
    re.IGNORECASE,
)
_REMAINING_EPOCH = re.compile(
    r"(?:^|[^\w-])epochs?['\"]?\s{0,3}[:=#\[(]{0,2}\s{0,4}(\d{1,7})\s{0,4}(?:/|of)\s{0,4}(\d{1,7})\b", re.IGNORECASE
)
_REMAINING_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id\w{0,6})?|eval\w{0,6}|test\w{0,3}|predict\w{0,4}|warm-?up|download\w{0,4}|load\w{0,4}|tokeniz\w{0,4}|map"
    r"|filter|generat\w{0,4}|fetch\w{0,4}|sanity|sav\w{0,4})\b|B/s\]",
    re.IGNORECASE,
)


_ONE_EPOCH = re.compile(r"epoch\W{0,3}\d", re.IGNORECASE)
# A bar whose training is not known to be the whole run must have been drawn for this share of the run.
_WHOLE_RUN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A progress bar as it was drawn last. Times in seconds."""

    name: str  # text before the bar
    done: int
    total: int
    elapsed_s: float
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProgress:
    """How far a run had come when its output ended, by the output: the user's claim."""

    done: int = 0  # of `total`; both are 0 if the output shows only a time
    total: int = 0
    unit: str = "step"  # "step" | "epoch", of `done` and `total`
    left_s: float | None = None  # seconds that were left; None: not known

    @property
    def share(self) -> float | None:
        """Return the completed share of the run, 0 to 1; None if it is not known."""
        return self.done / self.total if self.total else None


def find_remaining(logs: Sequence[LogRows], run_s: float | None, *, resumed: bool = False) -> float | None:
    """Return the seconds that were left when the output ended; None if it does not show them.

    `run_s`: how long the run lasted.
    """
    shown = find_shown_progress(logs, run_s, resumed=resumed)
    return shown.left_s if shown is not None else None


def find_shown_progress(logs: Sequence[LogRows], run_s: float | None, *, resumed: bool = False) -> ShownProgress | None:
    """Return the progress that the end of the output shows, of several logs the one with most left; None if none does.

    `run_s`: how long the run had lasted. `resumed`: it did not begin with the first step.
    """
    found = [
        shown for log in logs if (shown := _read_progress(log.rows[-_END_ROWS:], run_s, resumed=resumed)) is not None
    ]
    return max(found, key=lambda shown: -1.0 if shown.left_s is None else shown.left_s, default=None)


def _read_progress(rows: Iterable[str], run_s: float | None, *, resumed: bool) -> ShownProgress | None:
    bars: dict[str, _Bar] = {}
    eta = step = epoch = None
    for row in (row[:_CAP] for row in rows):
        if _REMAINING_NOT_TRAINING.search(row):
            continue
        epoch = _parse_pair(_REMAINING_EPOCH.search(row)) or epoch
        step = _parse_pair(_REMAINING_STEP.search(row)) or step
        if bar := _parse_bar(row):
            bars[re.sub(r"\d+", "0", bar.name)] = bar
        elif at := _ETA.search(row):
            eta = _parse_seconds(at.groups())
    if bars:
        by_bar = _read_bar(max(bars.values(), key=lambda bar: bar.left_s), epoch, run_s)
        if by_bar is not None:
            return by_bar
    part, unit = (step, "step") if step else (_count_done_epochs(epoch), "epoch")
    left = eta if eta is not None or run_s is None or resumed else _estimate_in_proportion(part, run_s)
    if part is None:
        return None if left is None else ShownProgress(left_s=_check_left(left))
    return ShownProgress(done=part[0], total=part[1], unit=unit, left_s=_check_left(left))


def _read_bar(bar: _Bar, epoch: tuple[int, int] | None, run_s: float | None) -> ShownProgress | None:
    """Return the progress by a bar; None if the bar is that of an epoch and nothing says how many epochs follow."""
    later_s = _estimate_further_epochs(bar, epoch, run_s)
    if later_s and epoch is not None:
        done, total = epoch[0] - 1, epoch[1]
        return ShownProgress(done=done, total=total, unit="epoch", left_s=_check_left(bar.left_s + later_s))
    # "Epoch 3: 45%", or a bar that began anew in the middle of the run.
    if epoch is None and (_ONE_EPOCH.search(bar.name) or _is_part_of_run(bar, run_s)):
        return None
    unit = "epoch" if "epoch" in bar.name.lower() else "step"
    return ShownProgress(done=bar.done, total=bar.total, unit=unit, left_s=_check_left(bar.left_s))


def _is_part_of_run(bar: _Bar, run_s: float | None) -> bool:
    return run_s is not None and bar.elapsed_s < _WHOLE_RUN_SHARE * run_s


def _check_left(left_s: float | None) -> float | None:
    return left_s if left_s is not None and 0 <= left_s <= _LONGEST_S else None


def _parse_bar(row: str) -> _Bar | None:
    found = _REMAINING_BAR.match(row)
    if found is None:
        return None
    elapsed = _parse_seconds((None, None, *_split_clock(found[4])))
    return _Bar(
        name=found[1].strip(),
        done=int(found[2]),
        total=int(found[3]),
        elapsed_s=elapsed,
        left_s=_parse_seconds(found.groups()[4:]),
    )


def _split_clock(text: str) -> tuple[str | None, str, str]:
    parts = text.split(":")
    return (parts[-3] if len(parts) > 2 else None, parts[-2] if len(parts) > 1 else "0", parts[-1] or "0")


def _estimate_further_epochs(bar: _Bar, epoch: tuple[int, int] | None, run_s: float | None) -> float:
    """Return the seconds of the later epochs if the bar is that of one epoch, i.e. covers only a part of the run."""
    if epoch is None or epoch[0] >= epoch[1]:
        return 0.0
    whole_run = run_s is not None and epoch[0] > 1 and bar.elapsed_s > 0.8 * run_s
    return 0.0 if whole_run else (epoch[1] - epoch[0]) * (bar.elapsed_s + bar.left_s)


def _count_done_epochs(epoch: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the completed epochs and their total. The epoch that is shown may have just begun."""
    return (epoch[0] - 1, epoch[1]) if epoch is not None and epoch[0] > 1 else None


def _estimate_in_proportion(part: tuple[int, int] | None, run_s: float) -> float | None:
    if part is None or not 0 < part[0] <= part[1]:
        return None
    return run_s * (part[1] - part[0]) / part[0]


def _parse_pair(found: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(found[1]), int(found[2])) if found is not None and int(found[1]) <= int(found[2]) else None


def _parse_seconds(clock: Sequence[str | None]) -> float:
    """Return seconds from (days, days, hours, minutes, seconds); all but the last two may be missing."""
    days, slurm_days, hours, minutes, seconds = (int(part) if part else 0 for part in clock)
    return float((days + slurm_days) * 86400 + hours * 3600 + minutes * 60 + seconds)


# Progress of training from the output, for the retry ledger (progress resets it) and for `resize`. All of it is the
# user's claim. Only the start and the end of each log are read: the furthest step is near the end, and a message about
# resuming is near the start. Number of rows read at either end:
_FIRST, _LAST = 80, 160
_STEPS_CAP = 300
_FIRST_STEPS = 3
_MOST_STEPS = 10**12
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
# Plain strings, at least one of which is in every match of an expression. Those in lower case are searched for in
# lower-case text.
_RESUME_HINTS = ("esum", "oaded", "oading", "ontinuing", "estor")
_NOT_TRAINING_HINTS = (
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
    """Progress that a run's output shows; None where it shows nothing."""

    step: int | None = None  # the furthest one; counts epochs if nothing else is counted
    # The third that differs: a bar may be drawn at 0 before the training continues. None too if the output is not read
    # from its start.
    first_step: int | None = None
    resumed: bool = False  # the output says so, or begins far beyond its first step
    checkpoint_step: int | None = None  # step of the newest checkpoint that was written completely


def find_last_progress(logs: Sequence[LogRows]) -> TrainingSteps:
    """Return how far the run came, over all of its logs."""
    found = [_find_steps_in_log(log) for log in logs]
    return TrainingSteps(
        step=max((one.step for one in found if one.step is not None), default=None),
        first_step=min((one.first_step for one in found if one.first_step is not None), default=None),
        resumed=any(one.resumed for one in found),
        checkpoint_step=max((one.checkpoint_step for one in found if one.checkpoint_step is not None), default=None),
    )


def _find_steps_in_log(log: LogRows) -> TrainingSteps:
    counted: list[int] = []
    epochs: list[int] = []
    saved: list[int] = []
    # Step of a checkpoint whose writing began and is not known to be complete.
    pending: int | None = None
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
        step = _parse_step(row, lower, epoch)
        if step is not None:
            counted.append(step)
            if pending is not None:
                saved.append(pending)
                pending = None
    best = counted or epochs
    return TrainingSteps(
        step=max(best, default=None),
        first_step=next(islice(dict.fromkeys(best), _FIRST_STEPS - 1, None), None) if log.whole else None,
        resumed=resumed or (log.whole and _has_begun_late(counted)),
        checkpoint_step=max(saved, default=None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hints:
    """The hints that a log holds at all. Most logs hold few of them, so rows need not be searched for the others."""

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
        aside=tuple(hint for hint in _NOT_TRAINING_HINTS if hint in lower),
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


def _parse_step(row: str, lower: str, epoch: int) -> int | None:
    """Return the step that a row shows. A bar that restarts in each epoch is added to the earlier epochs' steps."""
    if _has_hint(lower, _COUNTED_HINTS) and (found := _STEP.search(row)):
        return _check_step(int(found[1]))
    if "/" in row and (found := _BAR.search(row) or _KERAS.search(row)):
        done, total = int(found[1]), int(found[2])
        return _check_step(epoch * total + done) if done <= total else None
    return None


def _check_step(step: int) -> int | None:
    return step if step < _MOST_STEPS else None


def _has_begun_late(counted: list[int]) -> bool:
    """Return True if the first printed step is further from zero than two of its distances to the next ones."""
    distinct = list(dict.fromkeys(counted[:6]))
    if len(distinct) < 3:
        return False
    gaps = [after - before for before, after in pairwise(distinct)]
    return min(gaps) > 0 and distinct[0] > 2 * max(gaps)
