"""Read training steps from the output of a program whose steps could not be counted inside it. Pure.

Converts bytes to `TextProgress`. Lines end in \\n or \\r; colours and cursor movements are removed. Each format of
printed steps is a series of its own, counted by the growth of its number: a resumed run that starts at step 50000 has
made one step, not 50000. Bars of downloads, validation and data preparation are no training. A bar without a
description counts only if a loss is printed too. The result shows that a program trains, never how fast: programs print
every 10th or 500th step. Formats after tqdm, Keras, Lightning, transformers, Megatron-LM, torchvision's references,
mmengine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurmwrap.fast_dataclasses import dataclass, field, replace

# Maximum bytes of a line that are examined, from its start.
LONGEST = 2048

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x08\x00]")
_LINE_ENDS = re.compile(rb"[\r\n]+")
_METRIC = re.compile(
    r"\b(?:\w+[_./ -])?(?:loss|lr|learning[_ ]rate|acc(?:uracy)?|ppl|perplexity|reward|return|grad[_ ]?norm|mse|mae|nll"
    r"|elbo|entropy|fps|tflops?|tok(?:ens)?/s(?:ec)?|samples/s(?:ec)?|img/s(?:ec)?|s/it|it/s|ms/step|s/step)\b"
    r"|(?<=_)loss\b",
    re.IGNORECASE,
)
_TRAINING = re.compile(r"\b(?:train\w*|fit\w*|epochs?|steps?|iter\w*|updates?|episodes?|rollouts?)\b", re.IGNORECASE)
# Words in the description of a bar or line that is no training. Only the part before the numbers is searched: a
# training bar may show the last val_loss after its numbers.
_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id\w*)?|eval\w*|test\w*|infer\w*|predict\w*|sanity|download\w*|tokeni[sz]\w*|map(?:ping)?|filter\w*"
    r"|generat\w*|load\w*|extract\w*|(?:pre)?process\w*|fetch\w*|resolv\w*|build\w*|pack\w*|sav\w*|cach\w*|index\w*"
    r"|writing|reading|copy\w*|upload\w*|collect\w*|unpack\w*|install\w*|verif\w*|scan\w*|sort\w*|encod\w*|embed\w*"
    r"|casting|flatten\w*|group\w*|concat\w*|shards?|files?|warm-?up)\b",
    re.IGNORECASE,
)
_NOT_STEPS = re.compile(r"\d ?[kKMGT]?i?B/s|examples/s|files/s|rows/s|\d[kMG]?/\d+(?:\.\d+)?[kMG]i?B?\b")
# A loss with a number, or the head of a table. A learning rate is no sign: a printed configuration contains one too.
_LOSS = re.compile(r"(?:loss|reward)\W{1,6}\d|\bepoch\b.*loss", re.IGNORECASE)
_HF_LOG = re.compile(r"^\{.*?['\"](?:train_)?loss['\"]\s*:")

# (name, pattern with the step as group 1). The first pattern that matches decides the format of a line.
_FORMATS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("megatron", re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|")),
    ("tqdm", re.compile(r"(?:\d+%\|.*\| *|\b)(\d+)/(?:\d+|\?) \[\d+:\d\d")),
    ("lightning", re.compile(r"\b(\d+)/(?:\d+|--?) (?:\d+:)?\d+:\d\d •")),
    ("keras", re.compile(r"^ *(\d+)/(?:\d+|Unknown) +(?:[━╸]|\[[=>.]+\]|- \d+m?s).* - *\w+: ")),
    ("torchvision", re.compile(r"^.*\[ *(\d+)/ *\d+\](?=.*\b(?:eta|time|loss|lr)\b[:= (\t]*\d)", re.I)),
    ("mnist", re.compile(r"\bEpoch:? *\d+ +\[(\d+)/\d+ ")),
    (
        "step",
        re.compile(
            r"\b(?:\w+_)?(?:step|iter|iteration|it|update|batch|minibatch)s?['\"]?"
            r" *(?:[:=#] *)?['\"\[(]? *(\d+)\b(?!\.\d)",
            re.IGNORECASE,
        ),
    ),
    (
        "epoch",
        re.compile(r"\b(?:epoch|ep|episode|round|game)s?['\"]?[ :=#\[(]*(\d+)\b(?!\.\d)", re.IGNORECASE),
    ),
)
_BARS = ("tqdm", "lightning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of printed numbers: the last number, and the steps by which it grew."""

    last: int
    steps: int
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextProgress:
    """The progress that a program has printed so far."""

    series: Mapping[str, Series] = field(default_factory=dict)
    has_loss: bool = False  # some line contains a loss
    in_epoch: bool = False  # Keras printed "Epoch 1/5"; without it a bar may be an evaluation, which looks the same
    rest: bytes = b""  # an unfinished line

    @property
    def best(self) -> tuple[str, Series] | None:
        """(format, series) of the training series that grew most; None if there is none."""
        counted = [(name.split("\0")[0], one) for name, one in self.series.items() if self._is_training(name)]
        return max(counted, key=lambda item: item[1].steps, default=None)

    @property
    def steps(self) -> int:
        """Minimum number of training steps that the output proves; 0 if none."""
        return self.best[1].steps if self.best else 0

    def _is_training(self, name: str) -> bool:
        return self.has_loss or not name.endswith("\0?")


def read(output: bytes, before: TextProgress | None = None) -> TextProgress:
    """Return `before` extended by `output`, which may be cut anywhere. Never raises."""
    before = before or TextProgress()
    *lines, rest = _LINE_ENDS.split(before.rest + output)
    found = before
    for line in lines:
        found = _add_line(found, _decode_line(line))
    # A bar ends its line only with its next state, so keep the unfinished line until it is complete.
    return replace(found, rest=rest[:LONGEST])


def end_progress(progress: TextProgress) -> TextProgress:
    """Return the progress including the last line if no line end follows it."""
    return _add_line(replace(progress, rest=b""), _decode_line(progress.rest))


def _decode_line(line: bytes) -> str:
    return _ESCAPES.sub(b"", line[:LONGEST]).decode("utf-8", "replace").rstrip()


def _add_line(before: TextProgress, line: str) -> TextProgress:
    if not line:
        return before
    now = replace(before, has_loss=before.has_loss or bool(_LOSS.search(line)))
    if re.match(r" *Epoch \d+/\d+$", line):
        now = replace(now, in_epoch=True)
    if _HF_LOG.match(line):
        return _extend_series(now, "transformers", 1 + getattr(now.series.get("transformers"), "last", 0), line)
    found = _parse_series(line)
    if found is None or (found[0].startswith("keras") and not now.in_epoch):
        return now
    return _extend_series(now, found[0], found[1], line)


def _parse_series(line: str) -> tuple[str, int] | None:
    for name, pattern in _FORMATS:
        match = pattern.search(line)
        if match is None:
            continue
        described = line[: match.start(1)]
        if _NOT_TRAINING.search(described) or _NOT_STEPS.search(line):
            return None
        number = int(match[1][:15])
        if name in _BARS:
            doubt = (
                "" if _TRAINING.search(described) or _METRIC.search(line[match.end() :].partition("/s")[2]) else "\0?"
            )
            return f"{name}\0{_strip_numbers(described)}{doubt}", number
        if name in ("step", "epoch") and not _METRIC.search(line[: match.start()] + " " + line[match.end() :]):
            continue
        return f"{name}\0{_strip_numbers(described)}", number
    return None


def _strip_numbers(described: str) -> str:
    """Return the description without numbers, so that the bars of all epochs belong to one series."""
    return re.sub(r"[\d:.,%|█▉▊▋▌▍▎▏━╸╺╶ \[\]()/#-]+", " ", described).strip()[-80:]


def _extend_series(before: TextProgress, name: str, number: int, line: str) -> TextProgress:
    known = before.series.get(name)
    if known is None:
        # Keras restarts at 1 in each epoch, so its first number counts in full.
        steps = number if name.startswith("keras") else min(number, 1)
    elif number > known.last:
        steps = known.steps + number - known.last
    elif number < known.last:
        steps = known.steps + (number if name.startswith("keras") else min(number, 1))
    else:
        return before
    # Limit the number of series, for programs whose every line looks different.
    if known is None and len(before.series) > 200:
        return before
    return replace(before, series={**before.series, name: Series(last=number, steps=steps, line=line[:500])})
