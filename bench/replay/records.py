"""Read starts and ends of jobs from slurmctld's log, to the millisecond. Pure, except for reading the file.

squeue and scontrol report whole seconds, which are minutes of a compressed trace; the controller's log has
milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from slurmwrap.model.hostlist import expand

# sched/backfill: _start_job: Started JobId=1 in gpu on n0
_BACKFILL = re.compile(r"_start_job: Started JobId=(\d+) in \S+ on (\S+)")
# sched: Allocate JobId=3 NodeList=n0 #CPUs=3 Partition=gpu
_ALLOCATE = re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+) #CPUs=(\d+)")
# _job_complete: JobId=1 WEXITSTATUS 0 (also WTERMSIG, OOM failure)
_COMPLETE = re.compile(r"_job_complete: JobId=(\d+) (?:WEXITSTATUS|WTERMSIG|OOM failure|WIFSIGNALED)\s*(\d+)?")
_DONE = re.compile(r"_job_complete: JobId=(\d+) (?:\S+ )*done")
# _slurm_rpc_submit_batch_job: JobId=1 InitPrio=4294901759 usec=393
_SUBMITTED = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) ")
# _slurm_rpc_update_job: complete JobId=5 uid=1007 usec=303
_UPDATED = re.compile(r"_slurm_rpc_update_job: complete JobId=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one job; Unix seconds."""

    job_id: int
    start: float
    end: float
    nodes: tuple[str, ...]
    exit_code: int = 0


def read_runs(lines: Iterable[str], wanted: Mapping[int, object]) -> tuple[Run, ...]:
    """Return the ended runs of the `wanted` job ids, in the order of their starts. A requeued job has several."""
    begun: dict[int, tuple[float, tuple[str, ...]]] = {}
    codes: dict[int, int] = {}
    runs = []
    for line in lines:
        if found := _BACKFILL.search(line) or _ALLOCATE.search(line):
            begun[int(found[1])] = (_time(line), expand(found[2]))
        elif found := _COMPLETE.search(line):
            codes[int(found[1])] = int(found[2] or 0)
        elif (found := _DONE.search(line)) and int(found[1]) in begun:
            job_id = int(found[1])
            start, nodes = begun.pop(job_id)
            if job_id in wanted:
                runs.append(
                    Run(job_id=job_id, start=start, end=_time(line), nodes=nodes, exit_code=codes.get(job_id, 0))
                )
    return tuple(sorted(runs, key=lambda run: (run.start, run.job_id)))


def read_submits(lines: Iterable[str], wanted: Mapping[int, object]) -> dict[int, float]:
    """Return when the controller received each of the `wanted` jobs, in Unix seconds."""
    found = ((line, _SUBMITTED.search(line)) for line in lines)
    return {int(match[1]): _time(line) for line, match in found if match and int(match[1]) in wanted}


def read_updates(lines: Iterable[str], wanted: Mapping[int, object]) -> tuple[float, ...]:
    """Return when `scontrol update` changed one of the `wanted` jobs, in Unix seconds."""
    found = ((line, _UPDATED.search(line)) for line in lines)
    return tuple(_time(line) for line, match in found if match and int(match[1]) in wanted)


def _time(line: str) -> float:
    """Return Unix seconds for a line "[2026-11-21T10:30:59.437] …" in local time."""
    return datetime.fromisoformat(line[1 : line.index("]")]).timestamp()
