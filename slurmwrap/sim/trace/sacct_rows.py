"""Turns the lines of `sacct --parsable2` into rows of fields. Pure.

sacct escapes nothing: a job's name that holds the delimiter makes a row too long, a line break cuts it in two. Both
are fixed where it is clear how, since only columns of free text can hold either; what stays unclear is a Broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from slurmwrap.model.sacct_times import parse_stamp
from slurmwrap.sim.trace.trace_limits import describe_width, make_trace_error, quote_text

TIMES = ("submit", "eligible", "start", "end")
READ = frozenset(  # columns of Slurm's own words that become part of a Run
    (
        *("jobid", "jobidraw", "cluster", "user", "uid", "partition", "state", "exitcode", *TIMES, "elapsedraw"),
        *("elapsed", "timelimitraw", "timelimit", "reqtres", "alloctres", "allocgres", "reqgres", "reqmem", "nodelist"),
        *("reqcpus", "alloccpus", "ncpus", "reqnodes", "allocnodes", "nnodes"),
    )
)
_FREE = frozenset(
    (
        *("jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "constraints", "extra"),
        *("licenses", "stdin", "stdout", "stderr", "container", "wckey"),
    )
)
_JOB = re.compile(r"\d{1,10}(?:[_+](?:\d{1,10}|\[[^\]]*\]))?(?:\.[\w+-]+)?", re.ASCII)
_FORMS = {  # of the columns that hold no text of users', next to times
    "jobid": _JOB,
    "jobidraw": _JOB,
    "state": re.compile(r"(?:[A-Z][A-Z_+]+(?: by \d+)?)?", re.ASCII),
    "exitcode": re.compile(r"(?:\d+:\d+)?", re.ASCII),
    "alloctres": re.compile(r"(?:[^,=]+=[^,=]+(?:,[^,=]+=[^,=]+)*)?"),
    "reqtres": re.compile(r"(?:[^,=]+=[^,=]+(?:,[^,=]+=[^,=]+)*)?"),
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_PARSABLE = "call sacct with -P (--parsable2)"
_LINES = 64  # that one row may be cut into


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line: which column is where (names in lower case), and what stands between them."""

    line: int
    text: str
    delimiter: str
    places: dict[str, int]
    width: int  # fields of a row
    closed: bool  # rows end with a delimiter (--parsable), so that the last field is empty

    def free(self) -> tuple[int, ...]:
        """Columns that hold what users wrote."""
        return tuple(at for column, at in self.places.items() if column in _FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctRow:
    """One row, as it stood or `fixed`."""

    line: int
    fields: Sequence[str]
    mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A line, or several, of which no row can be made."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scrap:
    """Lines that are no row by themselves."""

    line: int
    lines: tuple[str, ...]

    def broken(self, head: Head) -> Broken:
        fields = len("\n".join(self.lines).split(head.delimiter))
        return Broken(line=self.line, why=describe_width(fields, head.width))


def read_head(line: str, number: int, name: str) -> Head:
    """TraceError where it is no head of `--parsable` or `--parsable2`."""
    first = _NAME.match(line.lstrip())
    after = line.lstrip()[first.end() :] if first else ""
    second = _NAME.search(after)
    delimiter = after[: second.start()] if second else after
    if not delimiter.strip(" "):
        raise make_trace_error(name, number, "no delimiter stands between the columns", _PARSABLE)
    if set(delimiter) & set(",=:+-./_[]"):
        raise make_trace_error(name, number, f"{quote_text(delimiter)} is no delimiter: fields hold it", _PARSABLE)
    columns = [column.strip().lower() for column in line.strip(" ").split(delimiter)]
    places: dict[str, int] = {}
    for at, column in enumerate(columns):
        if column:
            places.setdefault(column, at)
    return Head(line=number, text=line, delimiter=delimiter, places=places, width=len(columns), closed=not columns[-1])


def read_rows(lines: Iterable[tuple[int, str]], head: Head) -> Iterator[SacctRow | Broken]:
    """`lines` below the head, with their numbers. A head that comes again is skipped: dumps may be put together."""
    row: SacctRow | None = None
    for one in _split_rows(lines, head):
        if row is not None and isinstance(one, _Scrap) and _ends_a_name(one, head):
            row = replace(row, fields=[*row.fields[:-1], "\n".join((row.fields[-1], *one.lines))], mended=True)
            continue
        if row is not None:
            yield row
        row = None if isinstance(one, _Scrap) else one
        if isinstance(one, _Scrap):
            yield one.broken(head)
    if row is not None:
        yield row


def _split_rows(lines: Iterable[tuple[int, str]], head: Head) -> Iterator[SacctRow | _Scrap]:
    """Rows, fixed ones too, and between them what is none."""
    begun: list[str] = []
    since = 0
    for number, line in lines:
        fields = line.split(head.delimiter)
        if line == head.text or not (begun or line.strip()):
            continue
        if len(fields) == head.width and (not begun or _is_sound(fields, head)):
            if begun:
                yield _Scrap(line=since, lines=tuple(begun))
                begun = []
            yield SacctRow(line=number, fields=fields)
            continue
        since = since if begun else number
        begun.append(line)
        mended = _repair_fields("\n".join(begun).split(head.delimiter), head)
        if mended is not None:
            yield SacctRow(line=since, fields=mended, mended=True)
            begun = []
        elif len(begun) >= _LINES or len(fields) > head.width:
            yield _Scrap(line=since, lines=tuple(begun))
            begun = []
    if begun:
        yield _Scrap(line=since, lines=tuple(begun))


def _ends_a_name(scrap: _Scrap, head: Head) -> bool:
    """Whether these lines are what followed a line break in the last column, and no row that was cut short."""
    return head.width - 1 in head.free() and not _JOB.match(scrap.lines[0])


def _repair_fields(fields: list[str], head: Head) -> list[str] | None:
    """Surplus fields are put back into the column of free text that they came from.

    None where it may have come from several, and what Slurm wrote and we read would differ with them.
    """
    surplus = len(fields) - head.width
    if surplus < 0:
        return None
    found = [row for at in head.free() if _is_sound(row := _rejoin_fields(fields, at, surplus, head), head)]
    read = [at for column, at in head.places.items() if column in READ]
    return found[0] if len({tuple(row[at] for at in read) for row in found}) == 1 else None


def _rejoin_fields(fields: list[str], at: int, surplus: int, head: Head) -> list[str]:
    end = at + surplus + 1
    return [*fields[:at], head.delimiter.join(fields[at:end]), *fields[end:]]


def _is_sound(fields: Sequence[str], head: Head) -> bool:
    """Whether ids, states and times stand where they should."""
    if head.closed and fields[-1].strip():
        return False
    for column, form in _FORMS.items():
        at = head.places.get(column)
        if at is not None and not form.fullmatch(fields[at].strip()):
            return False
    try:
        for column in TIMES:
            if column in head.places:
                parse_stamp(fields[head.places[column]].strip())
    except ValueError:
        return False
    return True
