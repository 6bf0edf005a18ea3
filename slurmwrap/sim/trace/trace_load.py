"""Load, the jobs of a trace or a dump with what is known about them, and functions shared by the readers of traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurmwrap.errors import TraceError
from slurmwrap.escape import marked
from slurmwrap.sim.sim_job import SimJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """What really happened to one job of a dump. Seconds as in SimJob."""

    # Time of submission; SimJob.submit_s is when the job became eligible.
    submit_s: float
    start_s: float
    end_s: float | None  # None: it was still running
    nodes: int | None  # number of nodes that it was given
    node_list: str = ""  # Slurm's host list, "n[1-3]"; "": not in the dump
    exit_code: str = ""  # Slurm's "1:0", code and signal; "": not in the dump


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The input of a simulator run.

    `jobs` are in order of submission, and each one's number is its position. `cpu_jobs`, in dumps only, are those that
    held CPUs and memory but no GPU, numbered separately, on the same clock.
    """

    jobs: tuple[SimJob, ...]
    # One per job, in the same order; () for a trace, which does not contain this.
    actual: tuple[Actual, ...] = ()
    cpu_jobs: tuple[SimJob, ...] = ()
    cpu_actual: tuple[Actual, ...] = ()
    # Unix seconds of the clock's 0; local times without a zone count as UTC.
    epoch: float | None = None
    # What was left out or fixed, and how often, as text for the user.
    remarks: tuple[str, ...] = ()


# Limits of the readers of traces.
LINE_CAP = 1 << 20  # characters in a line
JOB_CAP = 5_000_000
# 317 years: a larger number is in milliseconds.
MOST_SECONDS = 1e10
# GPUs, CPUs or nodes of one job.
MOST_COUNT = 10_000_000
MOST_MIB = 1 << 50
NAME_CAP = 250
_SHOWN = 40


def quote_text(text: str) -> str:
    """Return the text in quotes, shortened, without characters that would control a terminal."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f"'{make_printable(cut)}'"


def make_printable(text: str, cap: int = NAME_CAP) -> str:
    """Return the name of a job or a user as it is stored: without control characters, at most `cap` characters."""
    return marked(text, "?", cap)


def make_trace_error(name: str, line: int, what: str, hint: str = "") -> TraceError:
    """Return the error "trace.csv:17: what"."""
    return TraceError(f"{name}:{line}: {what}", hint=hint)


def describe_width(fields: int, wanted: int) -> str:
    """Return the message for a row that is too short or too long."""
    return f"{fields} {'field' if fields == 1 else 'fields'}, and the head has {wanted}"


def clean_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield the lines without a byte order mark and line ends. TraceError for a line that no text file contains."""
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix("\ufeff")
        if "\0" in line:
            raise make_trace_error(
                name, number, "it holds NUL bytes", "expected: text in UTF-8 or ASCII, not UTF-16, not binary"
            )
        if len(line) > LINE_CAP:
            raise make_trace_error(
                name, number, f"a line of more than {LINE_CAP:,} characters", "is it a trace at all?"
            )
        yield line.rstrip("\r\n")
