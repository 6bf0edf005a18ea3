"""What new output of a running job shows: progress, losses, ranks that ended, and what it says that it waits for. Pure.

All of it is user-supplied: it may lead to a finding about the user's own job, never to anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite

from slurmwrap.diagnosis.log_progress import (
    SURVIVED_BY,
    ShownProgress,
    find_last_progress,
    find_shown_progress,
    has_finished,
    is_progress,
    is_restart,
)
from slurmwrap.diagnosis.log_rows import LogRows, find_tracebacks, parse_rank, read_log, strip_prefix
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.evidence import LogTail

_CAP = 400
# A row may name several losses: "lm loss: 6.3E+00", "'eval_loss': nan", "loss 2.5 (3.1)", "Loss is nan".
_LOSS = re.compile(
    r"(?P<name>(?:[A-Za-z0-9./]{1,20}[_/-]){0,4}[A-Za-z]{0,12}loss(?:[_/-][A-Za-z0-9]{1,20}){0,4})['\"]?\)?\s{0,4}"
    r"(?:[=:,]|\bis\b|became)?\s{0,12}(?:tensor\()?[\[(]?"
    r"(?P<value>[-+]?(?:nan|inf(?:inity)?)\b|[-+]?\d[\d,]{0,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,4})?)",
    re.IGNORECASE,
)
# The rows of Ultralytics have no names: "3/100  4.51G  nan  nan  nan  142  640:".
_YOLO = re.compile(
    r"\s{0,12}\d{1,6}/\d{1,6}\s{1,8}\d[\d.]{0,8}[GM]\s{1,12}((?:(?:nan|inf|\d{1,9}\.\d{1,9})\s{1,12}){2,8})"
)
# Rows without the word: "iter 4200 | gen nan | disc nan", "epoch 3 it 1200 d_loss nan gp nan".
_COUNTED = re.compile(r"\W{0,3}(?:\S{1,40} ){0,3}(?:iter(?:ation)?|step|epoch|batch|it)\b\W{0,3}\d", re.IGNORECASE)
_BARE_NAN = re.compile(r"[\w)] ?[=:]? ?(?:nan|NaN)(?=[ |,;)\]]|$)")
_GRAD_NAN = re.compile(r"grad[_ ]?norm['\"]?\s{0,4}[=:]\s{0,4}['\"]?(?:nan|inf)\b", re.IGNORECASE)
_LOSS_OF_EVALUATION = re.compile(r"(?:^|[^a-z])(?:val|valid\w{0,6}|eval\w{0,6}|test|dev)(?:[^a-z]|$)", re.IGNORECASE)
# The bar or row of a validation: "valid: 100%|", "Eval Epoch: [3]".
_EVALUATION_ROW = re.compile(
    r"\s{0,12}\W{0,3}(?:val(?:id\w{0,6})?|eval\w{0,6}|test(?:ing)?|dev)(?:[ :|\[(]|$)", re.IGNORECASE
)
# "loss_scale 32768" and "no loss" in a name are no losses.
_NO_LOSS = re.compile(r"scal|weight|coef|ratio|scheduler|fn\b|func|stop", re.IGNORECASE)
_MAIN_LOSS = re.compile(
    r"(?:(?:train(?:ing)?|total|avg|mean|lm|step|batch|global|reduced|smoothed|running|iter|epoch|this|all)[_/.-]){0,4}"
    r"(?:loss|total_loss|trainloss|lossavg)(?:[_/-](?:total|train|avg|mean|step|iter|epoch|all|sum)){0,2}\Z",
    re.IGNORECASE,
)
_RANK_NAME = re.compile(r"\b(?:rank|gpu|worker|proc|local_rank|device)[ _:=#]{0,2}\d{1,5}", re.IGNORECASE)

# Messages of srun about a task that ended while others may run (Slurm's launch.c).
_TASK_ENDED = re.compile(
    r"srun: error: (?P<host>\S{1,80}): tasks? (?P<tasks>[\d,-]{1,80}): "
    r"(?P<how>Exited with exit code [1-9]\d{0,2}|Killed|Segmentation fault|Aborted|Bus error|Illegal instruction"
    r"|Floating point exception|Out Of Memory)"
)
_ERROR_ROW = re.compile(
    r"[Ee]rror\b|ERROR|Exception|Traceback|[Ww]arn(?:ing)?\b|WARN|[Ff]atal|FATAL|core dumped|[Ww]atchdog|NCCL"
    r"|Stack trace|^\s|^\[W|^\[E|^frame #|^(?:srun|slurmstepd|mpirun|prterun|wandb): |^\W{3,}|job step aborted"
    r"|Root Cause"
)
# What a program may say before it works for long without a step. It only makes a finding later.
_WAITS = re.compile(
    r"check-?point|ckpt|sav(?:ed?|ing)\b|writ(?:e|ing)\b|valid|eval|\btest(?:ing)?\b|compil|graph|autotun|warm-?up|trac(?:e|ing)\b"
    r"|download|upload|fetch|sync|load(?:ed|ing)?\b|licen[cs]e|wait|sleep|queue|tokeniz|preprocess|cach(?:e|ing)\b|index"
    r"|shuffl|extract|unpack|copy|stag(?:ed|ing)\b|retry|export|metric|generat|predict|infer|sampl|finish|complete|done\b",
    re.IGNORECASE,
)
_SAVES = re.compile(r"check-?point|ckpt|\bsav(?:ed|ing|e)\b|\.(?:pt|pth|safetensors|h5|hdf5|npz|pkl)\b", re.IGNORECASE)
_LAST_ROWS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSigns:
    """What new rows of a job's output show. Rows that differ only in the rank that wrote them count once."""

    rows: int = 0  # rows with text
    progress: int = 0  # rows that show progress of the training
    trailing: bool = False  # other rows follow the last of these
    nan: int = 0  # rows at the end with a NaN or infinite training loss, after the last finite one
    finite: bool = False  # a row with a finite training loss
    nan_row: str = ""  # the newest row of `nan`
    ended: tuple[str, ...] = ()  # ranks, "" if unknown, that ended with an error that the job did not survive
    ended_row: str = ""  # the newest row that shows it
    others: int = 0  # rows that show neither an error nor progress
    after: int = 0  # of these, rows after `ended_row`
    went_on: int = 0  # rows after it that show progress; one may be another rank's last
    restarted: bool = False  # training starts again after that
    waits: str = ""  # one of the last rows, if it says what the program does without a step
    saved: bool = False  # a row that mentions a checkpoint
    resumed: bool = False
    shown: ShownProgress | None = None


def read_signs(tails: Iterable[LogTail], run_s: float | None = None, *, first: bool = False) -> OutputSigns:
    """Return what these texts show together; each is the new part of one file.

    `run_s`: how long the run has lasted. `first`: the texts begin with what the run wrote first.
    """
    logs = [replace(log, whole=first and log.whole) for log in map(read_log, tails)]
    found = [_read_log_signs(log) for log in logs]
    if not found:
        return OutputSigns()
    last = find_last_progress(logs)
    steps = [one for one in found if one.progress]
    # Of several files, those without progress cannot show that the others went on.
    ended = [one for one in found if one.ended]
    return OutputSigns(
        rows=sum(one.rows for one in found),
        progress=sum(one.progress for one in found),
        trailing=any(one.trailing for one in steps),
        nan=max(one.nan for one in found),
        finite=any(one.finite for one in found),
        nan_row=next((one.nan_row for one in found if one.nan_row), ""),
        ended=tuple(dict.fromkeys(rank for one in ended for rank in one.ended)),
        ended_row=next((one.ended_row for one in ended), ""),
        others=sum(one.others for one in found),
        after=sum(one.after for one in ended),
        went_on=sum(one.went_on if one.ended else one.progress for one in found) if ended else 0,
        restarted=any(one.restarted for one in found),
        waits=next((one.waits for one in (*steps, *found) if one.waits), ""),
        saved=any(one.saved for one in found),
        resumed=last.resumed,
        shown=find_shown_progress(logs, run_s, resumed=last.resumed),
    )


def _read_log_signs(log: LogRows) -> OutputSigns:
    seen: set[str] = set()
    rows = progress = nan = others = 0
    finite = restarted = saved = trailing = False
    nan_row = ended_row = ""
    ended: dict[str, None] = {}
    after = went_on = 0
    tracebacks = {one.end: one for one in find_tracebacks(log) if not one.ignored}
    inside = {row for one in tracebacks.values() for row in range(one.start, one.end + 1)}
    for index, text in enumerate(log.rows):
        row = text[:_CAP]
        if not row.strip():
            continue
        rows += 1
        trailing = True
        if task := _TASK_ENDED.search(row) if "srun: error: " in row else None:
            ended_row, after, went_on, restarted = row, 0, 0, False
            ended |= dict.fromkeys(_list_tasks(task["tasks"]))
            continue
        if index in inside:
            if index in tracebacks:
                rank = parse_rank(log.rows[tracebacks[index].start])
                ended_row, after, went_on, restarted = row, 0, 0, False
                ended |= {"" if rank is None else str(rank): None}
            continue
        loss = read_loss(row) if "oss" in row or "OSS" in row or "nan" in row else None
        if loss is not None or is_progress(row):
            bare = _RANK_NAME.sub("", strip_prefix(row))
            if bare not in seen:
                seen.add(bare)
                progress += 1
                nan, nan_row = (nan + 1, row) if loss is False else (0, "") if loss else (nan, nan_row)
                went_on += bool(ended)
            trailing = False
            finite |= loss is True
            if went_on >= SURVIVED_BY:
                ended, ended_row, after, went_on = {}, "", 0, 0
        elif is_restart(row):
            restarted = True
        elif not _ERROR_ROW.search(row):
            after += 1
            others += 1
        saved |= bool(_SAVES.search(row))
    return OutputSigns(
        rows=rows,
        progress=progress,
        trailing=trailing,
        nan=nan,
        finite=finite,
        nan_row=nan_row.strip(),
        others=others,
        ended=tuple(ended),
        ended_row=ended_row.strip(),
        after=after if ended else 0,
        went_on=went_on,
        restarted=restarted,
        waits=_find_wait(log.rows),
        saved=saved,
    )


def _list_tasks(text: str) -> Sequence[str]:
    """Return the tasks of "3" or "0-2,5", at most 64 of each range."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            found += [str(number) for number in range(int(first), min(int(last or first), int(first) + 63) + 1)]
    return found


def _find_wait(rows: Sequence[str]) -> str:
    last = [row[:_CAP] for row in rows[-4 * _LAST_ROWS :] if row.strip()][-_LAST_ROWS:]
    for row in reversed(last):
        if has_finished(row) or (_WAITS.search(row) and not (is_progress(row) and read_loss(row) is not None)):
            return row.strip()
    return ""


def read_loss(row: str) -> bool | None:
    """Return whether the training loss of a row is finite; None if it shows none, or only one of validation.

    A row may have the losses of several terms: the total decides. Without a total they must agree, since the loss of a
    class of which the batch had no example is NaN as well.
    """
    if _EVALUATION_ROW.match(row) or _EVALUATION_ROW.match(strip_prefix(row[:_CAP])):
        return None
    main: list[float] = []
    parts: list[float] = []
    for found in _LOSS.finditer(row[:_CAP]):
        name = found["name"]
        before = row[max(0, found.start() - 16) : found.start()]
        if _NO_LOSS.search(name) or _LOSS_OF_EVALUATION.search(f"{before}{name}"):
            continue
        (main if _MAIN_LOSS.match(name) else parts).append(_parse_value(found["value"]))
    if not main and not parts and (yolo := _YOLO.match(row)):
        parts = [_parse_value(word) for word in yolo[1].split()]
    if main:
        # transformers logs 0.0 in place of a loss that is NaN (logging_nan_inf_filter).
        return isfinite(main[0]) and not (main[0] == 0.0 and bool(_GRAD_NAN.search(row)))
    if not parts and len(_BARE_NAN.findall(row[:_CAP])) > 1 and _COUNTED.match(row):
        return None if _LOSS_OF_EVALUATION.search(row[:_CAP]) else False
    finite = {isfinite(value) for value in parts}
    return finite.pop() if len(finite) == 1 else None


def _parse_value(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("nan")
