"""Whatever a log holds: classify does not raise, and costs in proportion to its size."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.diagnosis.classify import classify
from slurmwrap.diagnosis.evidence import Evidence, KernelLine, LogTail
from slurmwrap.diagnosis.lines import ROW_CAP
from slurmwrap.diagnosis.literals import required_literals
from slurmwrap.diagnosis.signatures import compiled, default_signatures
from slurmwrap.diagnosis.taxonomy import CATEGORIES

pytestmark = pytest.mark.early

SMALL, TIMES = 24 * 1024, 8  # both sizes lie within what is read of a log
SLACK = 4  # a quadratic cost would show as TIMES * TIMES
PATTERN_S = 0.1  # for one row; a catastrophic expression takes seconds
EXAMPLES = [text for signature in default_signatures().signatures for text in signature.examples]
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/train.py", line 7, in f\n    g()\n'


def diagnose(*texts: str, kernel: str = "") -> str:
    logs = tuple(LogTail(name=str(index), text=text) for index, text in enumerate(texts))
    lines = tuple(KernelLine(text=text, node="n1") for text in kernel.split("\n"))
    return classify(Evidence(state="FAILED", exit_code=1, logs=logs, kernel=lines)).category


def cut(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def numbered(piece: str) -> Callable[[int], str]:
    def make(size: int) -> str:
        return "".join(piece.format(chr(97 + n % 26) * (n // 26 % 40 + 1), n) for n in range(size // len(piece)))[:size]

    return make


LOGS = {
    "one long line": cut("x"),
    "blanks": cut(" "),
    "short lines": cut("a\n"),
    "empty lines": cut("\n"),
    "headers without an end": cut("Traceback (most recent call last):\n"),
    "deep tracebacks": cut(TRACEBACK + '  File "/y.py", line 1, in h\n' * 300 + "KeyError: 1\n"),
    "chained tracebacks": cut(
        TRACEBACK + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
    ),
    "interleaved ranks": cut("".join(f"[rank{rank}]: {row}\n" for row in TRACEBACK.split("\n") for rank in range(8))),
    "escape sequences": cut("\x1b[31mError\x1b[0m \x1b[" + "1;" * 30),
    "bars": numbered("\r{0} 12%|███ | {1}/900 [00:10<00:10, 3.1it/s, loss=0.1]"),
    "NULs": cut("\0\0error\0"),
    "times": numbered("2026-11-20 12:00:01 {0} E1120 12:00:01.1 step {1}\n"),
    "many words": numbered("{0} failed to load {0} not found {1}\n"),
    "every example": cut("\n".join(EXAMPLES) + "\n"),
    "every example in one line": cut(" ".join(EXAMPLES)),
    "unicode": cut("é│🙂\u2028error: \u202e"),
}


def cost(text: str) -> float:
    """CPU seconds, the least of three."""
    found = []
    for _ in range(3):
        began = time.process_time()
        diagnose(text)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize("name", LOGS)
def test_eight_times_the_log_costs_about_eight_times_as_much(name: str) -> None:
    small, large = cost(LOGS[name](SMALL)), cost(LOGS[name](SMALL * TIMES))
    assert large < TIMES * SLACK * max(small, 0.001)


@pytest.mark.parametrize("name", LOGS)
def test_ten_megabytes_cost_no_more_than_the_window_that_is_read(name: str) -> None:
    window, huge = cost(LOGS[name](300_000)), cost(LOGS[name](10_000_000))
    assert huge < SLACK * max(window, 0.02)


def near_misses(pattern: str) -> list[str]:
    """Rows full of what an expression looks for, without the end that it needs."""
    rows = []
    for literal in required_literals(pattern)[:2]:
        for between in ("", " ", "a", ": "):
            rows.append((f"{literal}{between}" * ROW_CAP)[:ROW_CAP])
            rows.append((literal + between * ROW_CAP)[:ROW_CAP])
            rows.append((between * ROW_CAP)[: ROW_CAP - len(literal)] + literal)
    return rows


@pytest.mark.parametrize("signature", default_signatures().signatures, ids=lambda signature: signature.id)
def test_no_expression_is_slow_on_rows_that_nearly_match(signature: object) -> None:
    slow = []
    for pattern in signature.patterns:  # type: ignore[attr-defined]
        for row in near_misses(pattern):
            began = time.process_time()
            compiled(pattern).search(row)
            if time.process_time() - began > PATTERN_S:
                slow.append((pattern, row[:60]))
    assert slow == []


PIECES = st.sampled_from([*EXAMPLES, *TRACEBACK.split("\n"), "\x1b[31m", "\r", "\0", "│ ", "[rank1]: ", "3: ", "�"])
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=60)), max_size=60).map("\n".join)


@settings(max_examples=120, deadline=None)
@given(st.lists(TEXTS, max_size=3), TEXTS)
def test_any_logs_and_any_kernel_lines_give_some_diagnosis(texts: list[str], kernel: str) -> None:
    assert diagnose(*texts, kernel=kernel) in CATEGORIES


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=4000))
def test_any_bytes_give_some_diagnosis(raw: bytes) -> None:
    assert diagnose(raw.decode("utf-8", "replace")) in CATEGORIES


def test_lone_surrogates_give_some_diagnosis() -> None:
    assert diagnose("error \udcff\ud800: failed\nKeyError: '\udcff'\n") in CATEGORIES
