"""Read and write the state of one user for gsub (adapter). Standard library only; it never writes the database.

A pre-run's result in the spool counts at once, before a reconcile has stored it in the database. The records and their
tables are imported only if a file or row of theirs was found: most calls find none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

from slurmwrap.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from slurmwrap.model.decision import BlockedInput
    from slurmwrap.model.job_run import JobRun, PrerunRecord
    from slurmwrap.model.past_failure import PastFailure
    from slurmwrap.model.resource_profile import ResourceProfile
    from slurmwrap.model.submission import Submission
    from slurmwrap.prerun.expected_saving import ScriptOutcome
    from slurmwrap.profiling.run_time import GroupRuns, RunTimeGroup

DATABASE = "user.db"
SPOOL = "spool"
_FREED = "freed.json"
# Fingerprint, or "*" for all → time of `slurmwrap prerun forget`.
_FORGOTTEN = "forgotten.json"
# Fingerprint → end of a run that Slurm reported as COMPLETED.
_COMPLETED = "completed.json"
_COMPLETED_KEPT = 500
# Domains of the taxonomy that do not blame the script: a full file system is not its fault.
DOMAINS_NOT_OF_SCRIPT = ("IF", "RS")
# Decisions of the taxonomy for failures that will happen again in the same way.
DETERMINISTIC = ("stop", "blacklist_input")

# Version of the schema that brought the table `run_times`.
_WITH_RUN_TIMES = 2

_BUSY_S = 0.25  # gsub continues without the database rather than wait longer
_SPOOL_FILES = 200  # newest files that are read: each costs an open
_SUBMISSIONS = 20  # newest submissions of one script that are read
_OUTCOMES = 100  # newest submissions whose outcomes are read
_SPOOL_BYTES = 1 << 20
# As retry.record.CLOCKS_S: ids are reused, so a run belongs to the last submission before it, with clock differences.
CLOCK_TOLERANCE_S = 300.0


def is_fault_of_script(row: Mapping[str, Any]) -> bool:
    """Return whether the diagnosis in a row of `attempts` blames the script for a failure that will happen again."""
    return row["diagnosis_decision"] in DETERMINISTIC and row["diagnosis_domain"] not in DOMAINS_NOT_OF_SCRIPT


class UserState:
    """State in `directory` (config.user_state_dir). A missing database gives empty answers, a bad one StoreError."""

    def __init__(self, directory: str | Path) -> None:
        self.place = os.fspath(directory)

    @property
    def directory(self) -> Path:
        """`place` as a path."""
        # Imported here because most calls of gsub do not need it.
        from pathlib import Path

        return Path(self.place)

    @property
    def database(self) -> Path:
        """Path of the user's own database, which need not exist."""
        return self.directory / DATABASE

    def has_database(self) -> bool:
        """Return whether the user has a database of their own."""
        return os.path.exists(f"{self.place}/{DATABASE}")

    @property
    def spool(self) -> Path:
        """Path of the spool of gsub and pre-runs (docs/records.md, "A spool file": bare JSON), which need not exist."""
        return self.directory / SPOOL

    def profile(self, key: str) -> ResourceProfile | None:
        """Return the resource profile under `key`; None when there is none."""
        found: list[ResourceProfile] = self._read("PROFILES", "SELECT * FROM profiles WHERE key = ?", key)
        return found[0] if found else None

    def profile_keys_of(self, script_path: str) -> tuple[str, ...]:
        """Return the profile keys of this user's submissions of a script: other numbers of GPUs have other keys."""
        query = "SELECT DISTINCT profile_key FROM submissions WHERE script_path = ? AND profile_key <> ''"
        with self._read_rows(query, script_path) as rows:
            return tuple(str(row["profile_key"]) for row in rows)

    def blocked_inputs(self, uid: int) -> tuple[BlockedInput, ...]:
        """Return the inputs blocked for `uid`, oldest first."""
        query = "SELECT * FROM blocked_inputs WHERE uid IN (-1, ?) ORDER BY at, digest"
        return tuple(self._read("BLOCKED_INPUTS", query, uid))

    def freed_inputs(self) -> dict[str, float]:
        """Return digests that this user unblocked with `slurmwrap inputs clear`, and when; older blocks are void."""
        return self._read_times(_FREED)

    def free_input(self, digest: str, at: float) -> None:
        """Remember that a user unblocked an input. They may: a block of their own input affects only themselves."""
        self._keep_times(_FREED, {**self.freed_inputs(), digest: at})

    def _read_times(self, name: str) -> dict[str, float]:
        try:
            with open(f"{self.place}/{name}", "rb") as file:
                found = json.loads(file.read())
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {key: float(at) for key, at in pairs if isinstance(at, int | float)}

    def _keep_times(self, name: str, times: Mapping[str, float]) -> None:
        temporary = self.directory / f".{name}.{os.getpid()}"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(times), encoding="ascii")
            temporary.replace(self.directory / name)
        except OSError as error:
            raise StoreError(f"cannot write {self.directory / name}: {error.strerror}") from error

    def passed(self, fingerprint: str) -> PrerunRecord | None:
        """Return the newest pre-run of this fingerprint if it passed; else None."""
        newest = self._find_newest_prerun(fingerprint)
        if newest is None or newest.verdict.outcome.value != "pass":
            return None
        return newest if newest.at > self._get_forget_time(fingerprint) else None

    def undecided(self, fingerprint: str) -> PrerunRecord | None:
        """Return the newest pre-run of this fingerprint if it was inconclusive and another one would be too."""
        newest = self._find_newest_prerun(fingerprint)
        if newest is None or newest.verdict.outcome.value != "inconclusive" or not newest.verdict.lasting:
            return None
        return newest if newest.at > self._get_forget_time(fingerprint) else None

    def _find_newest_prerun(self, fingerprint: str) -> PrerunRecord | None:
        if not fingerprint:
            return None
        query = "SELECT * FROM preruns WHERE fingerprint = ? ORDER BY at"
        preruns: list[PrerunRecord] = self._read("PRERUNS", query, fingerprint)
        preruns += self._list_fresh_preruns(fingerprint)
        return max(preruns, key=lambda record: record.at, default=None)

    def _get_forget_time(self, fingerprint: str) -> float:
        """Return the time until which results of this fingerprint no longer count."""
        forgotten = self._read_times(_FORGOTTEN)
        return max(forgotten.get(fingerprint, 0.0), forgotten.get("*", 0.0))

    def completed(
        self,
        script_sha256: str,
        fingerprint: str,
        diagnosed: Sequence[tuple[JobRun, Submission]] = (),
    ) -> float | None:
        """Return when a run of the same program completed; None if unknown, or if its pre-run failed since.

        A task of an array says nothing about the other tasks. `diagnosed`: diagnoses by the site (sealed_diagnoses.py).
        """
        if not fingerprint:
            return None
        ends = [self._read_times(_COMPLETED).get(fingerprint, 0.0)]
        ends += [at for _, at, category in self._list_ends(script_sha256, fingerprint) if category == _SUCCESS]
        for record, submission in diagnosed:
            same_program = submission.fingerprint == fingerprint and "_" not in record.address
            if same_program and record.diagnosis is not None and record.diagnosis.category == _SUCCESS:
                ends.append(float(record.end_time or record.attempt.submit_time))
        newest = max(ends)
        if newest <= self._get_forget_time(fingerprint):
            return None
        tried = self._find_newest_prerun(fingerprint)
        failed_since = tried is not None and tried.verdict.outcome.value == "fail" and tried.at > newest
        return None if failed_since else newest

    def unjudged(self, script_sha256: str, fingerprint: str, cluster: str) -> tuple[tuple[int, float], ...]:
        """Return (job id, submit time), newest first, of submissions of the same program without a diagnosed run.

        Only submissions of this user to `cluster` count.
        """
        times = self._list_submit_times(script_sha256, fingerprint, cluster)
        judged = {job_id for job_id, _, _ in self._list_ends(script_sha256, fingerprint)} if times else set()
        forgotten = self._get_forget_time(fingerprint) if times else 0.0
        undiagnosed = [(job_id, at) for job_id, at in times.items() if job_id not in judged and at > forgotten]
        return tuple(sorted(undiagnosed, key=lambda pair: pair[1], reverse=True))

    def remember_completed(self, fingerprint: str, at: float) -> None:
        """Remember that Slurm reported a run of this fingerprint as completed. Raises StoreError."""
        times = {**self._read_times(_COMPLETED), fingerprint: at}
        newest = sorted(times, key=lambda mark: times[mark], reverse=True)[:_COMPLETED_KEPT]
        self._keep_times(_COMPLETED, {mark: times[mark] for mark in newest})

    def _list_ends(self, script_sha256: str, fingerprint: str) -> list[tuple[int, float, str]]:
        """Return (job id, end, category) of the diagnosed runs of the same program, except tasks of arrays."""
        query = """SELECT a.job_id, a.address, a.end_time, a.submit_time, a.diagnosis_category FROM attempts a
            JOIN submissions s ON s.cluster = a.cluster AND s.job_id = a.job_id
            WHERE s.script_sha256 = ? AND s.fingerprint = ? AND a.diagnosis_category IS NOT NULL AND s.at = (
                SELECT max(n.at) FROM submissions n
                WHERE n.cluster = a.cluster AND n.job_id = a.job_id AND n.at <= a.submit_time + ?)"""
        with self._read_rows(query, script_sha256, fingerprint, CLOCK_TOLERANCE_S) as rows:
            return [
                (int(row["job_id"]), float(row["end_time"] or row["submit_time"]), row["diagnosis_category"])
                for row in rows
                if "_" not in (row["address"] or "")
            ]

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprints of all stored pre-runs."""
        with self._read_rows("SELECT DISTINCT fingerprint FROM preruns WHERE fingerprint <> ''") as rows:
            return tuple(row["fingerprint"] for row in rows)

    def forget_passed(self, fingerprints: Collection[str], at: float) -> None:
        """Discard passed pre-runs until `at`, so that the next submission has a new one. "*": all. StoreError."""
        other_times = {} if "*" in fingerprints else self._read_times(_FORGOTTEN)
        self._keep_times(_FORGOTTEN, {**other_times, **dict.fromkeys(fingerprints, at)})

    def submitted(self, script_sha256: str) -> tuple[Submission, ...]:
        """Return this user's newest submissions of this script, from database and spool, in no particular order."""
        query = f"SELECT * FROM submissions WHERE script_sha256 = ? ORDER BY at DESC LIMIT {_SUBMISSIONS}"
        submissions: list[Submission] = self._read("SUBMISSIONS", query, script_sha256)
        submissions += self._list_fresh_submissions(script_sha256)
        return tuple({(s.cluster, s.job_id, s.at): s for s in submissions}.values())

    def submissions_of(self, cluster: str, job_ids: Collection[int]) -> dict[int, Submission]:
        """Return this user's newest submission of each of these jobs, from database and spool, by the submitted id."""
        query = """SELECT * FROM submissions WHERE cluster = ? AND job_id IN (SELECT value FROM json_each(?))
            ORDER BY at"""
        found: list[Submission] = self._read("SUBMISSIONS", query, cluster, json.dumps(sorted(job_ids)))
        found += [one for one in self._list_fresh_submissions("") if one.cluster == cluster and one.job_id in job_ids]
        return {one.job_id: one for one in sorted(found, key=lambda one: one.at)}

    def submitted_ids(self, script_sha256: str, fingerprint: str) -> tuple[int, ...]:
        """Return job ids of this user's newest submissions of the same program, newest first, without the records."""
        submit_times = self._list_submit_times(script_sha256, fingerprint)
        return tuple(sorted(submit_times, key=lambda job_id: submit_times[job_id], reverse=True))

    def _list_submit_times(self, script_sha256: str, fingerprint: str, cluster: str | None = None) -> dict[int, float]:
        """Return job id → submit time. `cluster` None: any cluster, since several may share a home directory."""
        query = f"""SELECT cluster, job_id, at FROM submissions WHERE script_sha256 = ? AND fingerprint = ?
            ORDER BY at DESC LIMIT {_SUBMISSIONS}"""
        with self._read_rows(query, script_sha256, fingerprint) as rows:
            submit_times = {int(row["job_id"]): float(row["at"]) for row in rows if cluster in (None, row["cluster"])}
        for content in self._list_fresh_files("submit", fingerprint):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                submission = json.loads(content)["facts"]["submission"]
                if submission["fingerprint"] == fingerprint and cluster in (None, submission["cluster"]):
                    submit_times[int(submission["job_id"])] = float(submission["at"])
        return submit_times

    def newest_submissions(self, limit: int) -> tuple[tuple[int, float, str], ...]:
        """Return (job id, submit time, name) of the newest stored submissions, newest first."""
        with self._read_rows(f"SELECT job_id, at, name FROM submissions ORDER BY at DESC LIMIT {limit:d}") as rows:
            return tuple((int(row["job_id"]), float(row["at"]), str(row["name"])) for row in rows)

    def newest_runs(self, limit: int) -> tuple[tuple[str, float, str, str], ...]:
        """Return (address, submit time, name, final state) of the newest stored runs, newest first."""
        query = f"SELECT address, submit_time, name, state FROM attempts ORDER BY submit_time DESC LIMIT {limit:d}"
        with self._read_rows(query) as rows:
            return tuple((str(r["address"]), float(r["submit_time"]), str(r["name"]), str(r["state"])) for r in rows)

    def outcomes(self) -> tuple[ScriptOutcome, ...]:
        """Return what became of the newest submissions with a fingerprint, oldest first."""
        if not self.has_database():
            return ()
        from slurmwrap.store.script_outcomes import make_outcomes_sql, outcome_from_row

        with self._read_rows(make_outcomes_sql(_OUTCOMES, CLOCK_TOLERANCE_S)) as rows:
            return tuple(outcome_from_row(row, own=is_fault_of_script(row)) for row in rows)

    @contextmanager
    def open_run_times(self, cluster: str) -> Iterator[Callable[[RunTimeGroup], GroupRuns]]:
        """Return a function that returns the newest runs of a group, oldest first.

        It returns () without a database, and for one of an older version.
        """
        if not self.has_database():
            yield lambda group: ()
            return
        from slurmwrap.store.run_time_rows import make_group_query, run_times_from_rows

        with self._open() as connection:
            known = connection is not None and connection.execute("PRAGMA user_version").fetchone()[0]

            def read(group: RunTimeGroup) -> GroupRuns:
                if connection is None or known < _WITH_RUN_TIMES:
                    return ()
                sql, values = make_group_query(cluster, group)
                return tuple(run_times_from_rows(group, _fetch(connection, sql, tuple(values))))

            yield read

    def failed_before(
        self,
        script_sha256: str,
        *,
        fingerprint: str | None = None,
        diagnosed: Sequence[tuple[JobRun, Submission]] = (),
    ) -> tuple[PastFailure, ...]:
        """Return deterministic failures of this script since it last succeeded, newest first, one per job.

        A script may be unchanged while the code that it calls was fixed, so only ends with the same `fingerprint` say
        something about the next run. `diagnosed`: diagnoses by the site (sealed_diagnoses.py).
        """
        if not script_sha256:
            return ()
        ends = [*self._list_ended_runs(script_sha256), *self._list_tried_preruns(script_sha256)]
        ends += [_past_failure_from_run(record, s.fingerprint) for record, s in diagnosed if _is_conclusive(record)]
        same_fingerprint = [end for end in ends if fingerprint in (None, end.fingerprint)]
        newest_first = sorted(same_fingerprint, key=lambda end: end.at, reverse=True)
        since_success = next((i for i, end in enumerate(newest_first) if end.category == _SUCCESS), len(newest_first))
        newest_of_job: dict[int, PastFailure] = {}
        for end in newest_first[:since_success]:
            newest_of_job.setdefault(end.job_id, end)
        return tuple(newest_of_job.values())

    def _list_ended_runs(self, script_sha256: str) -> list[PastFailure]:
        query = """SELECT a.*, s.fingerprint AS fingerprint FROM attempts a
            JOIN submissions s ON s.cluster = a.cluster AND s.job_id = a.job_id
            WHERE s.script_sha256 = ? AND a.diagnosis_category IS NOT NULL AND s.at = (
                SELECT max(n.at) FROM submissions n
                WHERE n.cluster = a.cluster AND n.job_id = a.job_id AND n.at <= a.submit_time + ?)"""
        with self._read_rows(query, script_sha256, CLOCK_TOLERANCE_S) as rows:
            found = [(_make_record("ATTEMPTS", row), row["fingerprint"]) for row in rows]
        return [_past_failure_from_run(record, fingerprint) for record, fingerprint in found if _is_conclusive(record)]

    def _list_tried_preruns(self, script_sha256: str) -> list[PastFailure]:
        query = """SELECT DISTINCT p.* FROM preruns p
            JOIN submissions s ON s.cluster = p.cluster AND s.prerun_job_id = p.prerun_job_id
            WHERE s.script_sha256 = ? AND p.verdict_outcome = 'fail'"""
        return [_past_failure_from_prerun(record) for record in self._read("PRERUNS", query, script_sha256)]

    def _list_fresh_preruns(self, fingerprint: str) -> list[PrerunRecord]:
        contents = self._list_fresh_files("prerun", fingerprint)
        if not contents:
            return []
        from slurmwrap.store.user_spool import parse_prerun

        found = map(parse_prerun, contents)
        return [record for record in found if record is not None and record.fingerprint == fingerprint]

    def _list_fresh_submissions(self, script_sha256: str) -> list[Submission]:
        """Return the submissions in the spool of one script; "": of all scripts."""
        contents = self._list_fresh_files("submit", script_sha256)
        if not contents:
            return []
        from slurmwrap.store.user_spool import parse_submission

        found = map(parse_submission, contents)
        return [one for one in found if one is not None and script_sha256 in ("", one.script_sha256)]

    def fresh(self, context: str) -> list[bytes]:
        """Return the newest files of one context in the spool, newest first."""
        return self._list_fresh_files(context)

    def _list_fresh_files(self, context: str, mark: str = "") -> list[bytes]:
        """Return the newest files of one context that contain `mark`, newest first."""
        # The bytes are searched before JSON is parsed, because a sweep leaves many files.
        marks = tuple(f'"{word}"'.encode() for word in (context, mark) if word)
        try:
            names = sorted(entry.name for entry in os.scandir(f"{self.place}/{SPOOL}") if entry.name.endswith(".obs"))
        except OSError:
            return []
        complete = [name for name in names if not name.startswith(".")]
        contents = (_read_spool_file(f"{self.place}/{SPOOL}/{name}") for name in reversed(complete[-_SPOOL_FILES:]))
        return list(islice((one for one in contents if all(word in one for word in marks)), _SUBMISSIONS))

    def _read(self, table: str, query: str, *values: Any) -> list[Any]:
        """Return rows as records; `table`: the name of a table of record_rows.py."""
        with self._read_rows(query, *values) as rows:
            return [_make_record(table, row) for row in rows]

    @contextmanager
    def _read_rows(self, query: str, *values: Any) -> Iterator[list[dict[str, Any]]]:
        if not self.has_database():
            yield []
            return
        import sqlite3

        with self._open() as connection:
            rows = _fetch(connection, query, values) if connection is not None else []
        try:
            yield rows
        except (ValueError, sqlite3.Error) as error:
            raise StoreError(f"database {self.database}: {error}", hint="restore a backup, or move it away") from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection | None]:
        """Return the database, opened for reading; None if it is empty. Errors of SQLite become StoreError."""
        from slurmwrap.store.sqlite_connection import (
            connect_readonly,
            read_version,
            translate_os_errors,
            translate_sqlite_errors,
        )

        with translate_os_errors(self.database), translate_sqlite_errors(self.database):
            connection = connect_readonly(self.database, busy_s=_BUSY_S)
            try:
                yield connection if read_version(connection, self.database) else None
            finally:
                connection.close()


_SUCCESS = "success"


def _make_record(table: str, row: Mapping[str, Any]) -> Any:
    from slurmwrap.store import record_rows

    return record_rows.record_from_row(getattr(record_rows, table), row)


def _fetch(connection: sqlite3.Connection, query: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    from slurmwrap.store.sql_text import encode_sql_text

    cursor = connection.execute(query, [encode_sql_text(v) if isinstance(v, str) else v for v in values])
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _past_failure_from_run(run: JobRun, fingerprint: str) -> PastFailure:
    from slurmwrap.model.past_failure import PastFailure

    diagnosis = run.diagnosis
    # The query selects only diagnosed runs.
    assert diagnosis is not None
    return PastFailure(
        job_id=run.attempt.job_id,
        at=float(run.end_time or run.attempt.submit_time),
        category=diagnosis.category,
        reason=diagnosis.advice,
        signature=diagnosis.signature,
        fingerprint=fingerprint,
        evidence=diagnosis.evidence,
        input_path=diagnosis.input_path,
        node=diagnosis.node,
    )


def _past_failure_from_prerun(record: PrerunRecord) -> PastFailure:
    from slurmwrap.model.past_failure import PastFailure

    return PastFailure(
        job_id=record.prerun_job_id,
        at=record.at,
        category=record.verdict.category,
        reason=record.verdict.reason,
        fingerprint=record.fingerprint,
        prerun=True,
        evidence=record.verdict.evidence,
        input_path=record.verdict.input_path,
    )


def _is_conclusive(run: JobRun) -> bool:
    """Return whether the end says something about the next run: success, or a failure caused by the script."""
    found = run.diagnosis
    if found is None:
        return False
    return found.category == _SUCCESS or (found.decision in DETERMINISTIC and found.domain not in DOMAINS_NOT_OF_SCRIPT)


def _read_spool_file(path: str) -> bytes:
    """Return the content of a spool file; empty when it cannot be read. The spool is the user's own, mode 0700."""
    try:
        # os.open takes a third of Path.open's time; a sweep has many files.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _SPOOL_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
