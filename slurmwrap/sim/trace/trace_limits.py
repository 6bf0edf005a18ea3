"""What the readers of traces share: how much they take, and how they show what they found. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmwrap.errors import TraceError
from slurmwrap.escape import marked

LINE_CAP = 1 << 20  # characters of a line
JOB_CAP = 5_000_000
MOST_SECONDS = 1e10  # 317 years: more is milliseconds
MOST_COUNT = 10_000_000  # GPUs, CPUs or nodes of one job
MOST_MIB = 1 << 50
NAME_CAP = 250
_SHOWN = 40


def quote_text(text: str) -> str:
    """In quotes, cut, without the characters that would steer a terminal."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"'{make_printable(cut)}'"


def make_printable(text: str, cap: int = NAME_CAP) -> str:
    """As a name of a job or a user is kept: no control characters, no endless text."""
    return marked(text, "?", cap)


def make_trace_error(name: str, line: int, what: str, hint: str = "") -> TraceError:
    """ "trace.csv:17: what"."""
    return TraceError(f"{name}:{line}: {what}", hint=hint)


def describe_width(fields: int, wanted: int) -> str:
    """What is told of a row that is too short or too long."""
    return f"{fields} {'field' if fields == 1 else 'fields'}, and the head has {wanted}"


def sound_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """Without a byte order mark and line ends. TraceError for a line that no text file has."""
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix("\ufeff")
        if "\0" in line:
            raise make_trace_error(
                name, number, "it holds NUL bytes", "wanted is text in UTF-8 or ASCII, not UTF-16, not binary"
            )
        if len(line) > LINE_CAP:
            raise make_trace_error(
                name, number, f"a line of more than {LINE_CAP:,} characters", "is it a trace at all?"
            )
        yield line.rstrip("\r\n")
