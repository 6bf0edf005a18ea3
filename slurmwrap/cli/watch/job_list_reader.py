"""Read all jobs of a user for `slurmwrap watch` (adapter: squeue, the records, the jobs' files).

Each read calls squeue once, for all jobs. Queue and nodes are read for one forecast of all pending jobs, every two
minutes at most. The files of a few jobs are read in a thread of its own, with a limit of time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

from slurmwrap.cli.queue_class import read_queue_classes
from slurmwrap.cli.record_access import RecordSource, read_job_records
from slurmwrap.cli.watch.background_poll import BackgroundPoll
from slurmwrap.cli.watch.job_forecaster import JobForecaster
from slurmwrap.cli.watch.job_list import JobList, fold_jobs, make_entry, make_task_status
from slurmwrap.cli.watch.job_list_screen import LogPage
from slurmwrap.cli.watch.job_status import (
    MEMBERS_EVERY_S,
    JobStatus,
    OwnerFacts,
    WatchedPrerun,
    find_final_state,
    list_output_files,
    list_running_since,
    open_output,
    read_findings,
    select_findings,
)
from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_record import FINAL_STATES, JobRecord
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.running_job import EarlyFinding
from slurmwrap.model.submission import Submission
from slurmwrap.report.shared_run_text import describe_shared_run
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.pack_results import read_folded_array, read_members
from slurmwrap.store.shared_runs import read_shared_run

# The files of so many jobs are read each time: of those on the screen first, then of those read longest ago. A read of
# the list waits so long for them.
_MOST_READ, _WAIT_S = 50, 1.0
# A job whose files do not answer for so long is left out from then on, and another thread reads those of the others.
_HUNG_S, _MOST_HUNG = 30.0, 4
# gsub's record of a job may be written a while after the job is in the queue.
_RECORD_LATE_S = 600.0
# Ended jobs and tasks that Slurm has forgotten are kept, at most so many.
_MOST_KEPT = 20_000
# How many jobs that squeue lists no more are looked up each time.
_MOST_LOOKED_UP = 5
_LOG_BYTES = 64 * 1024

_Run = tuple[int, int, str]


class JobListReader:
    """Reads the jobs of the user of this process repeatedly."""

    def __init__(
        self,
        user: str,
        slurm: SlurmCommands,
        places: Sequence[RecordSource],
        config: Config,
        environ: Mapping[str, str],
    ) -> None:
        self._user, self._slurm, self._places = user, slurm, places
        self._config, self._environ, self._relaxes = config, environ, config.mode_of("relax") == "act"
        self._forecaster = JobForecaster(slurm, places[0], config)
        self._rows: dict[int, WatchedJob] = {}  # by raw job id, of the last read
        self._forgotten = 0
        self._submissions: dict[int, Submission] = {}
        self._asked_ids: set[int] = set()
        self._recalled: dict[str, dict[str, str]] = {}
        self._facts = _FactsReader(environ, self._forecaster)

    def look(self, visible: Sequence[str] = ()) -> JobList:
        """Return all jobs. `visible`: addresses whose files are read first. Raise SlurmError."""
        now = time.time()
        rows = self._remember(self._slurm.jobs_of(self._user))
        self._read_submissions(rows, now)
        statuses = [self._add_prerun(one, rows) for one in fold_jobs(rows.values(), now, self._submissions)]
        statuses = [self._recall_tasks(one) if one.array and not one.ended else one for one in statuses]
        statuses = self._add_forecasts(statuses, now)
        statuses = self._add_findings(statuses)
        self._forecaster.read_run_times([one.record for one in statuses if one.record.state == "RUNNING"])
        tasks = _list_visible_tasks(statuses, visible)
        read = self._facts.add([*statuses, *tasks], self._submissions, visible)
        statuses, tasks = read[: len(statuses)], read[len(statuses) :]
        by_array: dict[str, dict[str, JobStatus]] = {}
        for task in tasks:
            by_array.setdefault(task.address.partition("_")[0], {})[task.address] = task
        jobs = tuple(make_entry(one, by_array.get(one.address)) for one in statuses)
        return JobList(at=now, user=self._user, jobs=jobs, forgotten=self._forgotten)

    def get_named_logs(self, record: JobRecord) -> tuple[str, ...]:
        """Return the log files that a job's submission names."""
        submission = self._submissions.get(record.array_job_id or record.job_id)
        return tuple(submission.logs) if submission is not None else ()

    def _remember(self, rows: Sequence[WatchedJob]) -> dict[int, WatchedJob]:
        """Return the rows by raw job id, with those of ended jobs that Slurm has forgotten meanwhile (MinJobAge)."""
        found = {row.record.job_id: row for row in rows}
        gone = {job_id: row for job_id, row in self._rows.items() if job_id not in found}
        kept = {job_id: row for job_id, row in gone.items() if row.record.ended}
        for number, (job_id, row) in enumerate((j, r) for j, r in gone.items() if j not in kept):
            state = ""
            if number < _MOST_LOOKED_UP:
                state = find_final_state(row.record.address, self._places, self._config, self._environ)
            if state:
                kept[job_id] = replace(row, record=replace(row.record, state=state))
            self._forgotten += not state
        oldest = dict(list(kept.items())[-_MOST_KEPT:])
        self._rows = oldest | found
        return self._rows

    def _read_submissions(self, rows: Mapping[int, WatchedJob], now: float) -> None:
        ids = {row.record.array_job_id or job_id: row.record.submit_time for job_id, row in rows.items()}
        missing = [
            job_id
            for job_id, submitted in ids.items()
            if job_id not in self._submissions and (job_id not in self._asked_ids or now - submitted < _RECORD_LATE_S)
        ]
        self._asked_ids |= set(missing)
        if missing:
            self._submissions |= {
                job_id: one
                for job_id, one in self._forecaster.read_submissions(missing).items()
                if one.uid == os.geteuid() and job_id in ids and one.at <= ids[job_id] + _RECORD_LATE_S
            }

    def _add_prerun(self, status: JobStatus, rows: Mapping[int, WatchedJob]) -> JobStatus:
        """Add Slurm's record of the pre-run; its files are read with the others."""
        submission = self._submissions.get(int(status.address.partition("_")[0]))
        job_id = submission.prerun_job_id if submission is not None else None
        pack = submission.pack if submission is not None else None
        status = replace(status, relaxes=self._relaxes, pack=pack)
        return status if job_id is None else replace(status, trial=WatchedPrerun(job_id=job_id, row=rows.get(job_id)))

    def _recall_tasks(self, status: JobStatus) -> JobStatus:
        """Add the states of an array's tasks that Slurm had forgotten before the first read, from the records."""
        if status.address not in self._recalled:
            found: dict[str, str] = {}
            submitted = min(row.record.submit_time for row in status.rows)
            for place in self._places:
                with suppress(StoreError, OSError):
                    runs = read_job_records(place, status.address).attempts
                    runs = tuple(run for run in runs if run.uid == os.geteuid() and run.state in FINAL_STATES)
                    for run in sorted(runs, key=lambda one: one.attempt.submit_time):
                        if run.attempt.submit_time >= submitted:
                            found[run.address] = run.state
            self._recalled[status.address] = found
        here = {row.record.address for row in status.rows}
        gone = {address: state for address, state in self._recalled[status.address].items() if address not in here}
        return replace(status, gone=gone) if gone else status

    def _add_forecasts(self, statuses: list[JobStatus], now: float) -> list[JobStatus]:
        waiting = {one.address: one.waiting for one in statuses if one.waiting is not None}
        if not waiting:
            return statuses
        starts = self._forecaster.find_starts(tuple(waiting.values()), now)
        describe = read_queue_classes(self._config, now)
        found = []
        for one in statuses:
            row = waiting.get(one.address)
            if row is not None:
                asked = self._submissions.get(int(one.address))
                order = describe(row.record, asked)
                one = replace(one, start=starts.get(row.record.address), queue_order=order)
                if asked is not None and asked.share:
                    one = replace(one, shared=describe_shared_run(read_shared_run(asked.share), now))
            found.append(one)
        return found

    def _add_findings(self, statuses: list[JobStatus]) -> list[JobStatus]:
        known: Mapping[tuple[int, int], tuple[EarlyFinding, ...]] = {}
        since = list_running_since(row for one in statuses for row in one.rows)
        if since is not None:
            with suppress(SlurmwrapError, OSError):
                known = read_findings(self._places, self._slurm.cluster_name(), since)
        return [
            replace(one, findings=found) if (found := select_findings(one.rows, known)) else one for one in statuses
        ]


def _list_visible_tasks(statuses: Sequence[JobStatus], visible: Sequence[str]) -> list[JobStatus]:
    """Return the statuses of array tasks that are on the screen."""
    wanted = {address for address in visible if "_" in address}
    return [
        make_task_status(one, row)
        for one in statuses
        if wanted and one.array
        for row in one.rows
        if row.record.address in wanted
    ]


class _FactsReader:
    """Reads the files of the jobs (OwnerFacts) in a thread; what a job's files say is kept until they are read again.

    A file system that does not answer makes this older, and holds up nothing else.
    """

    def __init__(self, environ: Mapping[str, str], forecaster: JobForecaster) -> None:
        self._environ, self._forecaster = environ, forecaster
        self._readers: dict[str, OwnerFacts] = {}
        self._found: dict[str, tuple[_Run, JobStatus]] = {}
        self._read_at: dict[str, float] = {}
        self._hung: set[str] = set()
        self._members: dict[str, tuple[float, tuple[PackMember, ...]]] = {}  # directory -> when they were read
        self._reading = ""
        self._poll: BackgroundPoll[None] | None = None

    def add(
        self, statuses: list[JobStatus], submissions: Mapping[int, Submission], visible: Sequence[str]
    ) -> list[JobStatus]:
        """Return the statuses with what is known of their files, after a read of some of them."""
        if self._poll is not None and self._poll.busy_s > _HUNG_S and len(self._hung) < _MOST_HUNG:
            self._hung.add(self._reading)
            self._poll = None
        if self._poll is None or not self._poll.busy_s:
            chosen = self._choose(statuses, frozenset(visible))
            self._poll = BackgroundPoll(partial(self._read, chosen, submissions), 0.0)
            self._poll.poll()
        self._poll.wait(_WAIT_S)
        return [_merge_facts(one, self._found.get(one.address)) for one in statuses]

    def _choose(self, statuses: list[JobStatus], visible: frozenset[str]) -> list[JobStatus]:
        self._forget({one.address for one in statuses})
        wanted = [
            one
            for one in statuses
            if one.address not in self._hung
            and (
                (not one.ended and (one.address in visible or (one.record.state == "RUNNING" and not one.array)))
                or (one.pack is not None and not self._has_all_members(one.address))
            )
        ]
        wanted.sort(key=lambda one: (one.address not in visible, self._read_at.get(one.address, 0.0)))
        return wanted[:_MOST_READ]

    def _has_all_members(self, address: str) -> bool:
        """Return whether the members of a packed job were read after its end."""
        return address in self._found and self._found[address][1].ended

    def _forget(self, known: set[str]) -> None:
        for address in [one for one in self._read_at if one not in known]:
            for kept in (self._readers, self._found, self._read_at):
                kept.pop(address, None)

    def _read(self, statuses: list[JobStatus], submissions: Mapping[int, Submission]) -> None:
        hung = len(self._hung)
        for status in statuses:
            self._reading = status.address
            reader = self._readers.setdefault(status.address, OwnerFacts(self._environ, self._forecaster.find_run_time))
            self._read_at[status.address] = time.monotonic()
            row = status.trial.row if status.trial is not None else None
            found = reader.add(status, submissions.get(int(status.address.partition("_")[0])), row)
            # A thread that was given up must not go on while its successor runs.
            if len(self._hung) != hung:
                return
            # Its pre-run may have changed how many members a task has.
            pack = None if status.pack is None else read_folded_array(status.pack)
            found = replace(found, pack=pack, members=self._read_members(status))
            self._found[status.address] = (_get_run(status), found)

    def _read_members(self, status: JobStatus) -> tuple[PackMember, ...]:
        """Return the members of a packed array or of one of its tasks, as they were a few seconds ago at most."""
        if status.pack is None:
            return ()
        read_at, members = self._members.get(status.pack.directory, (-inf, ()))
        if status.ended or time.monotonic() - read_at >= MEMBERS_EVERY_S:
            members = read_members(status.pack)
            self._members[status.pack.directory] = (time.monotonic(), members)
        if "_" in status.address:
            return tuple(one for one in members if one.task == status.address)
        # A part of an array that gsub has split has the members of its own tasks.
        return tuple(one for one in members if one.task.partition("_")[0] == status.address)


def _get_run(status: JobStatus) -> _Run:
    return (status.record.job_id, status.record.submit_time, status.record.state)


def _merge_facts(status: JobStatus, known: tuple[_Run, JobStatus] | None) -> JobStatus:
    if known is None:
        return status
    found = known[1]
    status = replace(status, pack=found.pack or status.pack, members=found.members)
    if known[0] != _get_run(status):
        return status
    return replace(
        status,
        output=found.output,
        steps=found.steps,
        rates=found.rates,
        end=found.end,
        plan=found.plan,
        counts_steps=found.counts_steps,
        trial=found.trial or status.trial,
    )


def read_log_page(record: JobRecord, named: Sequence[str], file: int | None) -> LogPage:
    """Return the end of a job's output. `file`: place in its files, counted on from the last; None: the newest."""
    if record.uid != os.geteuid():
        return LogPage(note=f"job {record.address} is {record.user}'s: only its user can read its output here")
    paths = list_output_files(record, named)
    if file is None:
        file = max(range(len(paths)), key=lambda place: (_get_write_time(paths[place]), -place), default=0)
    place = file % len(paths) if paths else 0
    opened = open_output(paths[place]) if paths else None
    page = LogPage(address=record.address, path=paths[place] if paths else "", place=place, files=max(1, len(paths)))
    if opened is None:
        late = "it has not started" if record.pending else "it is not on this machine, no plain file, or not readable"
        return replace(page, note=f"there is no output: {late}")
    with opened:
        status = os.fstat(opened.fileno())
        opened.seek(max(0, status.st_size - _LOG_BYTES))
        text = opened.read(_LOG_BYTES).decode("utf-8", "replace")
    if status.st_size > _LOG_BYTES:
        # The first line is cut.
        text = text.partition("\n")[2] or text
    note = "" if text.strip() else "nothing was written yet"
    return replace(page, text=text, written_at=status.st_mtime, note=note)


def _get_write_time(path: str) -> float:
    try:
        return Path(path).lstat().st_mtime
    except (OSError, ValueError):
        return 0.0
