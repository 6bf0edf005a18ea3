"""Forecast the starts of pending jobs and the ends of running ones from run times of earlier jobs (adapter)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmwrapError
from slurmwrap.gsub.partition_user import find_partition_user
from slurmwrap.gsub.queue_run_times import QueueRunTimes, list_submitted_ids
from slurmwrap.model.cluster import Snapshot
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run_time import FROM_USER, RunTimeEstimate
from slurmwrap.model.submission import Submission
from slurmwrap.placement.expected_start import (
    ExpectedStart,
    find_expected_start,
    find_expected_starts,
    find_starts_in_partitions,
)
from slurmwrap.placement.partition_choice import find_earlier_partition, find_other_partitions
from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup, RunTimeHistory
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import list_trusted_uids, read_published
from slurmwrap.store.user_state_files import UserState

# The queue and the nodes are read again after this time, or when Slurm's forecast or the reason changes.
REFRESH_S = 120.0
# For a list of jobs that changes they are read again no earlier than this.
_SHORTEST_S = 30.0
# Other partitions for which a start is forecast.
_MOST_OTHERS = 4
# Reasons with which a job waits for the GPUs of other jobs.
_WAITS_FOR_GPUS = frozenset(("None", "Priority", "Resources"))


class JobForecaster:
    """Forecasts for one job that is watched, or for a list. What cannot be read is left out: forecasts are optional."""

    def __init__(self, slurm: SlurmCommands, place: RecordSource, config: Config) -> None:
        self._slurm, self._place, self._config = slurm, place, config
        self._start: ExpectedStart | None = None
        self._start_key: tuple[object, ...] = ()
        self._start_at = 0.0
        self._earlier: tuple[str, float] | None = None
        self._starts: Mapping[str, ExpectedStart] = {}
        self._run_times: dict[tuple[int, int], RunTimeEstimate | None] = {}

    def find_start(self, waiting: WatchedJob, now: float) -> ExpectedStart | None:
        """Return when a pending job is expected to start; None if only Slurm's own forecast is known."""
        record = waiting.record
        if not _waits_for_gpus(record):
            return None
        key = (record.job_id, record.reason, waiting.expected_start, record.priority)
        if key != self._start_key or now - self._start_at >= REFRESH_S:
            self._start_key, self._start_at, self._start, self._earlier = key, now, None, None
            with suppress(SlurmwrapError, OSError):
                snapshot, jobs = self._slurm.snapshot(), [one.record for one in self._slurm.queue()]
                known, nodes = self._read_run_times(jobs), snapshot.nodes
                self._start = find_expected_start(record, nodes, jobs, known.estimate, now, waiting.expected_start)
                current = self._start.at if self._start is not None else waiting.expected_start
                if current is not None and record.uid == os.geteuid():
                    self._earlier = self._find_earlier(record, current, snapshot, jobs, known, now)
        return self._start

    def find_earlier_partition(self, waiting: WatchedJob) -> tuple[str, float] | None:
        """Return a partition in which the job of find_start() would start materially earlier, and when; else None."""
        return self._earlier if _waits_for_gpus(waiting.record) else None

    def _find_earlier(
        self,
        record: JobRecord,
        current: float,
        snapshot: Snapshot,
        jobs: Sequence[JobRecord],
        known: QueueRunTimes,
        now: float,
    ) -> tuple[str, float] | None:
        user = find_partition_user(record.account, record.qos)
        others = find_other_partitions(record, snapshot, user, (self._config.prerun.partition,))
        if not others:
            return None
        starts = find_starts_in_partitions(record, others[:_MOST_OTHERS], snapshot.nodes, jobs, known.estimate, now)
        name = find_earlier_partition(current, starts, now)
        return (name, starts[name]) if name else None

    def find_starts(self, waiting: Sequence[WatchedJob], now: float) -> Mapping[str, ExpectedStart]:
        """Return when these pending jobs are expected to start, by address, from one forecast.

        A job of which only Slurm's own forecast is known is left out.
        """
        wanted = {w.record.address: w.expected_start for w in waiting if _waits_for_gpus(w.record)}
        key, age = tuple(sorted(wanted)), now - self._start_at
        if wanted and (age >= REFRESH_S or (key != self._start_key and age >= _SHORTEST_S)):
            self._start_key, self._start_at, self._starts = key, now, {}
            with suppress(SlurmwrapError, OSError):
                nodes, jobs = self._slurm.snapshot().nodes, [one.record for one in self._slurm.queue()]
                known = self._read_run_times(jobs)
                self._starts = find_expected_starts(wanted, nodes, jobs, known.estimate, now)
        return self._starts

    def find_run_time(self, record: JobRecord) -> RunTimeEstimate | None:
        """Return the expected run time of a job by its own earlier runs or its user's; None if there are none."""
        self.read_run_times([record])
        return self._run_times[record.job_id, record.submit_time]

    def read_run_times(self, records: Sequence[JobRecord]) -> None:
        """Read the expected run times of these jobs at once, so that find_run_time() need not read each of them."""
        runs = {(record.job_id, record.submit_time): record for record in records}
        new = {run: record for run, record in runs.items() if run not in self._run_times}
        if not new:
            return
        self._run_times |= dict.fromkeys(new)
        with suppress(SlurmwrapError, OSError):
            known = self._read_run_times(new.values())
            for run, record in new.items():
                found = known.estimate(record)
                if found is not None and (found.specific or found.source == FROM_USER):
                    self._run_times[run] = found

    def read_submissions(self, job_ids: Sequence[int]) -> dict[int, Submission]:
        """Return gsub's records of these jobs, by the submitted job id; {} if they cannot be read."""
        with suppress(SlurmwrapError, OSError):
            return _read_submissions(self._place, self._slurm.cluster_name(), list(job_ids))
        return {}

    def _read_run_times(self, jobs: Iterable[JobRecord]) -> QueueRunTimes:
        config, place, cluster = self._config, self._place, self._slurm.cluster_name()
        directory = config.site.published
        published = read_published(directory, list_trusted_uids(config)) if directory else None
        uid = None if place.site else place.uid
        return QueueRunTimes(
            cluster=cluster,
            published=published.run_times if published is not None else "",
            history=RunTimeHistory(read=lambda group: _read_runs(place, cluster, group)),
            uid=uid,
            submissions=_read_submissions(place, cluster, list_submitted_ids(jobs, uid)),
        )


def _waits_for_gpus(record: JobRecord) -> bool:
    return record.reason in _WAITS_FOR_GPUS and bool(record.gpus) and not record.het_job_id


def _read_runs(place: RecordSource, cluster: str, group: RunTimeGroup) -> GroupRuns:
    if not place.database.exists():
        return ()
    with Database.open(place.database, readonly=True) as database:
        return database.run_times(cluster, group)


def _read_submissions(place: RecordSource, cluster: str, job_ids: list[int]) -> dict[int, Submission]:
    if not place.site:
        return UserState(place.database.parent).submissions_of(cluster, job_ids)
    with Database.open(place.database, readonly=True) as database:
        found = [one for job_id in job_ids for one in database.submissions_of(job_id) if one.cluster == cluster]
    return {one.job_id: one for one in sorted(found, key=lambda one: one.at)}
