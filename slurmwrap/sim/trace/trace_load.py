"""Load: the jobs of a trace or a dump, and what is known next to them. Records only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmwrap.errors import TraceError
from slurmwrap.escape import marked
from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """What really became of one job of a dump. Seconds as in SimJob."""

    # As submitted; SimJob.submit_s is when it became eligible.
    submit_s: float
    start_s: float
    end_s: float | None  # None: it was still running
    nodes: int | None  # how many it was given
    node_list: str = ""  # Slurm's host list, "n[1-3]"; "": the dump does not say
    exit_code: str = ""  # Slurm's "1:0", code and signal; "": the dump does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run of the simulator begins with.

    `jobs` are in order of submission, and each one's number is its position. `cpu_jobs`, of dumps only, are those that
    held CPUs and memory and no GPU, numbered by themselves, on the same clock.
    """

    jobs: tuple[SimJob, ...]
    # One per job, in the same order; (): a trace, where no one knows.
    actual: tuple[Actual, ...] = ()
    cpu_jobs: tuple[SimJob, ...] = ()
    cpu_actual: tuple[Actual, ...] = ()
    # Unix seconds of the clock's 0; of local times without a zone: as if they were UTC.
    epoch: float | None = None
    # What was left out or fixed, and how often; for people.
    remarks: tuple[str, ...] = ()


# What the readers of traces share: how much they take, and how they show what they found.
LINE_CAP = 1 << 20  # characters of a line
JOB_CAP = 5_000_000
# 317 years: more is milliseconds
MOST_SECONDS = 1e10
# GPUs, CPUs or nodes of one job.
MOST_COUNT = 10_000_000
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
    """What is said of a row that is too short or too long."""
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
