"""Edge: what a list of jobs shows of each of them, read for hundreds of jobs in one statement; of a run what
queries.py names."""

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

_AT_ONCE = 500  # jobs of one statement
# CROSS: by key, job after job, whatever SQLite guesses of the table.
_KEYS = "json_each(?) AS k CROSS JOIN"
_IS_KEY = "{0}.cluster = json_extract(k.value, '$[0]') AND {0}.job_id = json_extract(k.value, '$[1]')"
_RUNS = f"""SELECT {COLUMNS}, instr(a.more, '"planned"') AS has_plan
    FROM {_KEYS} attempts a ON {_IS_KEY.format("a")} ORDER BY a.submit_time"""
_ASKED = f"""SELECT s.cluster, s.job_id, s.at, s.uid, s.user, s.retry
    FROM {_KEYS} submissions s ON {_IS_KEY.format("s")} ORDER BY s.at"""
Key = tuple[str, int]  # (cluster, raw job id)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One job: all its runs, oldest first, what is still to be done of the last one, and its submission. Of runs and
    submission only what a list shows is filled in."""

    runs: tuple[JobRun, ...]
    to_do: tuple[ActionRecord, ...] = ()
    submission: Submission | None = None


def summarize_jobs(database: Database, keys: Sequence[Key]) -> Iterator[JobSummary]:
    """Of these jobs, in their order; a job of which no run is known is left out. StoreError."""
    open_actions: dict[RunKey | None, list[ActionRecord]] = defaultdict(list)
    # Few: they have an index of their own.
    for action in database.actions(unfinished=True) if keys else ():
        open_actions[action.attempt].append(action)
    for start in range(0, len(keys), _AT_ONCE):
        runs = _read_runs(database, keys[start : start + _AT_ONCE])
        asked = _read_submissions(database, [_make_submitted_key(several[-1]) for several in runs.values()])
        for several in runs.values():
            last = several[-1]
            to_do = tuple(open_actions.get(last.attempt, ()))
            yield JobSummary(runs=tuple(several), to_do=to_do, submission=asked.get(_make_submitted_key(last)))


def _read_runs(database: Database, keys: Sequence[Key]) -> dict[Key, list[JobRun]]:
    found: dict[Key, list[JobRun]] = {key: [] for key in keys}
    planned = set()
    for row in database._rows(_RUNS, [json.dumps(keys)]):
        key = row["cluster"], row["job_id"]
        found[key].append(make_listed_run(row))
        if row["has_plan"]:
            planned.add(key)
    # Decided and not written as intended yet: a few at any moment.
    for cluster, job_id in planned:
        found[cluster, job_id] = list(database.attempts(cluster=cluster, job_id=job_id))
    return {key: runs for key, runs in found.items() if runs}


def _read_submissions(database: Database, keys: Sequence[Key]) -> dict[Key, Submission]:
    """The newest of each id."""
    rows = database._rows(_ASKED, [json.dumps(list(dict.fromkeys(keys)))])
    return {
        (row["cluster"], row["job_id"]): Submission(
            cluster=row["cluster"], job_id=row["job_id"], uid=row["uid"], user=decode_text(row["user"]), at=row["at"],
            retry=bool(row["retry"]),
        )
        for row in rows
    }  # fmt: skip


def _make_submitted_key(run: JobRun) -> Key:
    return run.attempt.cluster, submitted_id(run)
