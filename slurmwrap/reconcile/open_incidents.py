"""Incidents during a pass: recognise them while runs are judged, store them before the next decision, publish them.

Failures that a network, a file system or a driver update can cause are kept in the ReconcilerState for some hours, so
that a pass without such failures costs one small query. All of it is in the database too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.incident import (
    FAILURES,
    LOST_NODE,
    SHARED,
    Incident,
    Mounts,
    can_be_of_incident,
    close_incident,
    find,
    find_incident_of_run,
    get_category,
    is_affected,
    is_proof,
    join_failures,
)
from slurmwrap.protocols import OpenIncident
from slurmwrap.reconcile.ingest_gpu_samples import list_published_use
from slurmwrap.reconcile.reconcile_context import ReconcilePass

# Age up to which failures are kept in memory.
_LOOK_BACK_S = 3 * 3600.0
# A run that failed during an incident may be judged this much later.
_INCIDENT_KEPT_S = 24 * 3600.0
# Number of failures that are kept in memory from one pass to the next.
_MOST_FAILURES = 2000
# When many failures are known, incidents are searched for again after a tenth more new ones, but after 40 at the
# latest.
_GROWTH_DIVISOR, _MOST_UNSEEN = 10, 40


def open_pass(this_pass: ReconcilePass) -> None:
    """Load the open incidents, and search for those that the last process did not see.

    Runs before anything is judged. Only the site's reconciler has incidents.
    """
    if this_pass.services.scope.user is not None:
        return
    book, since = this_pass.book, this_pass.now - _LOOK_BACK_S
    # Reset the stored result, so that after a pass that ends early everything is read again.
    known, book.incidents = book.incidents, None
    if known is None or book.failures is None:
        _read_from_store(this_pass, since)
    else:
        this_pass.incidents = tuple(
            one for one in known if one.over_at is None or one.over_at >= this_pass.now - _INCIDENT_KEPT_S
        )
        this_pass.incidents = _drop_closed_incidents(this_pass)
        recent = sorted((r for r in book.failures.values() if _get_end_time(r) >= since), key=_get_end_time)[
            -_MOST_FAILURES:
        ]
        book.failures = {record.attempt: record for record in recent}
    _close_finished(this_pass)


def _drop_closed_incidents(this_pass: ReconcilePass) -> tuple[Incident, ...]:
    """Return `this_pass.incidents`, updated with those that a person closed since (`slurmwrap incidents close`)."""
    if all(one.over_at is not None for one in this_pass.incidents):
        return this_pass.incidents
    closed_now = {
        one.incident_id: one
        for one in this_pass.services.store.incidents(since=this_pass.now - _INCIDENT_KEPT_S)
        if one.closed_by
    }
    this_pass.dirty |= any(one.over_at is None and one.incident_id in closed_now for one in this_pass.incidents)
    return tuple(closed_now.get(one.incident_id, one) for one in this_pass.incidents)


def _read_from_store(this_pass: ReconcilePass, since: float) -> None:
    """Read failures and incidents from the database; add failures that the last process saw and did not store yet."""
    store = this_pass.services.store
    read = store.failures(FAILURES, since=since, limit=_MOST_FAILURES)
    this_pass.book.failures = {record.attempt: record for record in read}
    stored = store.incidents(since=this_pass.now - _INCIDENT_KEPT_S)
    this_pass.incidents = tuple(join_failures(one, read) for one in stored)
    this_pass.grown = _find_changed(stored, this_pass.incidents)
    _search_incidents(this_pass, read, proven=any(_may_confirm(run, this_pass) for run in read))


def find_incident(run: JobRun, this_pass: ReconcilePass) -> Incident | None:
    """Return the incident of a run whose diagnosis was just made, or None. The run itself may reveal a new incident."""
    if this_pass.book.failures is None or run.diagnosis is None or run.diagnosis.decision == "none":
        return None
    if not can_be_of_incident(run):
        return None
    this_pass.book.failures[run.attempt] = run
    if _may_confirm(run, this_pass):
        _search_incidents(this_pass, _list_near_failures(run, this_pass), judging=run, proven=True)
    found = find_incident_of_run(this_pass.incidents, run) or _find_new_incident(run, this_pass)
    if found is None:
        return None
    _extend_incident(found, run, this_pass)
    if not _is_affected(found, run, this_pass):
        return None
    this_pass.book.failures[run.attempt] = replace(run, incident=found.incident_id)
    return found


def _may_confirm(run: JobRun, this_pass: ReconcilePass) -> bool:
    return any(one.over_at is None and not one.confirmed and is_proof(run, one) for one in this_pass.incidents)


def _list_near_failures(run: JobRun, this_pass: ReconcilePass) -> tuple[JobRun, ...]:
    """Return the failures that can belong to an incident which `run` confirms."""
    span, end = 2 * this_pass.services.config.incidents.quiet_s, _get_end_time(run)
    return tuple(r for r in (this_pass.book.failures or {}).values() if abs(_get_end_time(r) - end) <= span)


def _is_affected(incident: Incident, run: JobRun, this_pass: ReconcilePass) -> bool:
    known = (this_pass.book.failures or {}).values()
    return is_affected(incident, run, known, this_pass.services.config.incidents.min_jobs)


def excuse_run(run: JobRun, this_pass: ReconcilePass) -> JobRun:
    """Return `run` with the incident to which it was assigned after it was judged."""
    return replace(run, incident=this_pass.excused.get(run.attempt, run.incident))


def end(this_pass: ReconcilePass) -> None:
    """Close incidents that are over and store those that changed. Runs after all runs were judged."""
    if this_pass.unseen:
        _search_incidents(this_pass, tuple((this_pass.book.failures or {}).values()))
    _close_finished(this_pass)
    this_pass.incidents = _drop_closed_incidents(this_pass)
    for one in this_pass.incidents:
        if one.incident_id in this_pass.grown:
            this_pass.services.store.save_incident(one)
    this_pass.dirty |= bool(this_pass.grown)
    this_pass.grown.clear()
    if this_pass.book.failures is not None:
        this_pass.book.incidents = this_pass.incidents
    _notify_again(this_pass)


def list_published_incidents(incidents: Iterable[Incident], mounts: Mounts) -> tuple[OpenIncident, ...]:
    """Return the open and confirmed incidents as every user may see them. What only logs show warns no user."""
    return tuple(
        OpenIncident(
            category=one.category,
            scope=_describe_scope(one.scope, mounts),
            since=one.began,
            jobs=len(one.jobs),
            users=one.users,
        )
        for one in incidents
        if one.over_at is None and one.confirmed
    )


def _describe_scope(scope: str, mounts: Mounts) -> str:
    """Return the scope without users' text. Switches are Slurm's record; a path or host comes from users' logs.

    A path is shown only if it is a mount point that slurmwrap knows itself.
    """
    kind, _, what = scope.partition(" ")
    if kind == "path":
        return scope if mounts(what) == what else kind
    return kind if kind == "host" else scope


def _find_new_incident(run: JobRun, this_pass: ReconcilePass) -> Incident | None:
    """Return the new incident if `run` and the failures near it form one.

    During a storm only some runs are examined.
    """
    category = get_category(run)
    if category not in SHARED:
        return None
    span, end = 2 * this_pass.services.config.incidents.window_s, _get_end_time(run)
    this_pass.unseen[category] += 1
    count, there = this_pass.looked.get(category, (0, end))
    if this_pass.unseen[category] < min(_MOST_UNSEEN, count // _GROWTH_DIVISOR) and abs(end - there) < span:
        return None
    known = (this_pass.book.failures or {}).values()
    near = [r for r in known if _may_be_related(r, category) and abs(_get_end_time(r) - end) <= span]
    this_pass.looked[category] = len(near), end
    del this_pass.unseen[category]
    _search_incidents(this_pass, near, judging=run)
    return find_incident_of_run(this_pass.incidents, run)


def _may_be_related(run: JobRun, category: str) -> bool:
    """Return whether `run` may belong to an incident of `category`, or prove it: a lost node."""
    return get_category(run) in (category, LOST_NODE)


def _search_incidents(
    this_pass: ReconcilePass, failures: Sequence[JobRun], judging: JobRun | None = None, *, proven: bool = False
) -> None:
    """Search `failures` for incidents. Store a new one together with its runs that were judged before.

    It is stored before the decision that depends on it, so that a reconciler killed in between decides the same.
    `proven`: a failure may confirm a known incident, so that even without new ones there is something to find.
    """
    settings = this_pass.services.config.incidents
    if judging is None:
        this_pass.unseen.clear()
    free = [r for r in failures if get_category(r) in SHARED and find_incident_of_run(this_pass.incidents, r) is None]
    if len(free) < settings.min_jobs and not proven:
        return
    before = {one.incident_id: one for one in this_pass.incidents}
    this_pass.incidents = find(
        failures,
        this_pass.incidents,
        now=this_pass.now,
        # The snapshot asks Slurm, so it is taken only when there are enough failures.
        topology=this_pass.snapshot().topology,
        settings=settings,
        mounts=this_pass.services.mounts,
    )
    for one in this_pass.incidents:
        if before.get(one.incident_id) != one:
            _store_incident(one, judging, this_pass)


def _store_incident(incident: Incident, judging: JobRun | None, this_pass: ReconcilePass) -> None:
    """Store an incident. Runs of it that were judged before are marked, and their strikes no longer count."""
    known = this_pass.book.failures or {}
    late = [
        key
        for key, record in known.items()
        if record is not judging
        and not record.incident
        and find_incident_of_run((incident,), record) is not None
        and _is_affected(incident, record, this_pass)
    ]
    this_pass.services.store.save_incident(incident, late)
    for key in late:
        known[key] = replace(known[key], incident=incident.incident_id)
        this_pass.excused[key] = incident.incident_id
    this_pass.grown.discard(incident.incident_id)
    this_pass.dirty = True


def _extend_incident(incident: Incident, run: JobRun, this_pass: ReconcilePass) -> None:
    """Add one more run to an incident, with each user's first failure since the last one that confirmed it."""
    first: dict[int, JobRun] = {}
    for other in sorted((this_pass.book.failures or {}).values(), key=_get_end_time):
        if _get_end_time(other) > incident.last:
            first.setdefault(other.uid, other)
    grown = join_failures(incident, {r.attempt: r for r in (*first.values(), run)}.values())
    if grown != incident:
        this_pass.incidents = tuple(grown if known is incident else known for known in this_pass.incidents)
        this_pass.grown.add(incident.incident_id)


def _notify_again(this_pass: ReconcilePass) -> None:
    """Inform the owners whose runs were reported before their incident was recognised.

    A reconciler killed before this loses only that remark.
    """
    publisher, store = this_pass.services.publisher, this_pass.services.store
    if publisher is None or not this_pass.telling:
        return
    for key in this_pass.excused:
        record = store.attempt(key)
        if record is None or not record.reconciled:
            # Its owner is informed when the run is finished.
            continue
        try:
            publisher.tell_owner(record, store.actions(key), list_published_use(record, store))
        except SlurmwrapError as error:
            this_pass.summary.errors.append(str(error))
            return


def _close_finished(this_pass: ReconcilePass) -> None:
    """Close the incidents that are over."""
    known = this_pass.incidents
    this_pass.incidents = tuple(close_incident(one, this_pass.now) for one in known)
    this_pass.grown |= _find_changed(known, this_pass.incidents)


def _find_changed(before: Sequence[Incident], after: Sequence[Incident]) -> set[str]:
    return {new.incident_id for old, new in zip(before, after, strict=True) if old != new}


def _get_end_time(run: JobRun) -> float:
    return float(run.end_time or 0)
