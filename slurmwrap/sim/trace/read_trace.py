"""Read a trace file into a Load: a table of jobs (CSV) or a dump of `sacct -P`, plain or gzipped."""

from __future__ import annotations

import csv
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from gzip import BadGzipFile, GzipFile
from io import BufferedReader, FileIO
from itertools import accumulate, chain
from math import ceil
from pathlib import Path
from typing import IO, Any, cast

from slurmwrap.errors import TraceError
from slurmwrap.placement.demand import Server
from slurmwrap.sim.sim_job import MIB_PER_GB, SimJob
from slurmwrap.sim.trace import sacct_dump
from slurmwrap.sim.trace.trace_load import (
    JOB_CAP,
    LINE_CAP,
    MOST_COUNT,
    MOST_MIB,
    MOST_SECONDS,
    clean_lines,
    describe_width,
    make_printable,
    make_trace_error,
    quote_text,
)
from slurmwrap.sim.trace.trace_load import Actual as Actual
from slurmwrap.sim.trace.trace_load import Load as Load

NEEDED = ("submit_s", "duration_s", "gpus")
KNOWN = (*NEEDED, "cpus", "mem_gb", "user", "status", "model", "gpu_util")
_QUOTES = "put a field with a quote or a comma in quotes, and double the quotes in it"
# A first submission later than this many seconds is a date (1979 and later), not a time since the first.
_UNIX = 3e8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    fields: Sequence[str]


def is_head(line: str) -> bool:
    """Return whether a table begins with this line: it contains one of the needed columns."""
    return not {name.strip(' "') for name in line.split(",")}.isdisjoint(NEEDED)


def parse_csv_trace(lines: Iterable[str], name: str) -> Load:
    """Return the jobs of a CSV table. TraceError names the line, what is wrong with it, and how to fix it.

    `lines`: without line ends, including the head. If times are Unix seconds, they are counted from the first
    submission, and `epoch` is that.
    """
    rows = _read_rows(lines, name)
    head = next(rows)
    jobs = tuple(_read_jobs(rows, _Table(_find_columns(head, name), name), len(head.fields)))
    if not jobs:
        raise TraceError(f"{name}: there is no job below the head", hint="a simulation needs at least one")
    if jobs[0].submit_s < _UNIX:
        return Load(jobs=jobs)
    epoch = jobs[0].submit_s
    return Load(jobs=tuple(replace(job, submit_s=job.submit_s - epoch) for job in jobs), epoch=epoch)


def _read_rows(lines: Iterable[str], name: str) -> Iterator[_Row]:
    """Yield the rows that are not blank, each with the line where it begins."""
    reader = csv.reader((line + "\n" for line in lines), strict=True, skipinitialspace=True)
    begin = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise make_trace_error(name, begin, _explain_error(error), _QUOTES) from None
        if fields is None:
            return
        # Without this check a stray quote would hide the jobs up to the next quote.
        if reader.line_num > begin:
            raise make_trace_error(name, begin, "a quote that does not end on its line", _QUOTES)
        if len(fields) > 1 or any(field.strip() for field in fields):
            yield _Row(line=begin, fields=fields)
        begin = reader.line_num + 1


def _explain_error(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"a field of more than {csv.field_size_limit():,} characters, or a quote that does not end on its line"
    return (
        "a quote that does not end on its line"
        if "unexpected end" in str(error)
        else "a quote in the middle of a field"
    )


def _find_columns(head: _Row, name: str) -> dict[str, int]:
    """Return the index of each known column."""
    found = [column.strip() for column in head.fields]
    missing = [column for column in NEEDED if column not in found]
    if missing:
        raise make_trace_error(
            name,
            head.line,
            f"there is no column {', '.join(missing)}; there are {', '.join(map(quote_text, found[:20]))}",
            f"needed are {', '.join(NEEDED)}; used, where they are there, {', '.join(KNOWN[len(NEEDED) :])}",
        )
    for column in KNOWN:
        if found.count(column) > 1:
            raise make_trace_error(
                name, head.line, f"the column {column} appears {found.count(column)} times", "leave one of them"
            )
    return {column: found.index(column) for column in KNOWN if column in found}


def _read_jobs(rows: Iterator[_Row], table: _Table, width: int) -> Iterator[SimJob]:
    """Yield the jobs of the rows below the head, checked for their width and their order."""
    before: SimJob | None = None
    for number, row in enumerate(rows):
        if len(row.fields) != width:
            raise table.fault(row, describe_width(len(row.fields), width), "fix the line, or remove it")
        if number >= JOB_CAP:
            raise table.fault(row, f"more than {JOB_CAP:,} jobs", "cut the trace into parts")
        job = table.job(row, number)
        if before is not None and job.submit_s < before.submit_s:
            raise table.unsorted(row, job, before)
        before = job
        yield job


class _Table:
    """Reads the rows below one head."""

    def __init__(self, places: Mapping[str, int], name: str) -> None:
        self._places = places
        self._name = name

    def job(self, row: _Row, number: int) -> SimJob:
        """Return the job; its number is its name as well."""
        cpus, memory = (
            self._positive_amount(row, "cpus", MOST_COUNT),
            self._positive_amount(row, "mem_gb", MOST_MIB / MIB_PER_GB),
        )
        return SimJob(
            number=number,
            job=str(number),
            submit_s=self._amount(row, "submit_s", MOST_SECONDS),
            work_s=self._amount(row, "duration_s", MOST_SECONDS),
            gpus=self._gpus(row),
            cpus=None if cpus is None else ceil(cpus),
            mem_mib=None if memory is None else ceil(memory * MIB_PER_GB),
            user=make_printable(self._text(row, "user")),
            status=make_printable(self._text(row, "status")),
            model=make_printable(self._text(row, "model")),
            gpu_util=self._gpu_util(row),
            line=row.line,
        )

    def fault(self, row: _Row, what: str, hint: str) -> TraceError:
        return make_trace_error(self._name, row.line, what, hint)

    def unsorted(self, row: _Row, job: SimJob, before: SimJob) -> TraceError:
        """Return the error for a row out of order; it names both lines."""
        column = self._places["submit_s"] + 1
        return self.fault(
            row,
            f"submit_s is {job.submit_s:.15g}, and {before.submit_s:.15g} in line {before.line}: "
            "rows must be in the order of submission",
            f"sort them: (head -n 1 FILE; tail -n +2 FILE | sort -s -t, -gk{column},{column})",
        )

    def _text(self, row: _Row, column: str) -> str:
        """Return the field; "" also if there is no such column."""
        at = self._places.get(column)
        return "" if at is None else row.fields[at].strip()

    def _gpus(self, row: _Row) -> int:
        gpus = self._amount(row, "gpus", MOST_COUNT)
        if gpus < 1 or gpus % 1:
            raise self._wrong(row, "gpus", "not a whole number of at least 1")
        return int(gpus)

    def _gpu_util(self, row: _Row) -> float | None:
        """Return the per cent in the field as a share; None if it is empty."""
        return self._amount(row, "gpu_util", 100.0) / 100 if self._text(row, "gpu_util") else None

    def _positive_amount(self, row: _Row, column: str, most: float) -> float | None:
        """Return a value above 0; None if the field is empty."""
        if not self._text(row, column):
            return None
        value = self._amount(row, column, most)
        if not value:
            raise self._wrong(row, column, "not more than 0")
        return value

    def _amount(self, row: _Row, column: str, most: float) -> float:
        text = self._text(row, column)
        try:
            value = float("" if "_" in text else text)
        except ValueError:
            raise self._wrong(row, column, "not a number") from None
        if not 0 <= value <= most:  # also refuses nan
            raise self._wrong(row, column, "negative" if value < 0 else f"not between 0 and {most:g}")
        return value

    def _wrong(self, row: _Row, column: str, why: str) -> TraceError:
        text = self._text(row, column)
        what = f"{column} is {quote_text(text)}: {why}" if text else f"{column} is empty"
        return self.fault(row, what, _HINTS[column])


_HINTS = {
    "submit_s": "expected: seconds since the first submission",
    "duration_s": "expected: seconds of run time, without queueing",
    "gpus": "expected: the number of GPUs of the whole job; leave out jobs without GPUs",
    "cpus": "expected: the number of CPUs that the whole job asks for; leave it empty if that is unknown",
    "mem_gb": "expected: the GB that the whole job asks for; leave it empty if that is unknown",
    "gpu_util": "expected: the per cent of its GPUs that the job uses, 0 to 100; leave it empty if that is unknown",
}


_WANTED = f"expected: a CSV with {', '.join(NEEDED)}, or what this prints: {sacct_dump.COMMAND}"
_GZIP = b"\x1f\x8b"


def parse_trace(lines: Iterable[str], name: str) -> Load:
    """Return the jobs of these lines. TraceError names the wrong line and what to do.

    `name`: how errors refer to the file.
    """
    rest = clean_lines(lines, name)
    number, head = next(((at, line) for at, line in enumerate(rest, 1) if line.strip()), (1, ""))
    if not head:
        raise TraceError(f"{name}: it is empty", hint=_WANTED)
    begun = chain([""] * (number - 1), [head], rest)
    if is_head(head):
        return parse_csv_trace(begun, name)
    if sacct_dump.is_head(head):
        return sacct_dump.parse_sacct_dump(begun, name)
    if "," in head and head.lstrip()[:1] not in ("{", "["):
        # The error of this function names the missing columns.
        return parse_csv_trace(begun, name)
    raise _make_unknown_format_error(name, number, head)


def read_load(path: Path) -> Load:
    """Return the load of a file, or of standard input for "-". TraceError if it cannot be opened, unpacked or
    understood.
    """
    name = "standard input" if str(path) == "-" else make_printable(str(path))
    try:
        with _open_trace(path) as stream:
            return parse_trace(_read_lines(stream), name)
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise TraceError(f"{name}: a damaged gzip file", hint="copy or fetch it again") from error
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error}") from error


def check_fits(jobs: Sequence[SimJob], servers: Sequence[Server], *, name: str) -> None:
    """Raise TraceError if a job could never start on the idle `servers`; it names the first such job.

    The message has both numbers: what the job asks for and what the servers have.
    """
    most = _find_most(servers)
    beyond = [(job, why) for job in jobs if (why := _explain_impossible(job, most))]
    if not beyond:
        return
    job, why = beyond[0]
    more = f"; the same applies to {len(beyond) - 1} more" if len(beyond) > 1 else ""
    raise make_trace_error(
        name,
        job.line,
        f"job {job.job} {why}{more}",
        "give a cluster that holds it (--servers, --gpus, --cpus, --mem-gb), or leave such jobs out of the trace",
    )


# Index n: what the n largest servers have together; 0 at index 0.
_Most = dict[str, Sequence[int]]


def _find_most(servers: Sequence[Server]) -> _Most:
    amounts = {
        "GPUs": [server.gpus for server in servers],
        "nodes": [1 for _ in servers],
        "CPUs": [server.cpus for server in servers],
        "MiB of memory": [server.mem_mib for server in servers],
    }
    return {what: [0, *accumulate(sorted(there, reverse=True))] for what, there in amounts.items()}


def _explain_impossible(job: SimJob, most: _Most) -> str:
    """Return why the job can never start; "" if it can."""
    asks = {"GPUs": job.gpus, "nodes": job.nodes or 0, "CPUs": job.cpus or 0, "MiB of memory": job.mem_mib or 0}
    for what, asked in asks.items():
        if asked > most[what][-1]:
            return f"asks for {asked} {what}, and the whole cluster has {most[what][-1]}"
    reach = min(_count_reachable_servers(job, most["GPUs"][1]), len(most["nodes"]) - 1)
    for what, asked in asks.items():
        if asked > most[what][reach]:
            on = "one server has" if reach == 1 else f"{reach} servers have"
            return f"asks for {asked} {what} with {job.gpus} GPUs, and {on} at most {most[what][reach]}"
    return ""


def _count_reachable_servers(job: SimJob, gpus: int) -> int:
    """Return on how many servers the job runs at most.

    Each gives it a GPU; if it asks for nodes, no more than it needs. `gpus`: of the largest server.
    """
    if job.nodes is None:
        return max(1, job.gpus)
    return max(1, min(job.gpus, max(job.nodes, ceil(job.gpus / max(1, gpus)))))


@contextmanager
def _open_trace(path: Path) -> Iterator[IO[bytes]]:
    """Open the file as bytes, unpacked if they are gzip's, whatever the name of the file."""
    if str(path) == "-":
        stream = BufferedReader(cast(FileIO, sys.stdin.buffer))
        try:
            yield _unpack_stream(stream)
        finally:
            # Otherwise standard input would be closed with it.
            stream.detach()
    else:
        if "\0" in str(path):
            raise OSError("no path holds a NUL")
        with path.open("rb") as file:
            yield _unpack_stream(file)


def _unpack_stream(stream: BufferedReader[Any]) -> IO[bytes]:
    packed = stream.peek(2)[:2] == _GZIP
    return cast(IO[bytes], GzipFile(fileobj=stream) if packed else stream)


def _read_lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield lines that end at a line feed only: a job's name may contain any other character that Python treats as an
    end.
    """
    while line := stream.readline(LINE_CAP + 2):
        yield line.decode("utf-8", "replace")


def _make_unknown_format_error(name: str, line: int, head: str) -> TraceError:
    if head.lstrip()[:1] in ("{", "["):
        return make_trace_error(name, line, "it is JSON", _WANTED)
    if all(column in head for column in NEEDED):
        return make_trace_error(
            name, line, f"there are no commas between the columns {quote_text(head)}", "separate the columns by commas"
        )
    return make_trace_error(
        name, line, f"neither a table of jobs nor a dump of sacct begins with {quote_text(head)}", _WANTED
    )
