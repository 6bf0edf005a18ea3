"""Read what a list of jobs shows of each job, for hundreds of jobs in one statement (adapter).

Of each run only the columns that list_queries.py names are read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import ActionRecord, JobRun
from slurmwrap.model.submission import Submission
from slurmwrap.policy.run_from_slurm import submitted_id
from slurmwrap.store.database import Database
from slurmwrap.store.list_queries import COLUMNS, decode_text, make_listed_run

_JOBS_PER_STATEMENT = 500  # jobs per statement
# CROSS JOIN makes SQLite look up the jobs one by one by key, whatever its statistics of the table say.
_KEYS = "json_each(?) AS k CROSS JOIN"
_IS_KEY = "{0}.cluster = json_extract(k.value, '$[0]') AND {0}.job_id = json_extract(k.value, '$[1]')"
_RUNS_SQL = f"""SELECT {COLUMNS}, instr(a.more, '"planned"') AS has_plan
    FROM {_KEYS} attempts a ON {_IS_KEY.format("a")} ORDER BY a.submit_time"""
_SUBMISSIONS_SQL = f"""SELECT s.cluster, s.job_id, s.at, s.uid, s.user, s.retry
    FROM {_KEYS} submissions s ON {_IS_KEY.format("s")} ORDER BY s.at"""
Key = tuple[str, int]  # (cluster, raw job id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job: all its runs, oldest first, the unfinished actions of the last run, and its submission.

    Runs and submission contain only the fields that a list shows.
    """

    runs: tuple[JobRun, ...]
    to_do: tuple[ActionRecord, ...] = ()
    submission: Submission | None = None


def summarize_jobs(database: Database, keys: Sequence[Key]) -> Iterator[JobSummary]:
    """Yield the summaries of these jobs in their order, without jobs that have no stored run. Raises StoreError."""
    open_actions: dict[RunKey | None, list[ActionRecord]] = defaultdict(list)
    # There are few unfinished actions, and an index finds them.
    for action in database.actions(unfinished=True) if keys else ():
        open_actions[action.attempt].append(action)
    for start in range(0, len(keys), _JOBS_PER_STATEMENT):
        runs = _read_runs(database, keys[start : start + _JOBS_PER_STATEMENT])
        submissions = _read_submissions(
            database, [_make_submitted_key(runs_of_job[-1]) for runs_of_job in runs.values()]
        )
        for runs_of_job in runs.values():
            last = runs_of_job[-1]
            to_do = tuple(open_actions.get(last.attempt, ()))
            yield JobSummary(
                runs=tuple(runs_of_job), to_do=to_do, submission=submissions.get(_make_submitted_key(last))
            )


def _read_runs(database: Database, keys: Sequence[Key]) -> dict[Key, list[JobRun]]:
    found: dict[Key, list[JobRun]] = {key: [] for key in keys}
    planned = set()
    for row in database._rows(_RUNS_SQL, [json.dumps(keys)]):
        key = row["cluster"], row["job_id"]
        found[key].append(make_listed_run(row))
        if row["has_plan"]:
            planned.add(key)
    # Plans that were decided but not stored as intended yet; at any moment there are only a few.
    for cluster, job_id in planned:
        found[cluster, job_id] = list(database.attempts(cluster=cluster, job_id=job_id))
    return {key: runs for key, runs in found.items() if runs}


def _read_submissions(database: Database, keys: Sequence[Key]) -> dict[Key, Submission]:
    """Return the newest submission of each id."""
    rows = database._rows(_SUBMISSIONS_SQL, [json.dumps(list(dict.fromkeys(keys)))])
    return {
        (row["cluster"], row["job_id"]): Submission(
            cluster=row["cluster"], job_id=row["job_id"], uid=row["uid"], user=decode_text(row["user"]), at=row["at"],
            retry=bool(row["retry"]),
        )
        for row in rows
    }  # fmt: skip


def _make_submitted_key(run: JobRun) -> Key:
    return run.attempt.cluster, submitted_id(run)
