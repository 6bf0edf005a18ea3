"""The list of a user's jobs, for `slurmwrap watch`: one entry per job or array, sorted and searched. Pure.

An entry is a JobStatus, as for one watched job, so that both views and both JSON objects are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from slurmwrap.cli.watch.job_status import JobStatus
from slurmwrap.cli.watch.watch_output import count_members, count_states, count_tasks, make_change_key
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.submission import Submission
from slurmwrap.policy.requeue import RETRY_JOB_COMMENT
from slurmwrap.report.text_format import format_state
from slurmwrap.slurm.squeue_parser import WatchedJob


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """One line of the list: a job, an array, or, with `task`, one task of an array that is unfolded.

    `record` and `counts` (tasks by state) are those of the status, which computes them from all its rows. `tasks`: the
    tasks of an array whose files were read, by address.
    """

    status: JobStatus
    record: JobRecord
    counts: Mapping[str, int]
    task: bool = False
    tasks: Mapping[str, JobStatus] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """What to pass to `slurmwrap watch` and scancel."""
        return self.status.address

    @property
    def label(self) -> str:
        """The address; for the pending tasks of an array their numbers, "77_[5-15]"."""
        return (self.record.waiting_address if self.task else "") or self.address

    @property
    def gpus(self) -> int:
        """GPUs of the running tasks; if none runs, those that one of them requests."""
        running = sum(w.record.gpus for w in self.status.rows if w.record.state == "RUNNING")
        return running or self.record.gpus

    @property
    def failed(self) -> int:
        """How many tasks ended in another state than COMPLETED."""
        return sum(count for state, count in self.counts.items() if is_failure(state))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """All jobs of a user at one moment.

    `silent`: why Slurm did not answer this time; then everything is older. `forgotten`: how many jobs Slurm forgot
    before their end was seen.
    """

    at: float
    user: str
    jobs: tuple[ListedJob, ...] = ()
    silent: str = ""
    forgotten: int = 0

    @property
    def ended(self) -> bool:
        """Whether no job is pending or running."""
        return all(one.status.ended for one in self.jobs)

    @property
    def completed(self) -> bool:
        """Whether all jobs ended as COMPLETED."""
        return not self.forgotten and all(one.status.completed for one in self.jobs)


_UNFINISHED = frozenset(("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "REQUEUED"))


def is_failure(state: str) -> bool:
    """Return whether a job in this state has ended, and not as COMPLETED."""
    return state != "COMPLETED" and state not in _UNFINISHED


def fold_jobs(
    rows: Iterable[WatchedJob], at: float, submissions: Mapping[int, Submission] | None = None
) -> tuple[JobStatus, ...]:
    """Return one status per job, array and heterogeneous job, without the retry jobs of slurmwrap.

    `submissions`: by the submitted job id. A pre-run is left out if the job that it belongs to is in the list.
    """
    groups: dict[int, list[WatchedJob]] = {}
    for row in rows:
        record = row.record
        if record.comment != RETRY_JOB_COMMENT:
            groups.setdefault(record.array_job_id or record.het_job_id or record.job_id, []).append(row)
    for job_id in tuple(groups):
        submission = (submissions or {}).get(job_id)
        if submission is not None and submission.prerun_job_id != job_id:
            groups.pop(submission.prerun_job_id or 0, None)
    return tuple(JobStatus(at=at, address=str(job_id), rows=tuple(found)) for job_id, found in groups.items())


def make_entry(status: JobStatus, tasks: Mapping[str, JobStatus] | None = None, *, task: bool = False) -> ListedJob:
    """Return the line of a status. `tasks`: as ListedJob.tasks."""
    counts = count_states(status) if status.pack is None else count_members(status, status.pack)
    return ListedJob(status=status, record=status.record, counts=counts, task=task, tasks=tasks or {})


def make_task_status(status: JobStatus, row: WatchedJob) -> JobStatus:
    """Return the status of one row of an array: a task, or those that are pending."""
    job_id, started = row.record.job_id, row.record.array_task_id is not None
    return replace(
        status,
        address=row.record.address if started else status.address,
        rows=(row,),
        gone=None,
        findings=tuple(one for one in status.findings if one.attempt.job_id == job_id),
        start=None if started else status.start,
        members=tuple(one for one in status.members if one.task == row.record.address),
    )


def make_list_key(jobs: JobList) -> tuple[object, ...]:
    """Return what must change before Slurm is asked as often as at first."""
    return (bool(jobs.silent), *((one.address, make_change_key(one.status)) for one in jobs.jobs))


def find_job(jobs: Iterable[ListedJob], address: str) -> ListedJob | None:
    """Return the job, array or array task with this address; None if it is not in the list."""
    array = address.partition("_")[0]
    found = next((one for one in jobs if one.address == array), None)
    if found is None or address == array:
        return found
    return next((_make_task(found, row) for row in found.status.rows if row.record.address == address), None)


def _make_task(entry: ListedJob, row: WatchedJob) -> ListedJob:
    """Return the line of a task. It is not made by make_entry(), since an array may have thousands of tasks."""
    status = entry.tasks.get(row.record.address) or make_task_status(entry.status, row)
    if status.pack is not None:
        return make_entry(status, task=True)
    return ListedJob(status=status, record=row.record, counts={row.record.state: count_tasks(row)}, task=True)


def _rank_row(row: WatchedJob) -> tuple[object, ...]:
    return (_RANKS.get(row.record.state, 4), row.record.array_task_id or 0)


# --- order and search -------------------------------------------------------------------------------------------------

# Order of states in the list and in counts: failures of arrays whose other tasks go on are worth a look.
_RANKS = {"RUNNING": 0, "COMPLETING": 1, "CONFIGURING": 1, "SUSPENDED": 1, "STOPPED": 1, "PENDING": 2, "COMPLETED": 5}


def _rank(entry: ListedJob) -> tuple[object, ...]:
    """Sort jobs with findings first, then running, pending by their start, and ended jobs, the newest first."""
    record, number = entry.record, int(entry.address)
    rank = _RANKS.get(record.state, 4)
    if rank == 2:
        return (not entry.status.findings, rank, _get_next_time(entry), -record.priority, number)
    # Ended jobs of all states are mixed.
    rank = min(rank, 4)
    return (not entry.status.findings, rank, -(record.end_time or record.start_time or 0), number)


def _get_next_time(entry: ListedJob) -> float:
    """Return when a running job ends or a pending one starts, as far as it is known, in Unix seconds; inf: unknown."""
    status, record = entry.status, entry.record
    if record.ended:
        return inf
    if record.pending:
        if status.start is not None:
            return status.start.at
        return float(status.waiting.expected_start or inf) if status.waiting is not None else inf
    if status.end is not None:
        return status.end.at
    return (record.start_time or 0) + float(record.time_limit_s or inf)


SORT_KEYS: dict[str, Callable[[ListedJob], tuple[object, ...]]] = {
    "state": _rank,
    "newest": lambda entry: (-entry.record.submit_time, -entry.record.job_id),
    "next": lambda entry: (entry.record.ended, _get_next_time(entry), *_rank(entry)),
    "name": lambda entry: (entry.record.name.casefold(), *_rank(entry)),
    "GPUs": lambda entry: (-entry.gpus, *_rank(entry)),
}


def arrange_jobs(
    jobs: Sequence[ListedJob], sort: str = "state", search: str = "", unfolded: frozenset[str] = frozenset()
) -> list[ListedJob]:
    """Return the lines to show in their order. `sort`: a key of SORT_KEYS; `unfolded`: addresses of arrays."""
    words = search.casefold().split()
    found: list[ListedJob] = []
    for entry in sorted((one for one in jobs if _matches(one, words)), key=SORT_KEYS[sort]):
        found.append(entry)
        if entry.address in unfolded and entry.status.array:
            # Its pending tasks in one line, and each other task.
            found += [_make_task(entry, row) for row in sorted(entry.status.rows, key=_rank_row)]
    return found


def _matches(entry: ListedJob, words: list[str]) -> bool:
    """Return whether each word is in the job's id, name, states, reason, partition or a node's name."""
    if not words:
        return True
    record, waiting = entry.record, entry.status.waiting
    states = (state for word in entry.counts for state in (word, format_state(word)))
    found = " ".join(
        (
            *(entry.address, record.name, record.partition, waiting.record.reason if waiting else ""),
            *(*states, *(one.kind for one in entry.status.findings), *record.nodes),
        )
    ).casefold()
    return all(word in found for word in words)


def sum_states(jobs: Iterable[ListedJob]) -> Counter[str]:
    """Return how many jobs and array tasks are in each state."""
    found: Counter[str] = Counter()
    for one in jobs:
        found.update(one.counts)
    return found


def format_counts(counts: Mapping[str, int]) -> str:
    """Return "3 running, 12 pending, 1 failed"."""
    order = sorted(counts.items(), key=lambda one: (_RANKS.get(one[0], 4), one[0]))
    return ", ".join(f"{count:,} {format_state(state)}" for state, count in order if count)
