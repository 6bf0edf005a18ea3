"""Read the loss of a training from the rows of its output, in the formats of common frameworks. Pure.

A row is examined only where it holds a word such as "loss". Expressions are bounded, so that the cost is linear in the
output, whatever it holds. All of it is the user's claim about their own job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from slurmwrap.diagnosis.log_rows import parse_rank
from slurmwrap.diagnosis.loss_format import name_format
from slurmwrap.diagnosis.loss_progress import Progress, read_bar_clock, read_clock, read_progress
from slurmwrap.fast_dataclasses import dataclass, replace

_ROW_CAP = 1200
_MOST_ROWS = 8000
# A row with a key that ends in one of these words may hold a loss. The words are searched for in lower-case text.
_WORDS = ("loss", "xent", "gpu_mem", "learn", "rmse", "'s ", "-mae", "error", ": cost ")
_NUMBER = r"[-+]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf(?:inity)?)\b"
_NUMERIC = re.compile(rf"(?:{_NUMBER})$", re.IGNORECASE)
_KEY_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_/.@'-")
_LONGEST_KEY = 60
_KEY_END = re.compile(r"[\w/.-]{0,30}", re.ASCII)
# What may stand between the key and its value: a quote, "(train)", "is", "at step 10", a separator, "tensor(".
_VALUE = re.compile(
    r"['\"`]{0,2}\]?\s{0,4}(?:\([A-Za-z][A-Za-z _/-]{0,20}\)\s?)?(?:(?:is|value|was)\b\s?)?"
    r"(?:(?:at|after|for|on|in)\b[^:=|\n]{1,40}(?=[:=]))?[:=|\N{FULLWIDTH COLON}]?\s{0,14}"
    r"(?:(?:tensor|np\.float\d\d|array)?[\[(]{1,2})?['\"]?"
    rf"({_NUMBER})(?!\.?[A-Za-z_%]|\s?%|/\d)",
    re.IGNORECASE,
)
_MEAN = re.compile(rf"\s{{0,4}}\(\s{{0,6}}({_NUMBER})\)", re.IGNORECASE)
_TRAIN_VALUE_PAIR = re.compile(rf"loss train: ({_NUMBER}), val: (?:({_NUMBER})|n/a)", re.IGNORECASE)
_VALIDATION = frozenset(
    ("val", "valid", "validation", "vali", "eval", "evaluation", "test", "testing", "dev", "heldout")
)
# "ValLoss", "trainloss".
_JOINED = re.compile(r"(?<![a-z])(val|valid|validation|eval|test|dev|train|training|tr|avg|mean)(?=loss)")
_TRAINING = frozenset(("train", "training", "trn", "tr"))
# Words of a key that do not change which loss is meant; of several, those with a mean are taken last.
_PLAIN = frozenset(
    (
        *("loss", "losses", "total", "lm", "mlm", "step", "current", "cur", "curr", "reduced", "global", "batch"),
        *("overall", "sum", "model", "trainer", "ce", "cross", "entropy", "mse", "iter", "xent", "cost", "log", "new"),
        *("set", "per", "token", "iteration", "final", "logs", "minibatch", "", "metrics", "value", "local", "main"),
    )
)
_MEANS = frozenset(("running", "avg", "avr", "average", "mean", "smoothed", "smooth", "epoch", "ema", "moving"))
_NO_LOSS = frozenset(
    (
        *("scale", "scaler", "weight", "weights", "fn", "function", "std", "best", "min", "minimum", "lowest", "prev"),
        *(
            "previous",
            "delta",
            "diff",
            "change",
            "target",
            "threshold",
            "coef",
            "coeff",
            "lambda",
            "name",
            "type",
            "ppl",
        ),
        *("history", "packet", "scaling", "multiplier", "factor", "alpha", "beta", "gamma", "patience", "ratio", "var"),
        *("improvement", "time", "no", "without", "factors", "smoothing"),
    )
)
_SKIPPED_ROW = re.compile(
    r"improve|\bsav(?:ed|ing)\b|early.?stop|patience|train_runtime|^wandb:|run summary|reached \d"
    r"|\bcheckpoint (?:to|at)\b"
    r"|\bbest[ _](?:model|val|valid|loss|epoch|metric|checkpoint)\w{0,12}\s{0,3}(?:is|at|so|:|=|was)"
    r"|^\s{2,}\w{1,60}\s{2,40}= {1,20}\S{1,30}$"
)
# Plain strings, at least one of which is in every match of an expression. To search for them is much faster.
_SKIPPED_HINTS = (
    "improve",
    "sav",
    "early",
    "patience",
    "train_runtime",
    "wandb:",
    "run summary",
    "reached",
    "checkpoint",
    "best",
    "  = ",
)
_VALIDATION_HINTS = ("val", "test", "dev", "\u6d4b\u8bd5", "\u9a8c\u8bc1")
_VALIDATION_ROW = re.compile(
    r"(?<![\w./=-])(?:val|valid|validation|eval|evaluation|evaluating|validating|test|testing|dev)(?![\w./=-])"
    # "test set" and "validation set" in Chinese
    "|\u6d4b\u8bd5\u96c6|\u9a8c\u8bc1\u96c6"
)
_VALIDATION_BEGINS = re.compile(
    r"^\W{0,4}(?:.{0,80}INFO\W{0,4})?(?:\w{0,20}:)?\W{0,6}(?:eval(?:uation)? begin|"
    r"(?:validation|evaluation)(?: results?)?:?\s*$|begin(?:ning)? validation|\*{3,} Running [Ee]val)",
    re.IGNORECASE,
)
_EPOCH_BEGINS = re.compile(r"(?:.{0,80}\binfo\b)?\W{0,20}(?:start(?:ing)? |training |begin(?:ning)? |train )?epoch\b")
_TRAINING_ROW = re.compile(r"(?<![\w./=-])(?:train|training|train_inner)(?![\w.=])")
_HEADER_SPLIT = re.compile(r"\s*\|\s*|\t+|\s{2,}|\s*,\s*")
_FAIRSEQ_SUMMARY = re.compile(r"\| epoch \d{3,7} \| (?:train )?loss")
_CELL = re.compile(r"\S+")
_HOLDS_NUMBER = re.compile(r"(?:^|\s)[-+]?[\d.]")
_BOOSTED = re.compile(
    rf"(?<![\w'-])([A-Za-z_][\w ]{{0,40}}?)(?:'s |-)([a-z][a-z0-9_]{{1,30}}(?:@\d{{1,4}})?):\s?({_NUMBER})"
)
_BOOSTED_ROW = re.compile(r"\[(\d{1,9})\](?:\t|\s{1,4})(?=[A-Za-z_])")
_CATBOOST = re.compile(rf"(\d{{1,9}}):\s{{1,8}}learn:? ({_NUMBER})(?:\s{{1,8}}test:? ({_NUMBER}))?", re.IGNORECASE)
_NO_LOSS_METRICS = re.compile(r"auc|acc|ndcg|map|pre|f1|r2|precision|recall")
_INNER_RANK = re.compile(r"\brank\W{1,3}(\d{1,5})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """One row with a loss, as it is printed. What it does not say is None."""

    position: float  # where it is in the output: bytes, or rows
    progress: Progress
    loss: float | None = None
    validation: float | None = None
    clock: float | None = None  # seconds by the row's own clock; only differences count, unless `dated`
    dated: bool = False  # the clock has a date and a year: Unix seconds, in an unknown time zone unless `utc`
    utc: bool = False
    redrawn: bool = False  # a progress bar or a running mean: a later row of the same step replaces it
    mean: bool = False  # the mean of an epoch, which other rows show in more detail
    part: bool = False  # a part of the loss, such as that of the boxes, which other rows may show as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class BarClock:
    """A progress bar as it was drawn once: `done` of `total` steps, after so many seconds of the bar."""

    position: float
    elapsed_s: float
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRows:
    """All rows with a loss in one output, with the clocks of its progress bars."""

    source: str  # name of the format, "" if there are no rows
    rows: tuple[LossRow, ...]
    bars: tuple[BarClock, ...] = ()


def read_loss_rows(rows: Sequence[tuple[float, str]]) -> LossRows:
    """Return the rows with a loss. `rows`: position and text, without escape sequences and carriage returns.

    Of more than 8,000 rows that hold the word, evenly chosen ones are read, and all that may be of validation.
    """
    reader = _Reader()
    hinted = sum("loss" in row or "Loss" in row for _, row in rows)
    step = hinted / _MOST_ROWS
    count, due = 0, 0.0
    for position, row in rows:
        if step > 1 and ("loss" in row or "Loss" in row):
            count += 1
            if count < due and count < hinted and "val" not in row:
                continue
            due += step
        reader.read(position, row)
    return LossRows(source=name_format(reader.samples), rows=tuple(reader.found), bars=tuple(reader.bars))


class _Reader:
    """Reads rows one by one. It remembers the epoch that an earlier row announced, and the columns of a table."""

    def __init__(self) -> None:
        self.found: list[LossRow] = []
        self.bars: list[BarClock] = []
        self.samples: list[str] = []
        self._columns: tuple[str, ...] = ()
        self._starts: tuple[int, ...] = ()
        self._splits_at_space = False
        self._context = Progress()
        self._validating = False
        self._rank: int | None = None
        self._last_validation: float | None = None

    def read(self, position: float, row: str) -> None:
        row = row[:_ROW_CAP]
        lower = row.lower()
        if "%|" in row and (bar := read_bar_clock(row)):
            elapsed_s, done, total = bar
            self.bars.append(BarClock(position=position, elapsed_s=elapsed_s, done=done, total=total))
        if _has_one(lower, _WORDS) and self._read_values(position, row, lower):
            return
        if self._columns and self._read_table_row(position, row):
            return
        if "epoch" in lower and _EPOCH_BEGINS.match(lower):
            progress = read_progress(row, lower)
            if progress.epoch is not None:
                self._context, self._validating = Progress(epoch=progress.epoch, epochs=progress.epochs), False
        if "eval" in lower or "valid" in lower:
            self._validating = self._validating or bool(_VALIDATION_BEGINS.search(row))

    def _read_values(self, position: float, row: str, lower: str) -> bool:
        if _has_one(lower, _SKIPPED_HINTS) and _SKIPPED_ROW.search(lower):
            return True
        if self._read_header(row, lower):
            return True
        # Before ranks are looked for: CatBoost's rows begin as those of srun --label.
        if "learn" in row and (cat := _CATBOOST.match(row.lstrip())):
            test = _to_float(cat[3]) if cat[3] else None
            self._add(position, row, Progress(step=float(cat[1])), _to_float(cat[2]), test)
            return True
        if self._is_other_rank(row):
            return True
        if "{" in row and '":' in row and (values := _parse_json(row)):
            return self._read_mapping(position, row, values)
        if "\t" in row or "]" in row:
            boosted = _read_boosted(row)
            if boosted is not None:
                self._add(position, row, *boosted)
                return True
        if "epoch results:" in lower:
            return self._read_espnet_result(position, row, lower)
        found = _find_values(row, lower)
        if found is None:
            return False
        loss, validation, mean, first, is_mean, is_part = found
        progress = read_progress(row, lower)
        head = lower[:first]
        if validation is None and loss is not None:
            announced = self._validating and progress.epoch is None and not _TRAINING_ROW.search(head)
            validating = _is_validation_row(head) or announced
            if validating:
                average = _MEAN.match(row, mean)
                loss, validation = None, _to_float(average[1]) if average else loss
        redrawn = progress.bar or (loss is None and progress.inner)
        summary = " | train | " in lower or ("| epoch " in lower and bool(_FAIRSEQ_SUMMARY.search(lower)))
        summary = summary or "averaged stats:" in lower
        mean_row = loss is not None and (is_mean or (summary and "train_inner" not in lower))
        self._add(position, row, progress, loss, validation, redrawn=redrawn, mean=mean_row, part=is_part)
        return True

    def _read_espnet_result(self, position: float, row: str, lower: str) -> bool:
        """Read the means of an epoch, "3epoch results: [train] ..., loss=80, ..., [valid] ..., loss=70"."""
        parts = {name: lower.find(f"[{name}]") for name in ("train", "valid")}
        values = {}
        for name, start in parts.items():
            end = parts["valid"] if name == "train" and parts["valid"] >= 0 else len(row)
            found = _find_values(row[start:end], lower[start:end]) if start >= 0 else None
            values[name] = found[0] if found is not None else None
        self._add(position, row, read_progress(row, lower), values["train"], values["valid"], mean=True)
        return True

    def _read_mapping(self, position: float, row: str, values: Mapping[str, object]) -> bool:
        found = read_mapping(values, validation=_is_validation_row(row[: row.find("{")].lower()))
        if found is None:
            return False
        self._add_record(position, row, found, mean="[train][" in row or " | train | " in row)
        return True

    def _add(
        self,
        position: float,
        row: str,
        progress: Progress,
        loss: float | None,
        validation: float | None,
        *,
        redrawn: bool = False,
        mean: bool = False,
        part: bool = False,
        clock: float | None = None,
    ) -> None:
        if progress.epoch is not None:
            self._context = Progress(epoch=progress.epoch, epochs=progress.epochs)
        elif self._context.epoch is not None and (progress.step is None or progress.steps is not None):
            progress = progress.with_epoch(self._context)
        if loss is not None and validation is not None:
            # Bars and some loggers repeat the value of the last validation in each row.
            if validation == self._last_validation and progress.step is not None:
                validation = None
            else:
                self._last_validation = validation
        if loss is None and validation is None:
            return
        at, dated = (clock, True) if clock is not None else read_clock(row)
        utc = clock is not None
        self.found.append(
            LossRow(
                position=position,
                progress=progress,
                loss=loss,
                validation=validation,
                clock=at,
                dated=dated,
                utc=utc,
                redrawn=redrawn,
                mean=mean,
                part=part,
            )
        )
        if len(self.samples) < 40:
            self.samples.append(row)

    def _is_other_rank(self, row: str) -> bool:
        """Return True if the row is of another rank than the first one that printed a loss."""
        rank = parse_rank(row)
        if rank is None and "ank" in row and (inner := _INNER_RANK.search(row)):
            rank = int(inner[1])
        if rank is None:
            return False
        if self._rank is None:
            self._rank = rank
        return rank != self._rank

    def _read_header(self, row: str, lower: str) -> bool:
        """Remember the columns if the row is the head of a table with losses."""
        if "=" in row or ":" in row or not ("epoch" in lower or "step" in lower or "iter" in lower):
            return False
        columns = [column.strip() for column in _HEADER_SPLIT.split(lower.strip(" |\t")) if column.strip()]
        if len(columns) < 2 or any(_HOLDS_NUMBER.search(column) or len(column) > 60 for column in columns):
            return False
        if "gpu_mem" in lower:
            columns = [_name_yolo_column(column) for column in lower.split()]
        elif not any(_classify_key(_to_key(column), "")[0] in ("train", "validation") for column in columns):
            return False
        self._columns = tuple(columns)
        # Chainer leaves cells empty and aligns them to the left.
        self._starts = tuple(found.start() for found in _CELL.finditer(row)) if "main/loss" in lower else ()
        self._splits_at_space = "gpu_mem" in lower or not ("|" in row or "," in row or "\t" in row)
        return True

    def _read_table_row(self, position: float, row: str) -> bool:
        if not row or not (row[0].isdigit() or row[0] in " |\t."):
            return False
        if self._splits_at_space:
            cells = _split_at_columns(row, self._starts) if self._starts else row.split()
        else:
            separator = "|" if "|" in row else "," if "," in row else "\t"
            cells = [cell.strip() for cell in row.strip().strip("|").split(separator)]
        if len(cells) < len(self._columns) - 1 or not (cells[0][:1].isdigit() or cells[0] == ""):
            return False
        found = read_columns(self._columns, cells)
        if found is None:
            return False
        self._add_record(position, "table " + " ".join(self._columns), found, redrawn="%|" in row)
        return True

    def _add_record(
        self, position: float, row: str, found: Record, *, redrawn: bool = False, mean: bool = False
    ) -> None:
        self._add(
            position,
            row,
            found.progress,
            found.loss,
            found.validation,
            redrawn=redrawn,
            mean=found.loss is not None and (mean or found.mean),
            clock=found.clock,
        )


def _split_at_columns(row: str, starts: Sequence[int]) -> list[str]:
    """Return the cell that begins at each start of a column; "" for an empty one."""
    cells = {found.start(): found[0] for found in _CELL.finditer(row)}
    return [cells.get(start, "") for start in starts]


def _has_one(text: str, parts: Sequence[str]) -> bool:
    for part in parts:  # noqa: SIM110 - any() of a generator takes several times as long
        if part in text:
            return True
    return False


def _name_yolo_column(column: str) -> str:
    """Return the name of a loss's column; YOLOv5 of 2020 and 2021 wrote "box", "obj", "cls" without "loss"."""
    return f"{column}_loss" if column in ("box", "obj", "cls", "dfl", "seg", "landmark", "theta", "angle") else column


def _parse_json(row: str) -> Mapping[str, object] | None:
    start, end = row.find("{"), row.rfind("}")
    try:
        found = json.loads(row[start : end + 1]) if end > start else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The loss in one record or one row of a table. `clock`: Unix seconds."""

    progress: Progress
    loss: float | None
    validation: float | None
    clock: float | None = None
    mean: bool = False  # the loss is the mean of an epoch


_STEP_KEYS = (
    *("global_step", "trainer/global_step", "num_updates", "train_num_updates", "valid_num_updates", "current_steps"),
    *("step", "_step", "steps", "iteration", "iter", "it", "iter_num", "update_num", "batch"),
)
_CLOCK_KEYS = ("_timestamp", "timestamp", "wall_time", "unix_time", "created_at", "time")
_UNIX_2000 = 946684800.0


def read_mapping(values: Mapping[str, object], *, validation: bool = False) -> Record | None:
    """Return the loss of one record (a row of JSON lines); None without a loss.

    `validation`: a loss that is not named otherwise is one of validation.
    """
    flat = _flatten(values)
    if "train_runtime" in flat:
        return None
    validation = validation or str(values.get("mode", values.get("split", ""))).lower() in _VALIDATION
    losses = [(key, number) for key, value in flat.items() if (number := _to_float(value)) is not None]
    choices = [(*_classify_key(_to_key(key), ""), number) for key, number in losses]
    loss, validation_loss = _choose(choices)
    if loss is None and validation_loss is None:
        return None
    if validation and validation_loss is None:
        loss, validation_loss = None, loss
    step = next((number for key in _STEP_KEYS if (number := _to_float(flat.get(key))) is not None), None)
    epoch = next(
        (n for key in ("epoch", "train/epoch", "epochs", "train_epoch") if (n := _to_float(flat.get(key))) is not None),
        None,
    )
    clock = next((n for key in _CLOCK_KEYS if (n := _to_float(flat.get(key))) is not None and n > _UNIX_2000), None)
    return Record(
        progress=Progress(epoch=epoch, step=step),
        loss=loss,
        validation=validation_loss,
        clock=clock,
        mean=_is_mean(choices),
    )


def _flatten(values: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in list(values.items())[:400]:
        if isinstance(value, dict):
            flat.update({f"{key}/{inner}".lower(): one for inner, one in list(value.items())[:100]})
        else:
            flat[str(key).lower()] = value
    return flat


def read_columns(columns: Sequence[str], cells: Sequence[str]) -> Record | None:
    """Return the loss of one row of a table; None without a loss."""
    values: dict[str, object] = {}
    for column, cell in zip(columns, cells, strict=False):
        done, _, total = cell.partition("/")
        if total.isdigit() and done.isdigit():
            values.update({column.lower(): done, f"{column.lower()} of": total})
        elif cell:
            values[column.lower()] = cell
    found = _add_yolo_parts(read_mapping(values), columns, values)
    if found is None:
        return None
    epochs = _to_float(values.get("epoch of"))
    return replace(found, progress=replace(found.progress, epochs=epochs)) if epochs is not None else found


def _add_yolo_parts(found: Record | None, columns: Sequence[str], values: Mapping[str, object]) -> Record | None:
    """Return the row with the sums of the parts of YOLO's loss, if it has several."""
    parts = [column.lower() for column in columns if column.lower().split("/")[-1] in _YOLO_PARTS]
    if len(parts) < 2:
        return found
    train, validation = (
        _sum_parts(values, [part for part in parts if part.startswith("val/") == of_validation])
        for of_validation in (False, True)
    )
    if train is None and validation is None:
        return found
    progress = found.progress if found else Progress(epoch=_to_float(values.get("epoch")))
    return Record(progress=progress, loss=train, validation=validation, clock=found.clock if found else None)


_YOLO_PARTS = frozenset(
    f"{part}_loss" for part in ("box", "obj", "cls", "dfl", "seg", "pose", "kobj", "angle", "l1", "iou")
)


def _sum_parts(values: Mapping[str, object], parts: Sequence[str]) -> float | None:
    numbers = [number for part in parts if (number := _to_float(values.get(part))) is not None]
    return sum(numbers) if numbers and len(numbers) == len(parts) else None


def _read_boosted(row: str) -> tuple[Progress, float | None, float | None] | None:
    """Return progress, loss and validation loss of a row of XGBoost or LightGBM; None for another row."""
    at = row.find("[")
    head = _BOOSTED_ROW.search(row, max(0, at)) if at >= 0 else None
    if head is None:
        return None
    found = [
        (name, float(value))
        for name, metric, value in _BOOSTED.findall(row, head.end())
        if not _NO_LOSS_METRICS.match(metric)
    ]
    if not found:
        return None
    names = list(dict.fromkeys(name for name, _ in found))
    train = next((n for n in names if n.lower().startswith("train") or n in ("dtrain", "learn")), None)
    if train is None and len(names) > 1:
        train = names[0]
    other = next((n for n in names if n != train), None)
    values = dict(reversed(found))
    return Progress(step=float(head[1])), values.get(train) if train else None, values.get(other) if other else None


def _find_values(row: str, lower: str) -> tuple[float | None, float | None, int, int, bool, bool] | None:
    """Return loss, validation loss, end of the loss's text, start of the first key; whether it is a mean, or a part.

    None: the row has no value.
    """
    if "loss train:" in lower and (pair := _TRAIN_VALUE_PAIR.search(row)):
        return _to_float(pair[1]), _to_float(pair[2]) if pair[2] else None, pair.end(), pair.start(), False, False
    choices: list[tuple[str, int, float]] = []
    ends: dict[float, int] = {}
    first = len(row)
    for start, end in _find_keys(lower):
        value = _VALUE.match(row, end)
        if value is None:
            continue
        number = _to_float(value[1])
        if number is None:
            continue
        kind, order = _classify_key(lower[start:end], _find_words_before(lower, start))
        if kind:
            choices.append((kind, order, number))
            ends.setdefault(number, value.end())
            first = min(first, start)
    if not choices:
        return None
    loss, validation = _choose(choices)
    end = ends.get(loss, 0) if loss is not None else 0
    part = loss is not None and all(kind != "train" for kind, _, _ in choices)
    return loss, validation, end, first, _is_mean(choices), part


def _find_keys(lower: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each key that may name a loss."""
    for word in ("loss", "xent", ": cost"):
        at = lower.find(word)
        while at >= 0:
            start = at + 2 if word == ": cost" else at
            first = max(0, start - _LONGEST_KEY)
            while start > first and lower[start - 1] in _KEY_CHARS:
                start -= 1
            rest = _KEY_END.match(lower, at + len(word))
            end = rest.end() if rest else at + len(word)
            yield start, end
            at = lower.find(word, max(end, at + 1))


def _find_words_before(lower: str, start: int) -> str:
    """Return up to three words before a key, the nearest first."""
    if not start or lower[start - 1] != " ":
        return ""
    words: list[str] = []
    for word in reversed(lower[max(0, start - 64) : start].split()):
        if len(words) == 3 or not word.isalpha():
            break
        words.append(word)
    return " ".join(words)


def _to_key(text: str) -> str:
    return re.sub(r"[^a-z0-9/_.-]+", "_", text.lower())


@lru_cache(maxsize=2048)
def _classify_key(key: str, before: str) -> tuple[str, int]:
    """Return what a key names, "train", "validation", "part" or "" (no loss), and its order among the others.

    `before`: up to three words before it in the row, the nearest first.
    """
    key = _JOINED.sub(r"\1_", key)
    own, around = re.split(r"[/_.'-]+", key.strip("/_.'-")), before.split()
    if not any(word.startswith(("loss", "xent")) or word == "cost" for word in own) and not key.endswith("loss"):
        return "", 0
    if any(word in _NO_LOSS for word in (*own, *around)):
        return "", 0
    mean = any(word in _MEANS for word in (*own, *around))
    which = next((word for word in (*own, *around) if word in _VALIDATION or word in _TRAINING), "")
    rest = [word for word in own if word not in _MEANS and word not in _PLAIN and not word.isdigit()]
    if which in _VALIDATION:
        other = any(word not in _VALIDATION for word in rest)
        return "validation", which.startswith("test") + 2 * mean + 4 * other
    # "conf loss: 0.5" is a part, but "Rank 0 loss: 0.5" and "the loss is 0.5" are not.
    named = bool(around) and len(own) == 1 and not which and not mean and around[0] not in _PLAIN
    return ("part", 0) if named or any(word not in _TRAINING for word in rest) else ("train", int(mean))


def _choose(choices: Sequence[tuple[str, int, float]]) -> tuple[float | None, float | None]:
    """Return the loss and the validation loss of one row: the whole loss before a part of it, a value before a mean."""
    training = [(order, number) for kind, order, number in choices if kind == "train"]
    parts = [number for kind, _, number in choices if kind == "part"]
    validation = [(order, number) for kind, order, number in choices if kind == "validation"]
    loss = min(training, key=lambda one: one[0])[1] if training else parts[0] if parts and not validation else None
    return loss, min(validation, key=lambda one: one[0])[1] if validation else None


def _is_mean(choices: Sequence[tuple[str, int, float]]) -> bool:
    """Return True if all losses of training in a row are means."""
    orders = [order for kind, order, _ in choices if kind == "train"]
    return bool(orders) and min(orders) > 0


def _is_validation_row(head: str) -> bool:
    """Return True if the text before the first loss says that it is one of validation."""
    if not _has_one(head, _VALIDATION_HINTS):
        return False
    ends = [found.end() for found in _VALIDATION_ROW.finditer(head)]
    return bool(ends) and not _TRAINING_ROW.search(head, ends[-1])


def _to_float(value: object) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and _NUMERIC.match(value):
        return float(value)
    return None
