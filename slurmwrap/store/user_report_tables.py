"""Edge: the part of the database that users report: submissions, pre-runs, profiles."""

from __future__ import annotations

from typing import NamedTuple

from slurmwrap.model.job_run import LedgerReset, PrerunRecord
from slurmwrap.model.resource_profile import Measurement, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.store import record_rows
from slurmwrap.store.list_queries import list_clusters
from slurmwrap.store.record_rows import dump, encode_sql_text
from slurmwrap.store.serialize import to_json_dict
from slurmwrap.store.sqlite_session import Session

_UNSEEN = """
SELECT job_id FROM submissions s WHERE cluster = :cluster AND at >= :since
AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = s.cluster AND a.job_id = s.job_id)
GROUP BY job_id ORDER BY max(at)
"""


def make_cluster_condition(session: Session, *also: str) -> tuple[str, list[str]]:
    """A condition with its values that primary keys answer, for who knows a job's id alone: they begin with the
    cluster. There are few clusters. `also`: tables that may know one which no run is known of."""
    names = list(list_clusters(session, *also))
    return f"cluster IN ({', '.join('?' * len(names))})", names


class ProfileUse(NamedTuple):
    """Who used a profile's key last, by their submissions: `script` is a path, or a name where it came from stdin."""

    # As its user names it.
    key: str
    uid: int
    script: str
    last_at: float  # Unix seconds
    times: int


_USES = """
SELECT profile_key, uid, CASE script_path WHEN '' THEN name ELSE script_path END AS script, max(at) AS at, count(*) AS n
FROM submissions WHERE profile_key <> '' GROUP BY profile_key, uid
"""


class UserReportTables(Session):
    """What users say of their own jobs, and what was made of it."""

    def save_submission(self, submission: Submission) -> None:
        """Inserts or replaces by (cluster, job_id, at)."""
        self._upsert(record_rows.SUBMISSIONS, submission)

    def submission(self, cluster: str, job_id: int) -> Submission | None:
        """The newest of this job id."""
        found = self._select(record_rows.SUBMISSIONS, {"cluster = ?": cluster, "job_id = ?": job_id}, order="at")
        return found[-1] if found else None

    def submissions(self, *, since: float | None = None, user: str | None = None) -> tuple[Submission, ...]:
        """Oldest first."""
        return self._select(record_rows.SUBMISSIONS, {"at >= ?": since, "user = ?": user}, order="at, cluster, job_id")

    def unseen(self, cluster: str, since: float) -> tuple[int, ...]:
        """Ids of the jobs submitted at or after `since` of which no run is known; oldest first."""
        rows = self._rows(_UNSEEN, {"cluster": encode_sql_text(cluster), "since": since})
        return tuple(row["job_id"] for row in rows)

    def submissions_of(self, job_id: int) -> tuple[Submission, ...]:
        """Those of a job or of its pre-run's job; oldest first."""
        known, names = make_cluster_condition(self)
        sql = f"""SELECT * FROM submissions WHERE {known} AND job_id = ?
            UNION SELECT * FROM submissions WHERE prerun_job_id = ? ORDER BY at, cluster, job_id"""
        return self._read(record_rows.SUBMISSIONS, sql, [*names, job_id, job_id])

    def preruns_of(self, job_id: int) -> tuple[PrerunRecord, ...]:
        """Those of a job, or the one that ran as this job; oldest first."""
        known, names = make_cluster_condition(self)
        sql = f"""SELECT * FROM preruns WHERE {known} AND prerun_job_id = ?
            UNION SELECT * FROM preruns WHERE job_id = ? ORDER BY at, cluster, prerun_job_id"""
        return self._read(record_rows.PRERUNS, sql, [*names, job_id, job_id])

    def save_prerun(self, record: PrerunRecord) -> None:
        """Inserts or replaces by (cluster, prerun_job_id, at)."""
        self._upsert(record_rows.PRERUNS, record)

    def preruns(
        self, *, job_id: int | None = None, fingerprint: str | None = None, since: float | None = None
    ) -> tuple[PrerunRecord, ...]:
        """Oldest first."""
        where = {"job_id = ?": job_id, "fingerprint = ?": fingerprint, "at >= ?": since}
        return self._select(record_rows.PRERUNS, where, order="at, cluster, prerun_job_id")

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""
        found = self._select(record_rows.PROFILES, {"key = ?": key})
        return found[0] if found else None

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """All of them, by key."""
        return self._select(record_rows.PROFILES, {}, order="key")

    def save_profile(self, profile: ResourceProfile) -> None:
        """Inserts or replaces."""
        self._upsert(record_rows.PROFILES, profile)

    def profile_uses(self) -> tuple[ProfileUse, ...]:
        """The keys that submissions name, each with its newest script; in no order."""
        return tuple(
            ProfileUse(row["profile_key"], row["uid"], row["script"], float(row["at"]), row["n"])
            for row in self._rows(_USES, {})
        )

    def forget_profile(self, key: str) -> bool:
        """Removes it with the measurements it was made of; False when there was none."""
        where = {"key": encode_sql_text(key)}
        with self.transaction():
            self._write("DELETE FROM measurements WHERE key = :key", where)
            return self._write("DELETE FROM profiles WHERE key = :key", where)

    def save_measurement(self, key: str, measurement: Measurement, at: float, source: str) -> None:
        """Keeps a raw measurement next to the profile it went into; the same one twice is kept once."""
        row = {"key": encode_sql_text(key), "at": at, "source": source, "measurement": dump(to_json_dict(measurement))}
        self._write("INSERT OR IGNORE INTO measurements VALUES (:key, :at, :source, :measurement)", row)

    def add_reset(self, reset: LedgerReset) -> None:
        """What this job failed of up to then counts no more against its retries; the same one twice is one."""
        self._upsert(record_rows.LEDGER_RESETS, reset)

    def resets(self, job_id: int) -> tuple[LedgerReset, ...]:
        """Of one raw job id, oldest first. A file of an older version has none."""
        # Opened to read: not migrated.
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'budget_resets'"):
            return ()
        return self._select(record_rows.LEDGER_RESETS, {"job_id = ?": job_id}, order="at")
