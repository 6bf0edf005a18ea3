"""Turns a file into a Load: a table of jobs (CSV) or a dump of Slurm's accounting (`sacct -P`), plain or gzipped.

`parse` and `check_fits` are pure; `open_load` is the edge that reads files.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from io import BufferedReader, FileIO
from itertools import accumulate, chain
from math import ceil
from pathlib import Path
from typing import IO, Any, cast

from slurmwrap.errors import TraceError
from slurmwrap.placement.demand import Server
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace import csv_trace, sacct_dump
from slurmwrap.sim.trace.trace_load import LINE_CAP, make_printable, make_trace_error, quote_text, sound_lines
from slurmwrap.sim.trace.trace_load import Actual as Actual
from slurmwrap.sim.trace.trace_load import Load as Load

_WANTED = f"wanted is a CSV with {', '.join(csv_trace.NEEDED)}, or what this prints: {sacct_dump.COMMAND}"
_GZIP = b"\x1f\x8b"


def parse_trace(lines: Iterable[str], name: str) -> Load:
    """The jobs of these lines. `name`: how errors call the file. TraceError says which line is wrong and what to do."""
    rest = sound_lines(lines, name)
    number, head = next(((at, line) for at, line in enumerate(rest, 1) if line.strip()), (1, ""))
    if not head:
        raise TraceError(f"{name}: it is empty", hint=_WANTED)
    begun = chain([""] * (number - 1), [head], rest)
    if csv_trace.is_head(head):
        return csv_trace.parse_csv_trace(begun, name)
    if sacct_dump.is_head(head):
        return sacct_dump.parse_sacct_dump(begun, name)
    if "," in head and head.lstrip()[:1] not in ("{", "["):
        # It reports what is missing.
        return csv_trace.parse_csv_trace(begun, name)
    raise _make_unknown_format_error(name, number, head)


def open_load(path: Path) -> Load:
    """Of a file, of standard input for "-". TraceError for what cannot be opened, unpacked or understood."""
    name = "standard input" if str(path) == "-" else make_printable(str(path))
    try:
        with _open_trace(path) as stream:
            return parse_trace(_read_lines(stream), name)
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise TraceError(f"{name}: a damaged gzip file", hint="copy or fetch it again") from error
    except OSError as error:
        raise TraceError(f"cannot read {name}: {error.strerror or error}") from error


def check_fits(jobs: Sequence[SimJob], servers: Sequence[Server], *, name: str) -> None:
    """TraceError where a job could never start, all `servers` being idle: it names the first one and both numbers."""
    most = _find_most(servers)
    beyond = [(job, why) for job in jobs if (why := _explain_impossible(job, most))]
    if not beyond:
        return
    job, why = beyond[0]
    more = f"; so it is with {len(beyond) - 1} more" if len(beyond) > 1 else ""
    raise make_trace_error(
        name,
        job.line,
        f"job {job.job} {why}{more}",
        "give a cluster that holds it (--servers, --gpus, --cpus, --mem-gb), or leave such jobs out of the trace",
    )


# What the n largest servers have together, at n; at 0 nothing.
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
    """Why it can never start; "" where it can."""
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
    """On how many servers it runs at most: each gives it a GPU; where it asks for nodes, no more than it needs.

    `gpus`: of the largest server.
    """
    if job.nodes is None:
        return max(1, job.gpus)
    return max(1, min(job.gpus, max(job.nodes, ceil(job.gpus / max(1, gpus)))))


@contextmanager
def _open_trace(path: Path) -> Iterator[IO[bytes]]:
    """Its bytes, unpacked where they are gzip's, whatever the file is called."""
    if str(path) == "-":
        stream = BufferedReader(cast(FileIO, sys.stdin.buffer))
        try:
            yield _unpack_stream(stream)
        finally:
            # Else standard input is closed with it.
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
    """Lines end at a line feed alone: a job's name may hold any other character that Python takes for an end."""
    while line := stream.readline(LINE_CAP + 2):
        yield line.decode("utf-8", "replace")


def _make_unknown_format_error(name: str, line: int, head: str) -> TraceError:
    if head.lstrip()[:1] in ("{", "["):
        return make_trace_error(name, line, "it is JSON", _WANTED)
    if all(column in head for column in csv_trace.NEEDED):
        return make_trace_error(
            name, line, f"no commas stand between the columns {quote_text(head)}", "wanted are commas"
        )
    return make_trace_error(
        name, line, f"neither a table of jobs nor a dump of sacct begins with {quote_text(head)}", _WANTED
    )
