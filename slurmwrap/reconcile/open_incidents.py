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


def open_pass(this_pass: ReconcilePass) -> None:
    """Before anything is judged: what is open, and what the last process left unseen. The site's reconciler alone."""
    if this_pass.edges.scope.user is not None:
        return
    book, since = this_pass.book, this_pass.now - _LOOK_BACK_S
    # A pass that ends early leaves none.
    known, book.incidents = book.incidents, None
    if known is None or book.failures is None:
        _read(this_pass, since)
    else:
        this_pass.incidents = tuple(
            one for one in known if one.over_at is None or one.over_at >= this_pass.now - _KEPT_S
        )
        this_pass.incidents = _drop_closed_incidents(this_pass)
        recent = sorted((r for r in book.failures.values() if _end(r) >= since), key=_end)[-_MOST:]
        book.failures = {record.attempt: record for record in recent}
    _close(this_pass)


def _drop_closed_incidents(this_pass: ReconcilePass) -> tuple[Incident, ...]:
    """`this_pass.incidents`, with those that a person closed since (`slurmwrap incidents close`)."""
    if all(one.over_at is not None for one in this_pass.incidents):
        return this_pass.incidents
    closed_now = {
        one.incident_id: one for one in this_pass.edges.store.incidents(since=this_pass.now - _KEPT_S) if one.closed_by
    }
    this_pass.dirty |= any(one.over_at is None and one.incident_id in closed_now for one in this_pass.incidents)
    return tuple(closed_now.get(one.incident_id, one) for one in this_pass.incidents)


def _read(this_pass: ReconcilePass, since: float) -> None:
    """From the database; with what the last process had seen of them and not stored yet."""
    store = this_pass.edges.store
    read = store.failures(FAILURES, since=since, limit=_MOST)
    this_pass.book.failures = {record.attempt: record for record in read}
    stored = store.incidents(since=this_pass.now - _KEPT_S)
    this_pass.incidents = tuple(join_failures(one, read) for one in stored)
    this_pass.grown = _find_changed(stored, this_pass.incidents)
    _look(this_pass, read)


def find_incident(run: JobRun, this_pass: ReconcilePass) -> Incident | None:
    """The incident that a run belongs to whose diagnosis is just made; it may be the run that shows it."""
    if this_pass.book.failures is None or run.diagnosis is None or run.diagnosis.decision == "none":
        return None
    if not can_be_of_incident(run):
        return None
    this_pass.book.failures[run.attempt] = run
    found = find_incident_of_run(this_pass.incidents, run) or _find_new_incident(run, this_pass)
    if found is not None:
        this_pass.book.failures[run.attempt] = replace(run, incident=found.incident_id)
        _extend_incident(found, run, this_pass)
    return found


def excuse_run(run: JobRun, this_pass: ReconcilePass) -> JobRun:
    """`run`, with the incident that it was found to belong to after it was judged."""
    return replace(run, incident=this_pass.excused.get(run.attempt, run.incident))


def end(this_pass: ReconcilePass) -> None:
    """After all were judged: closes what is over and stores what has grown."""
    if this_pass.unseen:
        _look(this_pass, tuple((this_pass.book.failures or {}).values()))
    _close(this_pass)
    this_pass.incidents = _drop_closed_incidents(this_pass)
    for one in this_pass.incidents:
        if one.incident_id in this_pass.grown:
            this_pass.edges.store.save_incident(one)
    this_pass.dirty |= bool(this_pass.grown)
    this_pass.grown.clear()
    if this_pass.book.failures is not None:
        this_pass.book.incidents = this_pass.incidents
    _notify_again(this_pass)


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


def _find_new_incident(run: JobRun, this_pass: ReconcilePass) -> Incident | None:
    """The new incident, if `run` and the failures near it are one. Of a storm not every single one is looked at."""
    category = get_category(run)
    if category not in SHARED:
        return None
    span, end = 2 * this_pass.edges.config.incidents.window_s, _end(run)
    this_pass.unseen[category] += 1
    count, there = this_pass.looked.get(category, (0, end))
    if this_pass.unseen[category] < min(_UNSEEN, count // _SHARE) and abs(end - there) < span:
        return None
    known = (this_pass.book.failures or {}).values()
    near = [r for r in known if get_category(r) == category and abs(_end(r) - end) <= span]
    this_pass.looked[category] = len(near), end
    del this_pass.unseen[category]
    _look(this_pass, near, judging=run)
    return find_incident_of_run(this_pass.incidents, run)


def _look(this_pass: ReconcilePass, failures: Sequence[JobRun], judging: JobRun | None = None) -> None:
    """Looks for incidents in `failures`; a new one is stored with those of its runs that were judged before it.

    Stored before the decision that rests on it: a reconciler that is killed in between decides the same.
    """
    settings = this_pass.edges.config.incidents
    if judging is None:
        this_pass.unseen.clear()
    free = [r for r in failures if get_category(r) in SHARED and find_incident_of_run(this_pass.incidents, r) is None]
    if len(free) < settings.min_jobs:
        return
    before = {one.incident_id: one for one in this_pass.incidents}
    this_pass.incidents = find(
        failures,
        this_pass.incidents,
        now=this_pass.now,
        # Slurm is asked only where failures are many enough.
        topology=this_pass.snapshot().topology,
        settings=settings,
        mounts=this_pass.edges.mounts,
    )
    for one in this_pass.incidents:
        if before.get(one.incident_id) != one:
            _keep(one, judging, this_pass)


def _keep(incident: Incident, judging: JobRun | None, this_pass: ReconcilePass) -> None:
    """Stores it; its runs that were judged before it was recognised are marked, and their strikes count no more."""
    known = this_pass.book.failures or {}
    late = [
        key
        for key, record in known.items()
        if record is not judging and not record.incident and find_incident_of_run((incident,), record) is not None
    ]
    this_pass.edges.store.save_incident(incident, late)
    for key in late:
        known[key] = replace(known[key], incident=incident.incident_id)
        this_pass.excused[key] = incident.incident_id
    this_pass.grown.discard(incident.incident_id)
    this_pass.dirty = True


def _extend_incident(incident: Incident, run: JobRun, this_pass: ReconcilePass) -> None:
    """With one more run. Of what others wrote since the last that was believed, each user's first is enough."""
    first: dict[int, JobRun] = {}
    for other in sorted((this_pass.book.failures or {}).values(), key=_end):
        if _end(other) > incident.last:
            first.setdefault(other.uid, other)
    grown = join_failures(incident, {r.attempt: r for r in (*first.values(), run)}.values())
    if grown != incident:
        this_pass.incidents = tuple(grown if known is incident else known for known in this_pass.incidents)
        this_pass.grown.add(incident.incident_id)


def _notify_again(this_pass: ReconcilePass) -> None:
    """The owners of runs that were reported before their incident was recognised. Killed before: a remark is lost."""
    publisher, store = this_pass.edges.publisher, this_pass.edges.store
    if publisher is None or not this_pass.telling:
        return
    for key in this_pass.excused:
        record = store.attempt(key)
        if record is None or not record.reconciled:
            # They are informed when it is done.
            continue
        try:
            publisher.tell_owner(record, store.actions(key))
        except SlurmwrapError as error:
            this_pass.summary.errors.append(str(error))
            return


def _close(this_pass: ReconcilePass) -> None:
    """Those whose time has come."""
    known = this_pass.incidents
    this_pass.incidents = tuple(close_incident(one, this_pass.now) for one in known)
    this_pass.grown |= _find_changed(known, this_pass.incidents)


def _find_changed(before: Sequence[Incident], after: Sequence[Incident]) -> set[str]:
    return {new.incident_id for old, new in zip(before, after, strict=True) if old != new}


def _end(run: JobRun) -> float:
    return float(run.end_time or 0)
