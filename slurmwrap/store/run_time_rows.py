"""SQL and conversion of RunTimeRecord: the table `run_times` of a user's or the site's database.

It is not one of record_rows.py's tables: names are stored as numbers (table `names`), so that its four covering indexes
stay small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from slurmwrap.model.run_time import RunTimeSample
from slurmwrap.profiling.job_key import limit_length
from slurmwrap.profiling.run_time import KEPT_RUNS, RunTimeGroup, RunTimeQuery
from slurmwrap.store.sql_text import dump, encode_sql_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurmwrap.profiling.run_time import RunTimeRecord

ADD_NAME = "INSERT INTO names (name) SELECT :name WHERE NOT EXISTS (SELECT 1 FROM names WHERE name = :name)"
# Not the run of a pre-run: it says how long the pre-run was allowed to take.
ADD_RUN_TIME = """INSERT OR IGNORE INTO run_times
    SELECT (SELECT id FROM names WHERE name = :cluster), :job_id, :submit_time, :uid, :key, :variant, :length, :gpus,
    (SELECT id FROM names WHERE name = :account), (SELECT id FROM names WHERE name = :partition), :end_time, :run_s,
    :complete
    WHERE NOT EXISTS (SELECT 1 FROM preruns WHERE cluster = :cluster AND prerun_job_id = :job_id)
    AND NOT EXISTS (SELECT 1 FROM submissions WHERE prerun_job_id = :job_id AND cluster = :cluster)"""
_CLUSTER = "cluster = (SELECT id FROM names WHERE name = ?)"
_NEWEST = f"ORDER BY end_time DESC LIMIT {KEPT_RUNS}"
# Kind of group -> its newest runs, newest first, each answered by one index alone.
_OF_GROUP = {
    "user": f"SELECT run_s, complete, submit_time FROM run_times WHERE uid = ? AND gpus = ? AND {_CLUSTER} {_NEWEST}",
    "account": f"""SELECT run_s, complete, submit_time FROM run_times
        WHERE account = (SELECT id FROM names WHERE name = ?) AND gpus = ? AND {_CLUSTER} {_NEWEST}""",
    "partition": f"""SELECT run_s, complete, submit_time FROM run_times
        WHERE partition = (SELECT id FROM names WHERE name = ?) AND gpus = ? AND {_CLUSTER} {_NEWEST}""",
    "key": f"""SELECT run_s, complete, submit_time, variant, length FROM run_times
        WHERE uid = ? AND key = ? AND key <> '' AND {_CLUSTER} {_NEWEST}""",
}

JOBS = """SELECT r.uid, r.key, r.variant, r.length, r.gpus, a.name AS account, p.name AS partition,
    max(r.end_time) AS end_time
    FROM run_times r JOIN names a ON a.id = r.account JOIN names p ON p.id = r.partition
    WHERE r.cluster = (SELECT id FROM names WHERE name = :cluster)
    GROUP BY r.uid, r.key, r.variant, r.length, r.gpus, r.account, r.partition ORDER BY end_time DESC LIMIT :limit"""


def row_from_run_time(record: RunTimeRecord) -> dict[str, Any]:
    """Return the values of ADD_RUN_TIME."""
    job, attempt = record.job, record.attempt
    texts = {"cluster": attempt.cluster, "key": job.key, "variant": job.variant, "length": dump(job.length)}
    texts |= {"account": job.account, "partition": job.partition}
    return {name: encode_sql_text(text) for name, text in texts.items()} | {
        "job_id": attempt.job_id,
        "submit_time": attempt.submit_time,
        "uid": record.uid,
        "gpus": job.gpus,
        "end_time": record.end_time,
        "run_s": record.sample.run_s,
        "complete": int(record.sample.complete),
    }


def job_from_row(row: dict[str, Any]) -> tuple[RunTimeQuery, int]:
    """Return a job of JOBS and the end of its last run."""
    job = RunTimeQuery(
        user=str(row["uid"]),
        key=_decode(row["key"]),
        variant=_decode(row["variant"]),
        length=_read_length(row["length"]),
        gpus=row["gpus"],
        account=_decode(row["account"]),
        partition=_decode(row["partition"]),
    )
    return job, row["end_time"]


def make_group_query(cluster: str, group: RunTimeGroup) -> tuple[str, list[Any]]:
    """Return SQL, and its values, for the newest KEPT_RUNS runs of a group (profiling.run_time.list_groups)."""
    kind, name, number = group
    first: str | int = int(name) if kind in ("user", "key") else name
    return _OF_GROUP[kind], [encode_sql_text(one) if isinstance(one, str) else one for one in (first, number, cluster)]


def run_times_from_rows(
    group: RunTimeGroup, newest_first: list[dict[str, Any]]
) -> Iterator[tuple[RunTimeQuery, RunTimeSample]]:
    """Yield the runs of a group, oldest first. Only those of a key have variant and length options."""
    user, key = (group[1], str(group[2])) if group[0] == "key" else ("", "")
    known: dict[tuple[str, str], RunTimeQuery] = {}
    for row in reversed(newest_first):
        mark = (row.get("variant", ""), row.get("length", ""))
        job = known.get(mark)
        if job is None:
            job = known[mark] = RunTimeQuery(user=user, key=key, variant=_decode(mark[0]), length=_read_length(mark[1]))
        sample = RunTimeSample(
            run_s=float(row["run_s"]), complete=bool(row["complete"]), submit_s=float(row["submit_time"])
        )
        yield job, sample


def _read_length(text: str | bytes) -> tuple[tuple[str, str], ...]:
    return limit_length(json.loads(text)) if len(text) > len("[]") else ()


def _decode(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
