"""Turns one row of sacct into a Run: what was asked, what was given, when. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from slurmwrap.diagnosis.slurm_state import parse_base_state
from slurmwrap.model.sacct_times import parse_elapsed, parse_limit, parse_stamp
from slurmwrap.model.tres import Tres, parse_memory, parse_old_gres, parse_tres
from slurmwrap.sim.trace.sacct_rows import TIMES, Head, SacctRow
from slurmwrap.sim.trace.trace_limits import LINE_CAP, MOST_COUNT, MOST_MIB, MOST_SECONDS, make_printable, quote_text

_TITLES = {
    title.lower(): title
    for title in ("Submit", "Eligible", "Start", "End", "Elapsed", "Timelimit", "AllocTRES", "ReqTRES")
}
_UNASSIGNED = frozenset(("", "none assigned", "(null)"))
_state = lru_cache(maxsize=256)(parse_base_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Of one run, in Unix seconds: submit <= eligible <= start <= end."""

    submit: float
    eligible: float
    start: float
    end: float | None  # None: still running
    elapsed: float | None  # without suspension; None: not said
    early: bool  # the dump says that it started before it was submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctRun:
    """One run of a job. Amounts are of the whole job, None: not said."""

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
    partition: str
    name: str
    node_list: str
    exit_code: str


class SacctReader:
    """Reads rows below one head. Column names in lower case; where several say the same, the first that does counts."""

    def __init__(self, head: Head) -> None:
        self._places = head.places

    def text(self, row: SacctRow, *columns: str) -> str:
        """The first of `columns` that says anything; "" where none does."""
        for column in columns:
            at = self._places.get(column)
            if at is not None and (said := row.fields[at].strip()):
                return said
        return ""

    def run(self, row: SacctRow) -> SacctRun | None:
        """None: it never started. ValueError says which field cannot be read."""
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
            partition=make_printable(self.text(row, "partition")),
            name=make_printable(self.text(row, "jobname")),
            node_list=make_printable(self.text(row, "nodelist"), LINE_CAP),
            exit_code=make_printable(self.text(row, "exitcode")),
        )

    def _times(self, row: SacctRow, alloc: Tres) -> RunTimes | None:
        """None: it never started."""
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
            # no run is shorter than its elapsed time, unless the clock on the wall was put back meanwhile
            end=None if end is None else max(end, start + (elapsed or 0.0)),
            elapsed=elapsed,
            early=start < submit,
        )

    def _unassigned(self, row: SacctRow, alloc: Tres) -> bool:
        """Cancelled while it waited; Slurm then prints the end as its start too."""
        if "nodelist" in self._places:
            return self.text(row, "nodelist").lower() in _UNASSIGNED
        return "alloctres" in self._places and alloc == Tres()

    def _seconds(self, row: SacctRow, parse: Callable[[str], float | None], *columns: str) -> float | None:
        """None: that did not happen, or no one said."""
        said = self.text(row, *columns)
        try:
            seconds = parse(said)
        except (ValueError, OverflowError):
            seconds = -1.0
        if seconds is not None and not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(
                f"{_TITLES[columns[-1]]} is {quote_text(said)}, not a {'time' if columns[0] in TIMES else 'duration'}"
            )
        return seconds

    def _tres(self, row: SacctRow, column: str) -> Tres:
        said = self.text(row, column)
        try:
            tres = parse_tres(said)
        except ValueError:
            raise ValueError(f"{_TITLES[column]} is {quote_text(said)}, not a list of resources") from None
        if max(tres.gpus or 0, tres.cpus or 0, tres.nodes or 0) > MOST_COUNT or (tres.mem_mib or 0) > MOST_MIB:
            raise ValueError(f"{_TITLES[column]} is {quote_text(said)}: more than any cluster has")
        return tres

    def _count(self, row: SacctRow, *columns: str) -> int | None:
        """None also for what is no count: "Unknown", ""."""
        said = self.text(row, *columns)
        return int(said) if said.isascii() and said.isdecimal() and len(said) < 8 and int(said) else None

    def _gpus(self, row: SacctRow, alloc: Tres, req: Tres, nodes: int) -> int:
        """As allocated; before Slurm 21.08 next to the TRES also as "gpu:4" per node."""
        if alloc.gpus is not None or req.gpus is not None:
            return alloc.gpus or req.gpus or 0
        return parse_old_gres(self.text(row, "allocgres", "reqgres")) * nodes

    def _memory(self, row: SacctRow, alloc: Tres, asked: Tres, nodes: int) -> int | None:
        """As requested; where that is all memory of the nodes (--mem=0), as allocated."""
        if asked.mem_mib:
            return asked.mem_mib
        said = self.text(row, "reqmem")
        try:
            amount, of = parse_memory(said) if said else (0, "")
        except ValueError:
            amount, of = 0, ""
        times = (
            nodes if of == "n" else (alloc.cpus or self._count(row, "alloccpus", "ncpus", "reqcpus") or 1) if of else 1
        )
        return min(amount * times, MOST_MIB) or alloc.mem_mib or None
