"""Edge: the half of the database that users report: submissions, pre-runs, profiles. `Database` adds the other half."""

from __future__ import annotations

from slurmwrap.job.measurement import Measurement
from slurmwrap.profiling.profile import ResourceProfile
from slurmwrap.retry.attempt import PrerunRecord
from slurmwrap.retry.submission import Submission
from slurmwrap.store import schema
from slurmwrap.store.plain import to_plain
from slurmwrap.store.schema import dump, sql_text
from slurmwrap.store.session import Session

_UNSEEN = """
SELECT job_id FROM submissions s WHERE cluster = :cluster AND at >= :since
AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.cluster = s.cluster AND a.job_id = s.job_id)
GROUP BY job_id ORDER BY max(at)
"""


class Reports(Session):
    """What users say of their own jobs, and what was made of it."""

    def save_submission(self, submission: Submission) -> None:
        """Inserts or replaces by (cluster, job_id, at)."""
        self._upsert(schema.SUBMISSIONS, submission)

    def submission(self, cluster: str, job_id: int) -> Submission | None:
        """The newest of this job id."""
        found = self._select(schema.SUBMISSIONS, {"cluster = ?": cluster, "job_id = ?": job_id}, order="at")
        return found[-1] if found else None

    def submissions(self, *, since: float | None = None, user: str | None = None) -> tuple[Submission, ...]:
        """Oldest first."""
        return self._select(schema.SUBMISSIONS, {"at >= ?": since, "user = ?": user}, order="at, cluster, job_id")

    def unseen(self, cluster: str, since: float) -> tuple[int, ...]:
        """Ids of the jobs submitted at or after `since` of which no run is known; oldest first."""
        rows = self._rows(_UNSEEN, {"cluster": sql_text(cluster), "since": since})
        return tuple(row["job_id"] for row in rows)

    def submissions_of(self, job_id: int) -> tuple[Submission, ...]:
        """Those of a job or of its pre-run's job; oldest first."""
        return self._select(schema.SUBMISSIONS, {"? IN (job_id, prerun_job_id)": job_id}, order="at, cluster, job_id")

    def preruns_of(self, job_id: int) -> tuple[PrerunRecord, ...]:
        """Those of a job, or the one that ran as this job; oldest first."""
        return self._select(
            schema.PRERUNS, {"? IN (job_id, prerun_job_id)": job_id}, order="at, cluster, prerun_job_id"
        )

    def save_prerun(self, record: PrerunRecord) -> None:
        """Inserts or replaces by (cluster, prerun_job_id, at)."""
        self._upsert(schema.PRERUNS, record)

    def preruns(
        self, *, job_id: int | None = None, fingerprint: str | None = None, since: float | None = None
    ) -> tuple[PrerunRecord, ...]:
        """Oldest first."""
        where = {"job_id = ?": job_id, "fingerprint = ?": fingerprint, "at >= ?": since}
        return self._select(schema.PRERUNS, where, order="at, cluster, prerun_job_id")

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""
        found = self._select(schema.PROFILES, {"key = ?": key})
        return found[0] if found else None

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """All of them, by key."""
        return self._select(schema.PROFILES, {}, order="key")

    def save_profile(self, profile: ResourceProfile) -> None:
        """Inserts or replaces."""
        self._upsert(schema.PROFILES, profile)

    def forget_profile(self, key: str) -> bool:
        """Removes it with the measurements it was made of; False when there was none."""
        where = {"key": sql_text(key)}
        with self.transaction():
            self._write("DELETE FROM measurements WHERE key = :key", where)
            return self._write("DELETE FROM profiles WHERE key = :key", where)

    def save_measurement(self, key: str, measurement: Measurement, at: float, source: str) -> None:
        """Keeps a raw measurement beside the profile it went into; the same one twice is kept once."""
        row = {"key": sql_text(key), "at": at, "source": source, "measurement": dump(to_plain(measurement))}
        self._write("INSERT OR IGNORE INTO measurements VALUES (:key, :at, :source, :measurement)", row)
