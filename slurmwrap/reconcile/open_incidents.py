"""Incidents during a pass: found while runs are judged, stored before the next decision, published.

Failures of a kind that a network, a file system or a driver roll-out causes are kept in the Notebook for some hours, so
that a pass without any costs one small query. Whatever is kept there is in the database too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.incident import (
    FAILURES,
    SHARED,
    Incident,
    Mounts,
    can_be_of_incident,
    close_incident,
    find,
    find_incident_of_run,
    get_category,
    join_failures,
)
from slurmwrap.protocols import OpenIncident
from slurmwrap.reconcile.reconcile_context import ReconcilePass

_LOOK_BACK_S = 3 * 3600.0  # failures that are kept in mind
_KEPT_S = 24 * 3600.0  # a run that failed during an incident may be judged that late
_MOST = 2000  # failures that are kept in mind from one pass to the next
_SHARE, _UNSEEN = 10, 40  # of many failures, every tenth part more is looked at again, but so many at the latest


def open_pass(run: ReconcilePass) -> None:
    """Before anything is judged: what is open, and what the last process left unseen. The site's reconciler alone."""
    if run.edges.scope.user is not None:
        return
    book, since = run.book, run.now - _LOOK_BACK_S
    # A pass that ends early leaves none.
    known, book.incidents = book.incidents, None
    if known is None or book.failures is None:
        _read(run, since)
    else:
        run.incidents = tuple(one for one in known if one.over_at is None or one.over_at >= run.now - _KEPT_S)
        run.incidents = _drop_closed_incidents(run)
        recent = sorted((r for r in book.failures.values() if _end(r) >= since), key=_end)[-_MOST:]
        book.failures = {record.attempt: record for record in recent}
    _close(run)


def _drop_closed_incidents(run: ReconcilePass) -> tuple[Incident, ...]:
    """`run.incidents`, with those that a person closed since (`slurmwrap incidents close`)."""
    if all(one.over_at is not None for one in run.incidents):
        return run.incidents
    closed_now = {one.incident_id: one for one in run.edges.store.incidents(since=run.now - _KEPT_S) if one.closed_by}
    run.dirty |= any(one.over_at is None and one.incident_id in closed_now for one in run.incidents)
    return tuple(closed_now.get(one.incident_id, one) for one in run.incidents)


def _read(run: ReconcilePass, since: float) -> None:
    """From the database; with what the last process had seen of them and not stored yet."""
    store = run.edges.store
    read = store.failures(FAILURES, since=since, limit=_MOST)
    run.book.failures = {record.attempt: record for record in read}
    stored = store.incidents(since=run.now - _KEPT_S)
    run.incidents = tuple(join_failures(one, read) for one in stored)
    run.grown = _find_changed(stored, run.incidents)
    _look(run, read)


def find_incident(record: JobRun, run: ReconcilePass) -> Incident | None:
    """The incident that a run belongs to whose diagnosis is just made; it may be the run that shows it."""
    if run.book.failures is None or record.diagnosis is None or record.diagnosis.decision == "none":
        return None
    if not can_be_of_incident(record):
        return None
    run.book.failures[record.attempt] = record
    found = find_incident_of_run(run.incidents, record) or _find_new_incident(record, run)
    if found is not None:
        run.book.failures[record.attempt] = replace(record, incident=found.incident_id)
        _extend_incident(found, record, run)
    return found


def excuse_run(record: JobRun, run: ReconcilePass) -> JobRun:
    """`record`, with the incident that it was found to belong to after it was judged."""
    return replace(record, incident=run.excused.get(record.attempt, record.incident))


def end(run: ReconcilePass) -> None:
    """After all were judged: closes what is over and stores what has grown."""
    if run.unseen:
        _look(run, tuple((run.book.failures or {}).values()))
    _close(run)
    run.incidents = _drop_closed_incidents(run)
    for one in run.incidents:
        if one.incident_id in run.grown:
            run.edges.store.save_incident(one)
    run.dirty |= bool(run.grown)
    run.grown.clear()
    if run.book.failures is not None:
        run.book.incidents = run.incidents
    _notify_again(run)


def list_published_incidents(incidents: Iterable[Incident], mounts: Mounts) -> tuple[OpenIncident, ...]:
    """The open ones as everyone may see them."""
    return tuple(
        OpenIncident(
            category=one.category,
            scope=_describe_scope(one.scope, mounts),
            since=one.began,
            jobs=len(one.jobs),
            users=one.users,
        )
        for one in incidents
        if one.over_at is None
    )


def _describe_scope(scope: str, mounts: Mounts) -> str:
    """Switches are Slurm's record; a path or a host is users' word, but for a mount point that we know ourselves."""
    kind, _, what = scope.partition(" ")
    if kind == "path":
        return scope if mounts(what) == what else kind
    return kind if kind == "host" else scope


def _find_new_incident(record: JobRun, run: ReconcilePass) -> Incident | None:
    """The new incident, if `record` and the failures near it are one. Of a storm not every single one is looked at."""
    category = get_category(record)
    if category not in SHARED:
        return None
    span, end = 2 * run.edges.config.incidents.window_s, _end(record)
    run.unseen[category] += 1
    count, there = run.looked.get(category, (0, end))
    if run.unseen[category] < min(_UNSEEN, count // _SHARE) and abs(end - there) < span:
        return None
    known = (run.book.failures or {}).values()
    near = [r for r in known if get_category(r) == category and abs(_end(r) - end) <= span]
    run.looked[category] = len(near), end
    del run.unseen[category]
    _look(run, near, judging=record)
    return find_incident_of_run(run.incidents, record)


def _look(run: ReconcilePass, failures: Sequence[JobRun], judging: JobRun | None = None) -> None:
    """Looks for incidents in `failures`; a new one is stored with those of its runs that were judged before it.

    Stored before the decision that rests on it: a reconciler that is killed in between decides the same.
    """
    settings = run.edges.config.incidents
    if judging is None:
        run.unseen.clear()
    free = [r for r in failures if get_category(r) in SHARED and find_incident_of_run(run.incidents, r) is None]
    if len(free) < settings.min_jobs:
        return
    before = {one.incident_id: one for one in run.incidents}
    run.incidents = find(
        failures,
        run.incidents,
        now=run.now,
        # Slurm is asked only where failures are many enough.
        topology=run.snapshot().topology,
        settings=settings,
        mounts=run.edges.mounts,
    )
    for one in run.incidents:
        if before.get(one.incident_id) != one:
            _keep(one, judging, run)


def _keep(one: Incident, judging: JobRun | None, run: ReconcilePass) -> None:
    """Stores it; its runs that were judged before it was recognised are marked, and their strikes count no more."""
    known = run.book.failures or {}
    late = [
        key
        for key, record in known.items()
        if record is not judging and not record.incident and find_incident_of_run((one,), record) is not None
    ]
    run.edges.store.save_incident(one, late)
    for key in late:
        known[key] = replace(known[key], incident=one.incident_id)
        run.excused[key] = one.incident_id
    run.grown.discard(one.incident_id)
    run.dirty = True


def _extend_incident(one: Incident, record: JobRun, run: ReconcilePass) -> None:
    """With one more run. Of what others wrote since the last that was believed, each user's first is enough."""
    first: dict[int, JobRun] = {}
    for other in sorted((run.book.failures or {}).values(), key=_end):
        if _end(other) > one.last:
            first.setdefault(other.uid, other)
    grown = join_failures(one, {r.attempt: r for r in (*first.values(), record)}.values())
    if grown != one:
        run.incidents = tuple(grown if known is one else known for known in run.incidents)
        run.grown.add(one.incident_id)


def _notify_again(run: ReconcilePass) -> None:
    """The owners of runs that were reported before their incident was recognised. Killed before: a remark is lost."""
    publisher, store = run.edges.publisher, run.edges.store
    if publisher is None or not run.telling:
        return
    for key in run.excused:
        record = store.attempt(key)
        if record is None or not record.reconciled:
            # They are informed when it is done.
            continue
        try:
            publisher.tell_owner(record, store.actions(key))
        except SlurmwrapError as error:
            run.summary.errors.append(str(error))
            return


def _close(run: ReconcilePass) -> None:
    """Those whose time has come."""
    known = run.incidents
    run.incidents = tuple(close_incident(one, run.now) for one in known)
    run.grown |= _find_changed(known, run.incidents)


def _find_changed(before: Sequence[Incident], after: Sequence[Incident]) -> set[str]:
    return {new.incident_id for old, new in zip(before, after, strict=True) if old != new}


def _end(record: JobRun) -> float:
    return float(record.end_time or 0)
