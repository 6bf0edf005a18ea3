"""Select the runs and jobs that a list shows: by SQL in the site's database, by reading everything in a user's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

from slurmwrap.cli.list_options import user_name
from slurmwrap.cli.member_runs import split_packed_runs
from slurmwrap.cli.record_access import JobRecords, RecordSource, read_period_records
from slurmwrap.config.load_config import Config
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.run_filter import RunFilter, matches, moment_of
from slurmwrap.policy.run_from_slurm import submitted_id
from slurmwrap.report.job_report.timeline import failed, has_never_run, list_stopped_jobs
from slurmwrap.report.job_rows import JobRow, make_job_row, make_waiting_row
from slurmwrap.store import list_queries
from slurmwrap.store.database import Database
from slurmwrap.store.job_summary import Key, summarize_jobs
from slurmwrap.store.list_queries import Sums

# (cluster, job id) -> (job name, user), as gsub recorded them.
_Names = Mapping[tuple[str, int], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRuns:
    """The newest runs first. `sums` count every run that matches; `stopped` are jobs that their pre-run stopped."""

    # Read from the database while it is iterated over.
    runs: Iterable[JobRun] = ()
    stopped: tuple[PrerunRecord, ...] = ()
    names: _Names = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    stopped_in_all: int = 0
    notes: tuple[str, ...] = ()


@contextmanager
def open_run_selection(
    source: RecordSource, config: Config, run_filter: RunFilter, limit: int | None, *, as_listed: bool = False
) -> Iterator[FoundRuns]:
    """Yield the newest `limit` runs, and as many jobs that a pre-run stopped; None: all.

    `as_listed`: read only the parts of a run that a list shows, where that is less. Raise StoreError.
    """
    if not source.site:
        yield _select_runs(_read_own_records(source, config, run_filter), run_filter, limit)
        return
    with Database.open(source.database, readonly=True) as database:
        yield _select_site_runs(database, run_filter, limit, as_listed)


def _read_own_records(source: RecordSource, config: Config, run_filter: RunFilter) -> JobRecords:
    """Return a user's own records, with the members of packed arrays."""
    return split_packed_runs(read_period_records(source, run_filter.since or 0.0), source, config)


def find_last_failure_records(
    source: RecordSource, config: Config, since: float, clusters: tuple[str, ...] = ()
) -> FoundRuns:
    """Return the newest failed run and the newest failed pre-run since then (Unix seconds)."""
    run_filter = RunFilter(since=since, failed=True, clusters=clusters)
    with open_run_selection(source, config, run_filter, 1) as found:
        return replace(found, runs=tuple(found.runs))


def _select_site_runs(database: Database, run_filter: RunFilter, limit: int | None, as_listed: bool) -> FoundRuns:
    stopped, in_all, names = _find_stopped_jobs(database, run_filter, limit)
    return FoundRuns(
        runs=list_queries.iterate_runs(database, run_filter, limit=limit, as_listed=as_listed),
        stopped=stopped,
        names=names,
        sums=list_queries.sum_runs(database, run_filter),
        stopped_in_all=in_all,
    )


def _find_stopped_jobs(
    database: Database, run_filter: RunFilter, limit: int | None
) -> tuple[tuple[PrerunRecord, ...], int, _Names]:
    """Return the newest jobs that a pre-run stopped, how many there are, and their names."""
    if _has_run_only_criteria(run_filter):
        return (), 0, {}
    uids = [uid for name in run_filter.users for uid in list_queries.find_uids(database, name)]
    if run_filter.users and not uids:
        return (), 0, {}
    stopped = list_queries.find_failed_preruns(database, run_filter, uids, limit=None if run_filter.names else limit)
    found = [database.submissions_of(record.prerun_job_id) for record in stopped]
    names = {(s.cluster, s.job_id): (s.name, s.user) for several in found for s in several}
    mine = tuple(record for record in stopped if _is_wanted(record, names, run_filter))
    in_all = len(mine) if run_filter.names else list_queries.count_failed_preruns(database, run_filter, uids)
    return mine[:limit], in_all, names


def _has_run_only_criteria(run_filter: RunFilter) -> bool:
    """Whether a filter matches runs only: a job that never began has no account, partition, node or state of a run."""
    return bool(
        run_filter.accounts or run_filter.partitions or run_filter.decisions or run_filter.states or run_filter.nodes
    )


def _select_runs(records: JobRecords, run_filter: RunFilter, limit: int | None) -> FoundRuns:
    # Pre-runs are Slurm jobs of their own, and a job that its pre-run stopped has a record although it never ran.
    # Neither counts as a run.
    trials = {(s.cluster, s.prerun_job_id) for s in records.submissions}
    trials |= {(p.cluster, p.prerun_job_id) for p in records.preruns}
    ended_early = list_stopped_jobs(records.preruns)
    runs = [run for run in records.attempts if matches(run_filter, run) and not has_never_run(run, ended_early)]
    runs = [run for run in runs if (run.attempt.cluster, run.attempt.job_id) not in trials]
    names = {(s.cluster, s.job_id): (s.name, s.user) for s in records.submissions}
    stopped = [p for p in records.preruns if p.verdict.outcome is Outcome.FAIL and _is_wanted(p, names, run_filter)]
    return FoundRuns(
        runs=tuple(sorted(runs, key=moment_of, reverse=True))[:limit],
        stopped=tuple(sorted(stopped, key=lambda p: p.at, reverse=True))[:limit],
        names=names,
        sums=sum_run_records(runs),
        stopped_in_all=len(stopped),
        notes=records.notes,
    )


def sum_run_records(runs: Sequence[JobRun]) -> Sums:
    """Return the sums of records, as list_queries.sum_runs does for a database."""
    lost = [run for run in runs if failed(run)]
    return Sums(
        runs=len(runs),
        failed=len(lost),
        gpu_hours=sum(run.gpu_hours for run in runs),
        failed_gpu_hours=sum(run.gpu_hours for run in lost),
    )


def drop_runs(found: FoundRuns) -> FoundRuns:
    """Return the result without its runs."""
    return replace(found, runs=(), sums=Sums())


def _is_wanted(record: PrerunRecord, names: _Names, run_filter: RunFilter) -> bool:
    if _has_run_only_criteria(run_filter):
        return False
    name, user = names.get((record.cluster, record.job_id or 0), ("", ""))
    return (
        (not run_filter.clusters or record.cluster in run_filter.clusters)
        and (run_filter.since is None or record.at >= run_filter.since)
        and (run_filter.until is None or record.at < run_filter.until)
        and (not run_filter.users or (user or user_name(record.uid)) in run_filter.users)
        and (not run_filter.categories or record.verdict.category in run_filter.categories)
        and (not run_filter.names or any(fnmatchcase(name, pattern) for pattern in run_filter.names))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The newest jobs first; `in_all` also counts those that were left out."""

    rows: tuple[JobRow, ...] = ()
    in_all: int = 0
    notes: tuple[str, ...] = ()


def find_jobs(
    source: RecordSource, config: Config, run_filter: RunFilter, limit: int | None, *, to_do: bool = False
) -> Jobs:
    """Return the newest `limit` jobs of which a run matches the filter; None: all. Raise StoreError."""
    if source.site:
        with Database.open(source.database, readonly=True) as database:
            return _find_site_jobs(database, run_filter, limit, to_do)
    known = _read_own_records(source, config, run_filter)
    rows = _make_user_rows(known, run_filter)
    rows = [row for row in rows if row.to_do] if to_do else rows
    return Jobs(rows=tuple(rows[:limit]), in_all=len(rows), notes=known.notes)


def _find_site_jobs(database: Database, run_filter: RunFilter, limit: int | None, to_do: bool) -> Jobs:
    # Runs that are not reconciled are few and have an index, so they are filtered here and not by SQL.
    if to_do:
        runs = [run for run in database.attempts(unreconciled=True) if matches(run_filter, run)]
        keys = tuple(dict.fromkeys((run.attempt.cluster, run.attempt.job_id) for run in runs))
        rows = [row for row in _make_summary_rows(database, keys) if row.to_do]
        rows.sort(key=lambda row: row.at, reverse=True)
        return Jobs(rows=tuple(rows[:limit]), in_all=len(rows))
    rows = _make_summary_rows(database, list_queries.find_jobs(database, run_filter, limit=limit))
    in_all = list_queries.count_jobs(database, run_filter) if limit is not None else len(rows)
    if not _needs_a_run(run_filter):
        waiting = list_queries.find_waiting_submissions(
            database,
            since=run_filter.since or 0.0,
            until=run_filter.until,
            users=run_filter.users,
            limit=limit,
            clusters=run_filter.clusters,
        )
        rows += [make_waiting_row(one) for one in waiting]
        in_all += len(waiting)
    rows.sort(key=lambda row: row.at, reverse=True)
    return Jobs(rows=tuple(rows[:limit]), in_all=in_all)


def _make_summary_rows(database: Database, keys: Sequence[Key]) -> list[JobRow]:
    return [make_job_row(one.runs, one.to_do, one.submission) for one in summarize_jobs(database, keys)]


def _make_user_rows(records: JobRecords, run_filter: RunFilter) -> list[JobRow]:
    meant = _select_runs(records, run_filter, None).runs
    keys = dict.fromkeys(map(_make_job_key, meant))
    asked = {(s.cluster, s.job_id): s for s in sorted(records.submissions, key=lambda s: s.at)}
    of_jobs: dict[tuple[str, int, str], list[JobRun]] = {}
    for run in records.attempts:
        of_jobs.setdefault(_make_job_key(run), []).append(run)
    rows = []
    for key in keys:
        runs = of_jobs[key]
        last = max(runs, key=lambda run: run.attempt.submit_time)
        actions = [action for action in records.actions if action.attempt == last.attempt]
        rows.append(make_job_row(runs, actions, asked.get((key[0], submitted_id(last)))))
    if not _needs_a_run(run_filter):
        ran = {(run.attempt.cluster, submitted_id(run)) for run in records.attempts}
        rows += [make_waiting_row(s) for key, s in asked.items() if key not in ran and _is_of_time(s, run_filter)]
    return sorted(rows, key=lambda row: row.at, reverse=True)


def _make_job_key(run: JobRun) -> tuple[str, int, str]:
    """Return what the runs of one job have in common. Members of a packed array share the id of their task."""
    return run.attempt.cluster, run.attempt.job_id, "" if run.gpu_s is None else run.address


def _is_of_time(submission: Submission, run_filter: RunFilter) -> bool:
    if run_filter.clusters and submission.cluster not in run_filter.clusters:
        return False
    late = run_filter.since is None or submission.at >= run_filter.since
    named = not run_filter.users or submission.user in run_filter.users
    return late and named and (run_filter.until is None or submission.at < run_filter.until)


def _needs_a_run(run_filter: RunFilter) -> bool:
    """Whether only jobs that have run can match the filter."""
    return bool(run_filter.failed or run_filter.categories or run_filter.names) or _has_run_only_criteria(run_filter)
