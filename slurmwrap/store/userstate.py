"""Edge: the user's own state as gsub's fast path reads it. Standard library only; never writes the database.

What a pre-run wrote to the spool counts at once, before a reconcile has taken it into the database.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slurmwrap.diagnosis.evidence import Citation
from slurmwrap.errors import StoreError
from slurmwrap.prerun.verdict import Outcome
from slurmwrap.profiling.profile import ResourceProfile
from slurmwrap.retry.attempt import AttemptRecord, PrerunRecord, Submission
from slurmwrap.retry.decision import BlockedInput
from slurmwrap.store import schema
from slurmwrap.store.plain import from_plain

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

DATABASE = "user.db"
SPOOL = "spool"
_FREED = "freed.json"
_FORGOTTEN = "forgotten.json"  # fingerprint, or "*" for all → when `slurmwrap prerun forget` was said
_NOT_THE_SCRIPTS = ("IF", "RS")  # domains: a full file system is no fault of the script that met it
DETERMINISTIC = ("stop", "blacklist_input")  # the taxonomy's decisions for what will fail the same way again

_BUSY_S = 0.25  # gsub rather goes on without its memory than waits
_SPOOL_FILES = 200  # newest that are looked at: each costs an open
_SPOOL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PastFailure:
    """One earlier failure of a script that retrying cannot mend."""

    job_id: int  # of the job, or of the pre-run
    at: float
    category: str
    reason: str  # advice of the diagnosis, or the verdict's reason
    signature: str = ""
    fingerprint: str = ""  # of script, arguments, code and environment, as gsub computed it then
    prerun: bool = False
    evidence: tuple[Citation, ...] = ()


class UserState:
    """`directory` is config.user_state_dir(environ). A missing database gives empty answers; a bad one StoreError."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def database(self) -> Path:
        """The user's own database; it need not exist."""
        return self.directory / DATABASE

    @property
    def spool(self) -> Path:
        """Where gsub and pre-runs leave their records (docs/records.md, "A spool file": bare JSON); need not exist."""
        return self.directory / SPOOL

    def profile(self, key: str) -> ResourceProfile | None:
        """What is known under `key`."""
        found: list[ResourceProfile] = self._read(schema.PROFILES, "SELECT * FROM profiles WHERE key = ?", key)
        return found[0] if found else None

    def blocked_inputs(self, uid: int) -> tuple[BlockedInput, ...]:
        """Inputs in force for `uid`, oldest first."""
        query = "SELECT * FROM blocked_inputs WHERE uid IN (-1, ?) ORDER BY at, digest"
        return tuple(self._read(schema.BLOCKED_INPUTS, query, uid))

    def freed_inputs(self) -> dict[str, float]:
        """Digests that this user freed by `slurmwrap inputs clear`, and when: what blocked him before is void."""
        return self._times(_FREED)

    def free_input(self, digest: str, at: float) -> None:
        """Remembers it: the site's word on a user's own input binds nobody but himself, so he may overrule it."""
        self._keep_times(_FREED, {**self.freed_inputs(), digest: at})

    def _times(self, name: str) -> dict[str, float]:
        try:
            found = json.loads((self.directory / name).read_bytes())
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {key: float(at) for key, at in pairs if isinstance(at, int | float)}

    def _keep_times(self, name: str, times: Mapping[str, float]) -> None:
        aside = self.directory / f".{name}.{os.getpid()}"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside.write_text(json.dumps(times), encoding="ascii")
            aside.replace(self.directory / name)
        except OSError as error:
            raise StoreError(f"cannot write {self.directory / name}: {error.strerror}") from error

    def passed(self, fingerprint: str) -> PrerunRecord | None:
        """The newest pre-run of this fingerprint, when it passed; None otherwise."""
        if not fingerprint:
            return None
        query = "SELECT * FROM preruns WHERE fingerprint = ? ORDER BY at"
        known: list[PrerunRecord] = self._read(schema.PRERUNS, query, fingerprint)
        known += [record for record in self._fresh_preruns() if record.fingerprint == fingerprint]
        newest = max(known, key=lambda record: record.at, default=None)
        if newest is None or newest.verdict.outcome is not Outcome.PASS:
            return None
        forgotten = self._times(_FORGOTTEN)
        return newest if newest.at > max(forgotten.get(fingerprint, 0.0), forgotten.get("*", 0.0)) else None

    def forget_passed(self, fingerprints: Collection[str], at: float) -> None:
        """What passed up to then counts no more: the next submission is pre-run again. "*" means all. StoreError."""
        kept = {} if "*" in fingerprints else self._times(_FORGOTTEN)
        self._keep_times(_FORGOTTEN, {**kept, **dict.fromkeys(fingerprints, at)})

    def submitted(self, script_sha256: str) -> tuple[Submission, ...]:
        """This user's submissions of this very script, taken in or still in the spool; in no order."""
        query = "SELECT * FROM submissions WHERE script_sha256 = ? ORDER BY at DESC LIMIT 20"
        known: list[Submission] = self._read(schema.SUBMISSIONS, query, script_sha256)
        known += [one for one in self._fresh(Submission, "submit", "submission") if one.script_sha256 == script_sha256]
        return tuple({(s.cluster, s.job_id, s.at): s for s in known}.values())

    def failed_before(
        self,
        script_sha256: str,
        *,
        fingerprint: str | None = None,
        told: Sequence[tuple[AttemptRecord, Submission]] = (),
    ) -> tuple[PastFailure, ...]:
        """Deterministic failures of this very script since it last succeeded, newest first, one per job.

        The script may be the same and what it calls mended: only ends of the same `fingerprint` say anything about the
        next. `told`: what the site judged (store/past.py).
        """
        if not script_sha256:
            return ()
        ends = [*self._ended(script_sha256), *self._tried(script_sha256)]
        ends += [_from_attempt(record, s.fingerprint) for record, s in told if _conclusive(record)]
        mine = [end for end in ends if fingerprint in (None, end.fingerprint)]
        newest_first = sorted(mine, key=lambda end: end.at, reverse=True)
        since_success = next((i for i, end in enumerate(newest_first) if end.category == _SUCCESS), len(newest_first))
        newest_of_job: dict[int, PastFailure] = {}
        for end in newest_first[:since_success]:
            newest_of_job.setdefault(end.job_id, end)
        return tuple(newest_of_job.values())

    def _ended(self, script_sha256: str) -> list[PastFailure]:
        query = """SELECT a.*, s.fingerprint AS fingerprint FROM attempts a
            JOIN submissions s ON s.cluster = a.cluster AND s.job_id = a.job_id
            WHERE s.script_sha256 = ? AND a.diagnosis_category IS NOT NULL"""
        with self._rows(query, script_sha256) as rows:
            found = [(schema.from_row(schema.ATTEMPTS, row), row["fingerprint"]) for row in rows]
        return [_from_attempt(record, fingerprint) for record, fingerprint in found if _conclusive(record)]

    def _tried(self, script_sha256: str) -> list[PastFailure]:
        query = """SELECT DISTINCT p.* FROM preruns p
            JOIN submissions s ON s.cluster = p.cluster AND s.prerun_job_id = p.prerun_job_id
            WHERE s.script_sha256 = ? AND p.verdict_outcome = 'fail'"""
        return [_from_prerun(record) for record in self._read(schema.PRERUNS, query, script_sha256)]

    def _fresh_preruns(self) -> list[PrerunRecord]:
        return self._fresh(PrerunRecord, "prerun", "prerun")

    def _fresh(self, kind: type[T], context: str, key: str) -> list[T]:
        """The records of one kind among the newest files of the spool."""
        try:
            files = sorted(self.spool.glob("[!.]*.obs"))
        except OSError:
            return []
        read = [_record_in(file, kind, context, key) for file in files[-_SPOOL_FILES:]]
        return [record for record in read if record is not None]

    def _read(self, table: schema.Table, query: str, *values: Any) -> list[Any]:
        with self._rows(query, *values) as rows:
            return [schema.from_row(table, row) for row in rows]

    @contextmanager
    def _rows(self, query: str, *values: Any) -> Iterator[list[dict[str, Any]]]:
        if not self.database.exists():
            yield []
            return
        import sqlite3

        from slurmwrap.store.connection import connect_readonly, explained, reachable, version_of

        with reachable(self.database), explained(self.database):
            connection = connect_readonly(self.database, busy_s=_BUSY_S)
            try:
                rows = _fetch(connection, query, values) if version_of(connection, self.database) else []
            finally:
                connection.close()
        try:
            yield rows
        except (ValueError, sqlite3.Error) as error:
            raise StoreError(f"database {self.database}: {error}", hint="restore a backup, or move it away") from error


_SUCCESS = "success"


def _fetch(connection: sqlite3.Connection, query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    cursor = connection.execute(query, [schema.sql_text(v) if isinstance(v, str) else v for v in values])
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _from_attempt(record: AttemptRecord, fingerprint: str) -> PastFailure:
    diagnosis = record.diagnosis
    assert diagnosis is not None  # the query asks for judged attempts only
    return PastFailure(
        job_id=record.attempt.job_id,
        at=float(record.end_time or record.attempt.submit_time),
        category=diagnosis.category,
        reason=diagnosis.advice,
        signature=diagnosis.signature,
        fingerprint=fingerprint,
        evidence=diagnosis.evidence,
    )


def _from_prerun(record: PrerunRecord) -> PastFailure:
    return PastFailure(
        job_id=record.prerun_job_id,
        at=record.at,
        category=record.verdict.category,
        reason=record.verdict.reason,
        fingerprint=record.fingerprint,
        prerun=True,
        evidence=record.verdict.evidence,
    )


def _conclusive(record: AttemptRecord) -> bool:
    """Whether the end says something about the next run: a success, or what the same script does again anywhere."""
    found = record.diagnosis
    if found is None:
        return False
    return found.category == _SUCCESS or (found.decision in DETERMINISTIC and found.domain not in _NOT_THE_SCRIPTS)


def _record_in(path: Path, kind: type[T], context: str, key: str) -> T | None:
    """The record in one spool file; None for a file of another kind. The spool is the user's own, mode 0700."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_SPOOL_BYTES))
        if content["context"] != context:
            return None
        return from_plain(kind, content["facts"][key])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
