"""Log text, parsed into rows, prefixes and tracebacks."""

from __future__ import annotations

import pytest

from slurmwrap.diagnosis.log_rows import ROW_CAP, Traceback, find_tracebacks, read_log, strip_prefix
from slurmwrap.model.evidence import LogTail

FRAME = '  File "/opt/env/lib/python3.11/site-packages/x/y.py", line 3, in f\n    g()\n'


def rows(text: str) -> list[tuple[int, str]]:
    log = read_log(LogTail(name="out", text=text))
    return list(zip(log.numbers, log.rows, strict=True))


def test_carriage_returns_split_one_line_into_rows() -> None:
    assert rows("a\r\x1b[1mb\x1b[0m\nc") == [(1, "a"), (1, "b"), (2, "c")]


def test_a_row_beyond_the_cap_keeps_both_ends() -> None:
    ((_, row),) = rows("a" * 5000 + "end")
    assert row.startswith("aaa") and row.endswith("end") and len(row) < ROW_CAP + 10


@pytest.mark.parametrize(
    "row",
    [
        "[rank0]: KeyError: 1",
        "3: KeyError: 1",
        "(Worker pid=12, ip=10.0.0.1) KeyError: 1",
        "[1,2]<stderr>:KeyError: 1",
        "2024-01-01 10:00:00,123 KeyError: 1",
        "[default7]:KeyError: 1",
        "KeyError: 1",
    ],
)
def test_prefixes_of_launchers_are_removed(row: str) -> None:
    assert strip_prefix(row).removeprefix("[1,2]<stderr>:") == "KeyError: 1"


def test_a_traceback_has_exception_message_frames_and_position() -> None:
    log = read_log(LogTail(name="out", text=f"x\nTraceback (most recent call last):\n{FRAME}a.b.CustomError: no\n"))
    assert find_tracebacks(log) == (
        Traceback(
            start=1,
            end=4,
            exception="CustomError",
            message="no",
            frames=FRAME.rstrip("\n"),
            in_library=True,
            ignored=False,
        ),
    )


def test_interleaved_tracebacks_of_ranks_are_separated_by_prefix() -> None:
    text = (
        "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 1, in f\n[rank1]:   File "b.py", line 1, in g\n'
        "[rank0]: KeyError: 1\n[rank1]: KeyError: 1\n"
    )
    found = find_tracebacks(read_log(LogTail(name="out", text=text)))
    assert (found[0].start, found[0].end) == (0, 4)


def test_an_incomplete_traceback_is_ignored() -> None:
    assert find_tracebacks(read_log(LogTail(name="out", text="Traceback (most recent call last):\n" + FRAME))) == ()
