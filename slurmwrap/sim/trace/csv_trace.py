"""Turns a table of jobs into a Load: CSV with a head, one row per job, in order of submission. Pure.

Needed are `submit_s`, `duration_s` (run time, queueing excluded) and `gpus`; known are `cpus` and `mem_gb` (both of the
whole job), `user`, `status` and `model`, empty where unknown. Other columns are ignored, the order is free. Every row
must be readable: a table is someone's own work, and the way out is to fix it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import MIB_PER_GB, SimJob
from slurmwrap.sim.trace.trace_load import (
    JOB_CAP,
    MOST_COUNT,
    MOST_MIB,
    MOST_SECONDS,
    Load,
    make_printable,
    make_trace_error,
    quote_text,
)
from slurmwrap.sim.trace.trace_load import describe_width as told_width

NEEDED = ("submit_s", "duration_s", "gpus")
KNOWN = (*NEEDED, "cpus", "mem_gb", "user", "status", "model")
_QUOTES = "put a field with a quote or a comma in quotes, and double the quotes in it"
# A first submission later than this many seconds is a date (1979 and later), not a time since the first.
_UNIX = 3e8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    fields: Sequence[str]


def is_head(line: str) -> bool:
    """Whether a table begins with this line: one of the needed columns is there."""
    return not {name.strip(' "') for name in line.split(",")}.isdisjoint(NEEDED)


def parse_csv_trace(lines: Iterable[str], name: str) -> Load:
    """`lines` without line ends, the head among them. TraceError names the line, what is wrong with it, the way out.

    Times that are Unix seconds are taken from the first submission on, and `epoch` is that.
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
    """Rows that are not blank, each with the line where it begins."""
    reader = csv.reader((line + "\n" for line in lines), strict=True, skipinitialspace=True)
    begin = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise make_trace_error(name, begin, _explain_error(error), _QUOTES) from None
        if fields is None:
            return
        # A stray quote would swallow the jobs up to the next one.
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
    """Where each known column is."""
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
                name, head.line, f"the column {column} is there {found.count(column)} times", "leave one"
            )
    return {column: found.index(column) for column in KNOWN if column in found}


def _read_jobs(rows: Iterator[_Row], table: _Table, width: int) -> Iterator[SimJob]:
    """The rows below the head, checked for their width and their order."""
    before: SimJob | None = None
    for number, row in enumerate(rows):
        if len(row.fields) != width:
            raise table.fault(row, told_width(len(row.fields), width), "mend the line, or remove it")
        if number >= JOB_CAP:
            raise table.fault(row, f"more than {JOB_CAP:,} jobs", "cut the trace into parts")
        job = table.job(row, number)
        if before is not None and job.submit_s < before.submit_s:
            raise table.unsorted(row, job, before)
        before = job
        yield job


class _Table:
    """Reads rows below one head."""

    def __init__(self, places: Mapping[str, int], name: str) -> None:
        self._places = places
        self._name = name

    def job(self, row: _Row, number: int) -> SimJob:
        """Its place in the trace is its name as well."""
        cpus, memory = self._need(row, "cpus", MOST_COUNT), self._need(row, "mem_gb", MOST_MIB / MIB_PER_GB)
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
            line=row.line,
        )

    def fault(self, row: _Row, what: str, hint: str) -> TraceError:
        return make_trace_error(self._name, row.line, what, hint)

    def unsorted(self, row: _Row, job: SimJob, before: SimJob) -> TraceError:
        """Both lines are named."""
        column = self._places["submit_s"] + 1
        return self.fault(
            row,
            f"submit_s is {job.submit_s:.15g}, and {before.submit_s:.15g} in line {before.line}: rows go by submission",
            f"sort them: (head -n 1 FILE; tail -n +2 FILE | sort -s -t, -gk{column},{column})",
        )

    def _text(self, row: _Row, column: str) -> str:
        """ "" also where there is no such column."""
        at = self._places.get(column)
        return "" if at is None else row.fields[at].strip()

    def _gpus(self, row: _Row) -> int:
        gpus = self._amount(row, "gpus", MOST_COUNT)
        if gpus < 1 or gpus % 1:
            raise self._wrong(row, "gpus", "not a whole number of at least 1")
        return int(gpus)

    def _need(self, row: _Row, column: str, most: float) -> float | None:
        """More than 0; None: not said."""
        if not self._text(row, column):
            return None
        value = self._amount(row, column, most)
        if not value:
            raise self._wrong(row, column, "not more than 0")
        return value

    def _amount(self, row: _Row, column: str, most: float) -> float:
        said = self._text(row, column)
        try:
            value = float("" if "_" in said else said)
        except ValueError:
            raise self._wrong(row, column, "not a number") from None
        if not 0 <= value <= most:  # nor is nan
            raise self._wrong(row, column, "negative" if value < 0 else f"not between 0 and {most:g}")
        return value

    def _wrong(self, row: _Row, column: str, why: str) -> TraceError:
        said = self._text(row, column)
        what = f"{column} is {quote_text(said)}: {why}" if said else f"{column} is empty"
        return self.fault(row, what, _HINTS[column])


_HINTS = {
    "submit_s": "wanted are seconds since the first submission",
    "duration_s": "wanted are seconds of run time, queueing excluded",
    "gpus": "wanted is how many GPUs the whole job holds; leave jobs without GPUs out",
    "cpus": "wanted is how many CPUs the whole job asks for; leave it empty where nobody knows",
    "mem_gb": "wanted is how many GB the whole job asks for; leave it empty where nobody knows",
}
