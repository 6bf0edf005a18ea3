"""Read the records that the asking user may see.

Root and SlurmUser read the site's database. Other users read their own database and what the site sealed for them.
Nothing is written: records that no reconcile pass has ingested yet are read from the user's spool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from slurmwrap.config.load_config import Config, find_user_state_dir
from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.host.munge import open_sealed
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import (
    ActionRecord,
    Incident,
    JobRun,
    LedgerReset,
    PrerunRecord,
    QueueDelay,
    StrikeRecord,
)
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.running_job import EarlyFinding, GpuUse, LossCurve
from slurmwrap.model.submission import Submission
from slurmwrap.store import list_queries
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.published_files import (
    Unseal,
    list_trusted_uids,
    parse_published,
    parse_published_gpu_use,
    read_why,
)
from slurmwrap.store.spool_reader import MAX_ENTRIES, PlainSpool
from slurmwrap.store.user_state_files import UserState

T = TypeVar("T")
_SealedRun = tuple[JobRun, tuple[ActionRecord, ...]]

SITE_DATABASE = "site.db"
# A run that ends now may have been submitted this many seconds ago.
BEFORE_S = 30 * 86400.0
# Number of sealed files that are tried if the raw job id is not known: each costs a call of unmunge.
_MAX_SEALED_FILES = 100
# Number of runs whose loss curves are read: more are not shown one by one.
_MOST_CURVES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecords:
    """Records in no particular order. `notes` name what could not be read."""

    submissions: tuple[Submission, ...] = ()
    preruns: tuple[PrerunRecord, ...] = ()
    attempts: tuple[JobRun, ...] = ()
    actions: tuple[ActionRecord, ...] = ()
    strikes: tuple[StrikeRecord, ...] = ()
    blocked: tuple[BlockedInput, ...] = ()
    incidents: tuple[Incident, ...] = ()
    delays: tuple[QueueDelay, ...] = ()
    resets: tuple[LedgerReset, ...] = ()
    curves: tuple[LossCurve, ...] = ()
    findings: tuple[EarlyFinding, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """Where to read records, and for which user."""

    database: Path
    # Whether `database` is the site's, with the jobs of all users.
    site: bool
    uid: int
    # The user's own spool.
    spool: Path | None = None
    # The site's published directory, with sealed diagnoses.
    published: Path | None = None
    trusted: frozenset[int] = frozenset({0})
    unseal: Unseal = field(default=lambda _: None)

    @property
    def alone(self) -> bool:
        """Whether no site judges this user's runs, so that only their own `slurmwrap reconcile` does."""
        return not self.site and self.published is None


def find_record_source(config: Config, environ: Mapping[str, str], uid: int) -> RecordSource:
    """Return the site's database for root and SlurmUser if a site is configured; otherwise the user's own."""
    trusted = list_trusted_uids(config)
    if config.site.state_dir and uid in trusted:
        return RecordSource(database=Path(config.site.state_dir) / SITE_DATABASE, site=True, uid=uid, trusted=trusted)
    own = UserState(find_user_state_dir(environ))
    return RecordSource(
        database=own.database,
        site=False,
        uid=uid,
        spool=own.spool,
        published=Path(config.site.published) if config.site.published else None,
        trusted=trusted,
        unseal=partial(open_sealed, socket=config.site.munge_socket),
    )


def read_job_records(source: RecordSource, address: str, cluster: str = "") -> JobRecords:
    """Return everything about one job: "81", "77_2", "77" for all tasks, a task's raw id, or a pre-run's id.

    `cluster`: return only its records, since clusters that share a home may each have a job with this id.
    """
    head = address.split("_")[0]
    number = int(head) if head.isdecimal() and len(head) < 19 else -1
    known = _merge_records(
        source, lambda database: _read_job(database, address, number), address=address, number=number
    )
    return select_cluster_records(known, cluster) if cluster else known


def read_gpu_use(source: RecordSource, runs: Sequence[JobRun]) -> dict[RunKey, tuple[GpuUse, ...]]:
    """Return the samples of GPUs, CPUs and memory of these runs; nothing for a run without any.

    Root and SlurmUser read them while a job runs. Its owner gets them from the site's sealed file, when it has ended.
    """
    found: dict[RunKey, tuple[GpuUse, ...]] = {}
    if source.site:
        with Database.open(source.database, readonly=True) as database:
            keys = [run.attempt for run in runs]
            found = {key: (*database.gpu_use(key), *database.host_use(key)) for key in keys}
    elif source.published is not None:
        for job_id in sorted({run.attempt.job_id for run in runs})[-_MAX_SEALED_FILES:]:
            for plain in read_why(source.published, job_id, source.unseal, source.trusted, limit=_MAX_SEALED_FILES):
                with suppress(ValueError):
                    uses = parse_published_gpu_use(plain)
                    found.update({use.attempt: uses for use in uses[:1]})
    return {key: uses for key, uses in found.items() if uses}


def read_period_records(source: RecordSource, since: float) -> JobRecords:
    """Return runs that ended since then (Unix seconds) or run; submissions and pre-runs also of the month before."""
    return _merge_records(source, lambda database: _read_period(database, since), since=since - BEFORE_S)


def _read_job(database: Database, address: str, number: int) -> JobRecords:
    submissions = database.submissions_of(number)
    found = [*database.attempts_of(address), *list_queries.find_runs_of_id(database, number)]
    # If the id is a pre-run's, the runs of its real job are wanted as well.
    if "_" not in address:
        found += [run for s in submissions if s.job_id != number for run in database.attempts_of(str(s.job_id))]
    attempts = {run.attempt: run for run in found}.values()
    ids = {number, *(s.job_id for s in submissions)}
    return JobRecords(
        submissions=submissions,
        preruns=tuple(p for n in ids for p in database.preruns_of(n)),
        attempts=tuple(attempts),
        actions=tuple(action for run in attempts for action in database.actions(run.attempt)),
        incidents=database.incidents() if any(run.incident for run in attempts) else (),
        delays=tuple(d for n in ids for d in database.delays(job_id=n)),
        curves=_read_curves(database, tuple(attempts)),
        findings=tuple(one for run in attempts for one in database.early_findings(run.attempt)),
        resets=tuple(r for n in {run.attempt.job_id for run in attempts} for r in database.resets(n)),
    )


def _read_curves(database: Database, attempts: Sequence[JobRun]) -> tuple[LossCurve, ...]:
    """Return the loss curves of the newest runs."""
    newest = sorted(attempts, key=lambda run: run.end_time or 0)[-_MOST_CURVES:]
    return tuple(curve for run in newest if (curve := database.loss_curve(run.attempt)) is not None)


def select_cluster_records(records: JobRecords, *clusters: str) -> JobRecords:
    """Return the submissions, pre-runs, runs, actions and queue delays of these clusters; other records are kept."""
    return replace(
        records,
        submissions=tuple(s for s in records.submissions if s.cluster in clusters),
        preruns=tuple(p for p in records.preruns if p.cluster in clusters),
        attempts=tuple(a for a in records.attempts if a.attempt.cluster in clusters),
        actions=tuple(one for one in records.actions if one.attempt is None or one.attempt.cluster in clusters),
        delays=tuple(d for d in records.delays if d.attempt.cluster in clusters),
    )


def list_known_clusters(source: RecordSource) -> tuple[str, ...]:
    """Return the clusters of which records are stored, also in the user's own spool. Raise StoreError."""
    names: set[str] = set()
    if source.site or source.database.exists():
        with Database.open(source.database, readonly=True) as database:
            names.update(list_queries.list_clusters(database))
    waiting = JobRecords() if source.site else _add_spool_records(JobRecords(), source, None, 0.0)
    names.update(one.cluster for one in waiting.submissions)
    names.update(one.cluster for one in waiting.preruns)
    return tuple(sorted(names - {""}))


def _read_period(database: Database, since: float) -> JobRecords:
    return JobRecords(
        submissions=database.submissions(since=since - BEFORE_S),
        preruns=database.preruns(since=since - BEFORE_S),
        attempts=database.attempts(since=since),
        actions=tuple(action for action in database.actions() if action.intended_at >= since),
        strikes=database.strikes(since=since),
        blocked=database.blocked_inputs(),
        incidents=database.incidents(since=since),
        delays=database.delays(since=since),
        curves=database.loss_curves(since, points=False),
    )


def _merge_records(
    source: RecordSource,
    read: Callable[[Database], JobRecords],
    *,
    address: str = "",
    number: int | None = None,
    since: float = 0.0,
) -> JobRecords:
    if source.site:
        with Database.open(source.database, readonly=True) as database:
            return read(database)
    known = JobRecords()
    if source.database.exists():
        with Database.open(source.database, readonly=True) as database:
            known = read(database)
    known = _add_spool_records(known, source, number, since)
    return _add_sealed_records(known, source, address, number)


def _add_spool_records(records: JobRecords, source: RecordSource, number: int | None, since: float) -> JobRecords:
    """Add the submissions and pre-runs that wait in the user's spool for a reconcile pass."""
    try:
        found = [one.item for one in PlainSpool(source.spool).collect(limit=MAX_ENTRIES)] if source.spool else []
    except StoreError as error:
        return replace(records, notes=(*records.notes, str(error)))
    items = [item for item in found if isinstance(item, Observation) and item.at >= since]
    submissions = _list_readable(Submission, Context.SUBMIT, "submission", items)
    preruns = _list_readable(PrerunRecord, Context.PRERUN, "prerun", items)
    if number is not None:
        submissions = [s for s in submissions if number in (s.job_id, s.prerun_job_id)]
        ids = {number, *(s.job_id for s in (*submissions, *records.submissions))}
        preruns = [p for p in preruns if ids & {p.job_id, p.prerun_job_id}]
    return replace(
        records,
        submissions=tuple({(s.cluster, s.job_id, s.at): s for s in (*records.submissions, *submissions)}.values()),
        preruns=tuple({(p.cluster, p.prerun_job_id, p.at): p for p in (*records.preruns, *preruns)}.values()),
    )


def _list_readable(kind: type[T], context: Context, key: str, items: Iterable[Observation]) -> list[T]:
    found = []
    for item in items:
        if item.context is context:
            with suppress(ValueError):
                found.append(record_from_json(kind, item.facts.get(key) or {}))
    return found


def _add_sealed_records(records: JobRecords, source: RecordSource, address: str, number: int | None) -> JobRecords:
    """Add what the site diagnosed and sealed for this user; it replaces the user's own diagnosis of the same run."""
    if source.published is None:
        return records
    try:
        sealed = _read_sealed(records, source, address, number)
    except StoreError as error:
        return replace(records, notes=(*records.notes, f"the site's diagnoses cannot be read: {error}"))
    theirs = {record.attempt for record, _ in sealed}
    return replace(
        records,
        attempts=(*(a for a in records.attempts if a.attempt not in theirs), *(record for record, _ in sealed)),
        actions=(
            *(action for action in records.actions if action.attempt not in theirs),
            *(action for _, actions in sealed for action in actions),
        ),
    )


def _read_sealed(records: JobRecords, source: RecordSource, address: str, number: int | None) -> list[_SealedRun]:
    """Read the sealed runs of the known job ids.

    The raw id of an array task is not known. Then, and for a whole period, the newest sealed files are tried.
    """
    ids = {s.job_id for s in records.submissions} | ({number} if number is not None else set())
    found = [one for job_id in sorted(ids)[-_MAX_SEALED_FILES:] for one in _open_sealed(source, job_id)]
    if number is None or "_" in address or not found or any("_" in record.address for record, _ in found):
        found += _open_sealed(source, None)
    return list({record.attempt: (record, actions) for record, actions in found if record.uid == source.uid}.values())


def _open_sealed(source: RecordSource, job_id: int | None) -> list[_SealedRun]:
    assert source.published is not None
    found = []
    for plain in read_why(source.published, job_id, source.unseal, source.trusted, limit=_MAX_SEALED_FILES):
        with suppress(ValueError):
            found.append(parse_published(plain))
    return found
