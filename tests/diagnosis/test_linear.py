"""For any log, the classifier does not raise, and its work is proportional to the part of the log that is read.

Work is counted, not timed: the executed lines of slurmwrap's own code, and the shape of the regular expressions.
bench/classify_growth.py measures what this does not show.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from re import _constants, _parser
from types import FrameType
from typing import Any

from classify_growth import EXAMPLES, LOGS, TRACEBACK
from hypothesis import given, settings
from hypothesis import strategies as st

import slurmwrap
from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.diagnosis.log_rows import ROW_CAP, read_log
from slurmwrap.diagnosis.regex_prefilter import find_required_literals
from slurmwrap.diagnosis.signatures import compile_pattern, get_default_signatures
from slurmwrap.diagnosis.taxonomy import CATEGORIES
from slurmwrap.model.evidence import Evidence, KernelLine, LogTail

OURS = str(Path(slurmwrap.__file__).parent)
SMALL, TIMES = 12 * 1024, 4  # the larger size is still read completely
SLACK = 2  # quadratic work would give TIMES * TIMES
MANY = 10  # from this number of repetitions on, a nested repetition can take exponential time


def diagnose(*texts: str, kernel: str = "") -> str:
    logs = tuple(LogTail(name=str(index), text=text) for index, text in enumerate(texts))
    lines = tuple(KernelLine(text=text, node="n1") for text in kernel.split("\n"))
    return diagnose_run(Evidence(state="FAILED", exit_code=1, logs=logs, kernel=lines)).category


def lines_executed(text: str) -> int:
    """How many lines of slurmwrap's code are executed to diagnose `text`; repeated lines count each time."""
    count = 0

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        diagnose(text)
    finally:
        sys.settrace(before)
    return count


def test_work_grows_linearly_with_the_size_of_the_log() -> None:
    diagnose("a\n")  # loads what is loaded only once
    growth = {
        name: lines_executed(make(SMALL * TIMES)) / max(lines_executed(make(SMALL)), 1000)
        for name, make in LOGS.items()
    }
    wrong = {name: times for name, times in growth.items() if times > TIMES * SLACK}
    assert not wrong, pformat(wrong)


def test_only_start_and_end_of_huge_logs_and_long_rows_are_read() -> None:
    read = {name: read_log(LogTail(name="out", text=make(1_000_000))) for name, make in LOGS.items()}
    wrong = {name: len(log.text) for name, log in read.items() if len(log.text) > 288 * 1024 + len("\n")}
    assert not wrong, pformat(wrong)
    longest = {name: max(map(len, log.rows)) for name, log in read.items()}
    wrong = {name: length for name, length in longest.items() if length > 2000 + len(" … ")}
    assert not wrong, pformat(wrong)


def nested_repetitions(parsed: Any, inside: bool = False) -> Iterator[Any]:
    """Repetitions of varying length inside others: the shape of catastrophic backtracking, `(a+)+b`."""
    for operation, argument in parsed:
        within = inside
        parts: list[Any] = []
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            low, high, part = argument
            if inside and low != high and high > MANY:
                yield part
            parts, within = [part], inside or high > MANY
        elif operation is _constants.SUBPATTERN:
            parts = [argument[3]]
        elif operation is _constants.BRANCH:
            parts = argument[1]
        elif operation in (_constants.ASSERT, _constants.ASSERT_NOT):
            parts = [argument[1]]
        for part in parts:
            yield from nested_repetitions(part, within)


def has_nested(pattern: str) -> bool:
    return any(nested_repetitions(_parser.parse(pattern)))


def test_no_pattern_has_a_repetition_inside_a_repetition() -> None:
    assert has_nested("x(?:(?=(a+b?){2,})|c)") and not has_nested("(?:a+){3}(?:bc)*")
    expressions = [
        (signature.id, expression)
        for signature in get_default_signatures().signatures
        for expression in (*signature.patterns, signature.frame, signature.context, signature.unless)
    ]
    assert [(name, text) for name, text in expressions if has_nested(compile_pattern(text).pattern)] == []


def near_misses(pattern: str) -> Iterator[str]:
    """Rows that repeat a literal of the pattern without the rest of a match."""
    for literal in find_required_literals(pattern)[:1]:
        for between in ("", " ", "a"):
            yield (f"{literal}{between}" * ROW_CAP)[:ROW_CAP]
            yield (literal + between * ROW_CAP)[:ROW_CAP]
            yield (between * ROW_CAP)[: ROW_CAP - len(literal)] + literal


def test_every_pattern_terminates_on_rows_that_nearly_match() -> None:
    # A search that takes more than quadratic time in the row's length would exceed the time limit of a test.
    searched = 0
    for _, pattern in get_default_signatures().ranked:
        expression = compile_pattern(pattern)
        for row in near_misses(pattern):
            expression.search(row)
            searched += 1
    assert searched >= 9 * len(get_default_signatures().ranked)


PIECES = st.sampled_from(
    [*EXAMPLES, *TRACEBACK.split("\n"), "\x1b[31m", "\r", "\0", "│ ", "[rank1]: ", "3: ", "�", "a" * 3000]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=60)), max_size=60).map("\n".join)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(TEXTS, max_size=3), TEXTS)
def test_any_logs_and_kernel_lines_give_a_valid_category(texts: list[str], kernel: str) -> None:
    assert diagnose(*texts, kernel=kernel) in CATEGORIES


@settings(max_examples=settings.default.max_examples // 3)
@given(st.binary(max_size=4000))
def test_any_bytes_give_a_valid_category(raw: bytes) -> None:
    assert diagnose(raw.decode("utf-8", "replace")) in CATEGORIES


def test_lone_surrogates_give_a_valid_category() -> None:
    assert diagnose("error \udcff\ud800: failed\nKeyError: '\udcff'\n") in CATEGORIES
