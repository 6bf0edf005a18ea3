"""Parse a dump of Slurm's accounting (sacct) into a Load. Pure.

The columns may come in any order; COMMAND prints all that are used. Steps are skipped. Every run is a job of its own:
with `sacct --duplicates` a job that was requeued appears once per run, with the same id. A component of a heterogeneous
job is a job.

A SimJob has GPUs as allocated, CPUs and memory as requested, nodes as requested if the job was given just as many, time
limit in seconds, state without "by 1000". `submit_s` is when the job became eligible, as in Slurm's own "Planned":
before that it waited for a dependency, a date or a hold and not for the cluster. `work_s` is Slurm's elapsed time
(without suspension), else end less start. `model` is the job's name: `--profiles` finds a profile whose key is that
name. The key that gsub computes is a digest of the script's content, which accounting does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slurmwrap.errors import TraceError
from slurmwrap.sim.sim_job import SimJob
from slurmwrap.sim.trace.sacct_rows import Broken, Head, SacctReader, SacctRow, SacctRun, read_head, read_rows
from slurmwrap.sim.trace.trace_load import JOB_CAP, Actual, Load, make_trace_error

# Restarts and SLUID are newer than 22.05, which refuses unknown columns. The name comes last: it may contain "|".
FIELDS = (
    *("JobID", "User", "Partition", "State", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw"),
    *("ReqTRES", "AllocTRES", "NNodes", "NodeList", "ExitCode", "JobName"),
)
COMMAND = f"SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-30days -o {','.join(FIELDS)}"

_NEEDED = (("jobid", "jobidraw"), ("submit",), ("start",), ("end", "elapsedraw", "elapsed"))
_RESOURCES = ("alloctres", "reqtres", "allocgres", "reqgres")
_NAMES = {name.lower(): name for name in (*FIELDS, "JobIDRaw", "Elapsed", "AllocGRES", "ReqGRES")}
_SLURMS = frozenset((*_NAMES, "account", "jobidraw", "cluster", "ncpus", "exitcode", "qos", "uid", "dbindex", "sluid"))
# Fraction of the lines that may be unreadable.
_BEARABLE = 0.01


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Counts of what is reported at the end."""

    rows: int = 0
    never: int = 0  # rows of jobs that never started
    repaired: int = 0
    twice: int = 0  # rows of a run that is in the dump already
    broken: int = 0
    first: Broken | None = None

    def miss(self, row: Broken) -> None:
        self.broken += 1
        self.first = self.first or row


def is_head(line: str) -> bool:
    """Return whether sacct printed this line: names of its columns, or a row of a dump without a head."""
    words = set(re.split(r"[^a-z0-9_]+", line.lower()))
    named = not words.isdisjoint(("jobid", "jobidraw")) or ("," not in line and len(words & _SLURMS) > 1)
    return named or _is_headless(line)


def parse_sacct_dump(lines: Iterable[str], name: str) -> Load:
    """Parse the dump. TraceError names the line, what is wrong with it, and how to fix it.

    `lines`: without line ends, including the head. Single rows that cannot be read are left out and listed in
    `remarks`; if they are more than 1 % it is an error.
    """
    numbered = enumerate(lines, 1)
    number, text = next((at, line) for at, line in numbered if line.strip())
    if _is_headless(text):
        raise make_trace_error(
            name, number, "there is no head that names the columns", "call sacct without -n (--noheader)"
        )
    head = read_head(text, number, name)
    _check_columns(head, name)
    tally = _Tally()
    runs = _select_distinct(_read_runs(read_rows(numbered, head), head, tally, name), tally)
    if tally.first and tally.broken > _BEARABLE * tally.rows:
        raise _make_unreadable_error(tally.first, tally, name)
    return _make_load(sorted(runs, key=lambda run: run.times.eligible), tally, name)


def _is_headless(line: str) -> bool:
    return line[:1].isdecimal() and line.count("|") > 2


def _check_columns(head: Head, name: str) -> None:
    """Raise TraceError if columns are missing."""
    missing = [
        " or ".join(_NAMES[one] for one in some) for some in _NEEDED if not any(one in head.places for one in some)
    ]
    if not any(one in head.places for one in _RESOURCES):
        missing.append("AllocTRES")
    if missing:
        raise make_trace_error(
            name, head.line, f"the dump has no column {' and no column '.join(missing)}", f"call it so: {COMMAND}"
        )


def _read_runs(rows: Iterator[SacctRow | Broken], head: Head, tally: _Tally, name: str) -> Iterator[SacctRun]:
    """Yield the runs that started, in the dump's order; count the rest."""
    reader = SacctReader(head)
    for row in rows:
        tally.rows += 1
        if tally.rows > JOB_CAP:
            raise make_trace_error(
                name, row.line, f"more than {JOB_CAP:,} rows", "dump a shorter time, with -X (--allocations)"
            )
        if isinstance(row, Broken):
            tally.miss(row)
            continue
        if "." in reader.text(row, "jobid", "jobidraw"):
            continue  # a step
        try:
            run = reader.run(row)
        except ValueError as error:
            tally.miss(Broken(line=row.line, why=str(error)))
            continue
        tally.repaired += row.repaired
        if run is None:
            tally.never += 1
        else:
            yield run


def _select_distinct(runs: Iterable[SacctRun], tally: _Tally) -> list[SacctRun]:
    """Return each run once: if dumps overlap, the row that contains its end."""
    found: dict[tuple[str, str, float, float], SacctRun] = {}
    for run in runs:
        # A job that was resized has several starts.
        key = (run.cluster, run.job, run.times.submit, run.times.start)
        tally.twice += key in found
        if key not in found or found[key].times.end is None:
            found[key] = run
    return list(found.values())


def _make_load(runs: Sequence[SacctRun], tally: _Tally, name: str) -> Load:
    """Return the load: jobs with GPUs and jobs without are kept apart. TraceError if no job held a GPU."""
    if not any(run.gpus for run in runs):
        raise _without_gpus(runs, tally, name)
    epoch = min(run.times.submit for run in runs)
    # The dump was made at this time or later.
    until = max(max(run.times.start, run.times.end or 0.0) for run in runs)
    held, other = [run for run in runs if run.gpus], [run for run in runs if not run.gpus]
    return Load(
        jobs=tuple(_make_job(number, run, epoch, until) for number, run in enumerate(held)),
        actual=tuple(_make_actual(run, epoch) for run in held),
        cpu_jobs=tuple(_make_job(number, run, epoch, until) for number, run in enumerate(other)),
        cpu_actual=tuple(_make_actual(run, epoch) for run in other),
        epoch=epoch,
        remarks=tuple(_list_remarks(runs, tally)),
    )


def _make_job(number: int, run: SacctRun, epoch: float, until: float) -> SimJob:
    end = until if run.times.end is None else run.times.end
    return SimJob(
        number=number,
        job=run.job,
        submit_s=run.times.eligible - epoch,
        work_s=end - run.times.start if run.times.elapsed is None else run.times.elapsed,
        gpus=run.gpus,
        nodes=run.nodes if run.asked_nodes in (None, run.nodes) else None,
        cpus=run.cpus,
        mem_mib=run.mem_mib,
        limit_s=run.limit_s,
        user=run.user,
        account=run.account,
        status=run.state,
        model=run.name,
        partition=run.partition,
        line=run.line,
    )


def _make_actual(run: SacctRun, epoch: float) -> Actual:
    return Actual(
        submit_s=run.times.submit - epoch,
        start_s=run.times.start - epoch,
        end_s=None if run.times.end is None else run.times.end - epoch,
        nodes=run.nodes,
        node_list=run.node_list,
        exit_code=run.exit_code,
    )


def _list_remarks(runs: Sequence[SacctRun], tally: _Tally) -> Iterator[str]:
    for count, what in (
        (tally.never, "never started and {is} left out"),
        (sum(not run.gpus for run in runs), "held no GPU and {is} kept apart"),
        (sum(run.times.end is None for run in runs), "{was} still running and {is} cut where the dump ends"),
        (
            sum(run.times.early for run in runs),
            "started before {it} {was} submitted, by the dump: taken as submitted then",
        ),
        (
            sum(run.times.eligible > run.times.submit for run in runs),
            "became eligible after submission and {is} counted from then",
        ),
        (tally.repaired, "{has} the delimiter or a line break in a name: fixed"),
        (tally.twice, "{is} in the dump twice and counted once"),
    ):
        if count:
            yield f"{_format_jobs(count)} {what.format(**_WORDS[count == 1])}"
    if tally.first:
        lines = "1 line" if tally.broken == 1 else f"{tally.broken:,} lines"
        yield f"{lines} could not be read; line {tally.first.line}: {tally.first.why}"


_WORDS = {
    True: {"is": "is", "was": "was", "has": "has", "it": "it"},
    False: {"is": "are", "was": "were", "has": "have", "it": "they"},
}


def _make_unreadable_error(first: Broken, tally: _Tally, name: str) -> TraceError:
    more = f"; {tally.broken:,} of {tally.rows:,} lines cannot be read" if tally.broken > 1 else ""
    return make_trace_error(name, first.line, f"{first.why}{more}", f"fix or remove the line, or dump again: {COMMAND}")


def _without_gpus(runs: Sequence[SacctRun], tally: _Tally, name: str) -> TraceError:
    if runs:
        return TraceError(
            f"{name}: {_format_jobs(len(runs))} started, and none of them held a GPU",
            hint="AllocTRES contains GPUs if slurm.conf has AccountingStorageTRES=gres/gpu since before the jobs ran",
        )
    if tally.never:
        return TraceError(
            f"{name}: {_format_jobs(tally.never)}, and none of them started", hint="a longer time: sacct -S"
        )
    return TraceError(f"{name}: there is no job below the head", hint="sacct -a for all users, -S for a longer time")


def _format_jobs(count: int) -> str:
    return f"{count:,} {'job' if count == 1 else 'jobs'}"
