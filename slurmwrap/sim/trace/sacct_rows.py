"""Split the lines of `sacct --parsable2` into rows, and parse each row into a run. Pure.

sacct escapes nothing: a job name that contains the delimiter makes a row too long, a line break splits it in two. Both
are fixed if it is clear how, since only free-text columns can contain either. What stays unclear becomes a Broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from slurmwrap.diagnosis.slurm_state import parse_base_state
from slurmwrap.model.sacct_fields import (
    Tres,
    parse_elapsed,
    parse_limit,
    parse_memory,
    parse_old_gres,
    parse_stamp,
    parse_tres,
)
from slurmwrap.sim.trace.trace_load import (
    LINE_CAP,
    MOST_COUNT,
    MOST_MIB,
    MOST_SECONDS,
    describe_width,
    make_printable,
    make_trace_error,
    quote_text,
)

TIMES = ("submit", "eligible", "start", "end")
# Columns written by Slurm itself that become part of a SacctRun.
READ = frozenset(
    (
        *(
            "jobid",
            "jobidraw",
            "cluster",
            "user",
            "uid",
            "account",
            "partition",
            "state",
            "exitcode",
            *TIMES,
            "elapsedraw",
        ),
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
# Forms of the columns that contain no user text, besides times.
_FORMS = {
    "jobid": _JOB,
    "jobidraw": _JOB,
    "state": re.compile(r"(?:[A-Z][A-Z_+]+(?: by \d+)?)?", re.ASCII),
    "exitcode": re.compile(r"(?:\d+:\d+)?", re.ASCII),
    "alloctres": re.compile(r"(?:[^,=]+=[^,=]+(?:,[^,=]+=[^,=]+)*)?"),
    "reqtres": re.compile(r"(?:[^,=]+=[^,=]+(?:,[^,=]+=[^,=]+)*)?"),
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_PARSABLE = "call sacct with -P (--parsable2)"
# Greatest number of lines into which one row may be split.
_LINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line: the index of each column (names in lower case), and the delimiter."""

    line: int
    text: str
    delimiter: str
    places: dict[str, int]
    width: int  # number of fields in a row
    # Whether rows end with a delimiter (--parsable), so that the last field is empty.
    closed: bool

    def free(self) -> tuple[int, ...]:
        """Return the indices of the columns with user text."""
        return tuple(at for column, at in self.places.items() if column in _FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctRow:
    """One row, as printed or fixed (`repaired`)."""

    line: int
    fields: Sequence[str]
    repaired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One or several lines that cannot be parsed into a row."""

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
    """Parse the head. TraceError if it is no head of `--parsable` or `--parsable2`."""
    first = _NAME.match(line.lstrip())
    after = line.lstrip()[first.end() :] if first else ""
    second = _NAME.search(after)
    delimiter = after[: second.start()] if second else after
    if not delimiter.strip(" "):
        raise make_trace_error(name, number, "there is no delimiter between the columns", _PARSABLE)
    if set(delimiter) & set(",=:+-./_[]"):
        raise make_trace_error(name, number, f"{quote_text(delimiter)} is no delimiter: fields hold it", _PARSABLE)
    columns = [column.strip().lower() for column in line.strip(" ").split(delimiter)]
    places: dict[str, int] = {}
    for at, column in enumerate(columns):
        if column:
            places.setdefault(column, at)
    return Head(line=number, text=line, delimiter=delimiter, places=places, width=len(columns), closed=not columns[-1])


def read_rows(lines: Iterable[tuple[int, str]], head: Head) -> Iterator[SacctRow | Broken]:
    """Yield the rows below the head; `lines` with their numbers.

    A repeated head is skipped, because dumps may be concatenated.
    """
    row: SacctRow | None = None
    for one in _split_rows(lines, head):
        if row is not None and isinstance(one, _Scrap) and _ends_a_name(one, head):
            row = replace(row, fields=[*row.fields[:-1], "\n".join((row.fields[-1], *one.lines))], repaired=True)
            continue
        if row is not None:
            yield row
        row = None if isinstance(one, _Scrap) else one
        if isinstance(one, _Scrap):
            yield one.broken(head)
    if row is not None:
        yield row


def _split_rows(lines: Iterable[tuple[int, str]], head: Head) -> Iterator[SacctRow | _Scrap]:
    """Yield rows, fixed ones too, and between them the lines that are no rows."""
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
        repaired = _repair_fields("\n".join(begun).split(head.delimiter), head)
        if repaired is not None:
            yield SacctRow(line=since, fields=repaired, repaired=True)
            begun = []
        elif len(begun) >= _LINES or len(fields) > head.width:
            yield _Scrap(line=since, lines=tuple(begun))
            begun = []
    if begun:
        yield _Scrap(line=since, lines=tuple(begun))


def _ends_a_name(scrap: _Scrap, head: Head) -> bool:
    """Return whether these lines followed a line break in the last column, and are no row that was cut short."""
    return head.width - 1 in head.free() and not _JOB.match(scrap.lines[0])


def _repair_fields(fields: list[str], head: Head) -> list[str] | None:
    """Join surplus fields into the free-text column that they came from.

    None if they may have come from several columns, and the columns written by Slurm that are used here would differ.
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
    """Return whether ids, states and times are in the right columns."""
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


# Parsing one row of sacct into a SacctRun: what was requested, what was allocated, when.
_TITLES = {
    title.lower(): title
    for title in ("Submit", "Eligible", "Start", "End", "Elapsed", "Timelimit", "AllocTRES", "ReqTRES")
}
_UNASSIGNED = frozenset(("", "none assigned", "(null)"))
_state = lru_cache(maxsize=256)(parse_base_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times of one run, in Unix seconds: submit <= eligible <= start <= end."""

    submit: float
    eligible: float
    start: float
    end: float | None  # None: still running
    elapsed: float | None  # without suspension; None: unknown
    early: bool  # in the dump it started before it was submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctRun:
    """One run of a job. Amounts are of the whole job; None: unknown."""

    line: int
    cluster: str
    job: str
    times: RunTimes
    gpus: int
    cpus: int | None
    mem_mib: int | None
    asked_nodes: int | None
    nodes: int | None
    limit_s: float | None
    state: str
    user: str
    account: str  # "": not in the dump
    partition: str
    name: str
    node_list: str
    exit_code: str


class SacctReader:
    """Reads rows below one head.

    Column names in lower case; if several columns contain the same value, the first non-empty one counts.
    """

    def __init__(self, head: Head) -> None:
        self._places = head.places

    def text(self, row: SacctRow, *columns: str) -> str:
        """Return the first of `columns` that is not empty; "" if all are."""
        for column in columns:
            at = self._places.get(column)
            if at is not None and (text := row.fields[at].strip()):
                return text
        return ""

    def run(self, row: SacctRow) -> SacctRun | None:
        """Return the run; None if it never started. ValueError names the field that cannot be read."""
        alloc = self._tres(row, "alloctres")
        times = self._times(row, alloc)
        if times is None:
            return None
        req = self._tres(row, "reqtres")
        nodes = alloc.nodes or self._count(row, "allocnodes", "nnodes")
        gpus = self._gpus(row, alloc, req, nodes or 1)
        whole_nodes = bool(req.gpus) and gpus > (req.gpus or 0)  # --exclusive
        asked = alloc if whole_nodes else req
        return SacctRun(
            line=row.line,
            cluster=self.text(row, "cluster"),
            job=make_printable(self.text(row, "jobid", "jobidraw")),
            times=times,
            gpus=gpus,
            cpus=asked.cpus or self._count(row, "reqcpus") or alloc.cpus or self._count(row, "alloccpus", "ncpus"),
            mem_mib=self._memory(row, alloc, asked, nodes or 1),
            asked_nodes=req.nodes or self._count(row, "reqnodes"),
            nodes=nodes,
            limit_s=self._seconds(row, parse_limit, "timelimitraw", "timelimit") or None,
            state=make_printable(_state(self.text(row, "state"))),
            user=make_printable(self.text(row, "user", "uid")),
            account=make_printable(self.text(row, "account")),
            partition=make_printable(self.text(row, "partition")),
            name=make_printable(self.text(row, "jobname")),
            node_list=make_printable(self.text(row, "nodelist"), LINE_CAP),
            exit_code=make_printable(self.text(row, "exitcode")),
        )

    def _times(self, row: SacctRow, alloc: Tres) -> RunTimes | None:
        """Return the times; None if the run never started."""
        submit, start, end = (self._seconds(row, parse_stamp, column) for column in ("submit", "start", "end"))
        eligible = self._seconds(row, parse_stamp, "eligible")
        elapsed = self._seconds(row, parse_elapsed, "elapsedraw", "elapsed")
        if start is None or (not elapsed and self._unassigned(row, alloc)) or "_[" in self.text(row, "jobid"):
            return None
        if submit is None:
            raise ValueError("Submit is empty, and Start is not")
        first = min(submit, start)
        return RunTimes(
            submit=first,
            eligible=max(first, min(first if eligible is None else eligible, start)),
            start=start,
            # No run is shorter than its elapsed time, unless the system clock was set back meanwhile.
            end=None if end is None else max(end, start + (elapsed or 0.0)),
            elapsed=elapsed,
            early=start < submit,
        )

    def _unassigned(self, row: SacctRow, alloc: Tres) -> bool:
        """Return whether the job was cancelled while it waited; Slurm then prints its end as its start too."""
        if "nodelist" in self._places:
            return self.text(row, "nodelist").lower() in _UNASSIGNED
        return "alloctres" in self._places and alloc == Tres()

    def _seconds(self, row: SacctRow, parse: Callable[[str], float | None], *columns: str) -> float | None:
        """Return the seconds; None if it did not happen or is not in the dump."""
        text = self.text(row, *columns)
        try:
            seconds = parse(text)
        except (ValueError, OverflowError):
            seconds = -1.0
        if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(
                f"{_TITLES[columns[-1]]} is {quote_text(text)}, not a {'time' if columns[0] in TIMES else 'duration'}"
            )
        return seconds

    def _tres(self, row: SacctRow, column: str) -> Tres:
        text = self.text(row, column)
        try:
            tres = parse_tres(text)
        except ValueError:
            raise ValueError(f"{_TITLES[column]} is {quote_text(text)}, not a list of resources") from None
        if max(tres.gpus or 0, tres.cpus or 0, tres.nodes or 0) > MOST_COUNT or (tres.mem_mib or 0) > MOST_MIB:
            raise ValueError(f"{_TITLES[column]} is {quote_text(text)}: more than any cluster has")
        return tres

    def _count(self, row: SacctRow, *columns: str) -> int | None:
        """Return the count; None also for text like "Unknown" or ""."""
        text = self.text(row, *columns)
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 8 and int(text) else None

    def _gpus(self, row: SacctRow, alloc: Tres, req: Tres, nodes: int) -> int:
        """Return the GPUs as allocated. Before Slurm 21.08 they also appear as "gpu:4" per node."""
        if alloc.gpus is not None or req.gpus is not None:
            return alloc.gpus or req.gpus or 0
        return parse_old_gres(self.text(row, "allocgres", "reqgres")) * nodes

    def _memory(self, row: SacctRow, alloc: Tres, asked: Tres, nodes: int) -> int | None:
        """Return the memory as requested; if that is all memory of the nodes (--mem=0), as allocated."""
        if asked.mem_mib:
            return asked.mem_mib
        text = self.text(row, "reqmem")
        try:
            amount, of = parse_memory(text) if text else (0, "")
        except ValueError:
            amount, of = 0, ""
        times = (
            nodes if of == "n" else (alloc.cpus or self._count(row, "alloccpus", "ncpus", "reqcpus") or 1) if of else 1
        )
        return min(amount * times, MOST_MIB) or alloc.mem_mib or None
