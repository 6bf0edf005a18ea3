"""One pass: ingest, judge every run that ended, act, publish."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.errors import SlurmUnreachable, SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.run import JobRun
from slurmwrap.policy import blocked_inputs
from slurmwrap.policy.launch_failure import is_held_launch
from slurmwrap.policy.run_from_slurm import key_of, record_of, run_before
from slurmwrap.profiling.profile_key import published_key_of
from slurmwrap.protocols import Published
from slurmwrap.reconcile import open_incidents
from slurmwrap.reconcile.execute_actions import finish
from slurmwrap.reconcile.ingest import ingest
from slurmwrap.reconcile.judge_run import judge
from slurmwrap.reconcile.node_health import judge_nodes
from slurmwrap.reconcile.node_load import is_relaxing, measure_node_loads
from slurmwrap.reconcile.orphaned_holds import release_gates
from slurmwrap.reconcile.publish_gate_permit import renew_gate_permit
from slurmwrap.reconcile.queue_delay import count_delays
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, Services, SlurmJobs
from slurmwrap.reconcile.relax_pending import relax_waiting
from slurmwrap.reconcile.slurmdbd_lookup import recall
from slurmwrap.reconcile.tune_pending import tune_waiting

_LAUNCH_S = 7 * 86400  # a run whose launch failed was submitted, or requeued, so long ago at most
_STARTED = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


def reconcile_once(edges: Services, book: ReconcilerState | None = None) -> PassSummary:
    """One pass over everything that is new. SlurmUnreachable and StoreError end it early; the next pass goes on."""
    book = book if book is not None else ReconcilerState()
    book.cluster = book.cluster or edges.slurm.cluster_name()
    words = SlurmJobs(ask=lambda: edges.slurm.jobs(edges.scope.user))
    run = ReconcilePass(edges=edges, book=book, words=words, summary=PassSummary(), now=edges.clock.now())
    try:
        _run_pass(run)
    finally:
        if edges.publisher is not None:
            edges.publisher.end_pass()
    run.summary.took_s = max(0.0, edges.clock.now() - run.now)
    return run.summary


def _run_pass(run: ReconcilePass) -> None:
    run.summary.ingested = ingest(run.edges, run.book.cluster, run.words)
    open_incidents.open_pass(run)
    _look_after(count_delays, run)  # before the runs that ended are judged: how long they waited is theirs
    _look_after(recall, run)
    run.to_do = _list_runs_to_do(run)
    for record in run.to_do:
        try:
            _process_run(record, run)
        except (SlurmUnreachable, StoreError):
            raise
        except Exception as error:  # one job that we cannot handle must not keep all others waiting
            run.summary.errors.append(f"job {record.address}: {type(error).__name__}: {error}")
    open_incidents.end(run)
    release_gates(run)
    for look in (relax_waiting, tune_waiting):
        _look_after(look, run)
    _publish(run)
    _renew_gate_permit(run)


def _list_runs_to_do(run: ReconcilePass) -> tuple[JobRun, ...]:
    """Runs that are not done with, oldest first, after those that Slurm shows were added."""
    store, cluster = run.edges.store, run.book.cluster
    with store.transaction():
        open_ones = {record.attempt: record for record in store.attempts(cluster=cluster, unreconciled=True)}
        jobs = [job for job in run.words.first.values() if not job.refused]
        shown = {key_of(job, cluster): job for job in jobs if job.state in _STARTED or job.ended}
        for key, job in shown.items():
            if key in run.book.settled:
                continue
            before = open_ones.get(key) or store.attempt(key)
            if before is not None and before.reconciled:
                run.book.settled.add(key)
                continue
            seen = before if before is not None and before.diagnosis else record_of(job, cluster, before)
            if seen != before and not job.ended:
                store.save_attempt(seen)
            open_ones[key] = seen
        run.book.settled &= shown.keys()
        for job in filter(is_held_launch, run.words.first.values()):
            if not any(_is_before(known, job) for known in store.attempts(cluster=cluster, job_id=job.job_id)):
                unseen = run_before(job, cluster)
                store.save_attempt(unseen)
                open_ones[unseen.attempt] = unseen
    return tuple(sorted(open_ones.values(), key=lambda record: record.attempt.submit_time))


def _is_before(record: JobRun, job: JobRecord) -> bool:
    """Whether `record` is of the run before the one that `job` shows; an older job of the same id is not."""
    recent = record.attempt.submit_time > job.submit_time - _LAUNCH_S or not record.reconciled
    return record.uid == job.uid and record.restarts == job.restarts - 1 and recent


def _process_run(record: JobRun, run: ReconcilePass) -> None:
    """Brings one run as far as it can be brought now."""
    job = run.words.first.get(record.attempt.job_id)
    if job is None and record.attempt.job_id in run.words.latest:
        return  # Slurm showed it only after the spools were read: the next pass has all of it
    if job is not None and job.submit_time < record.attempt.submit_time:
        job = None  # an older record of a controller that lost its state
    record = open_incidents.excuse_run(record, run)
    if record.diagnosis is None:
        judged = judge(record, job, run)
        if judged is None:
            return
        record = judged
    finish(record, job, run)


def _look_after(look: Callable[[ReconcilePass], None], run: ReconcilePass) -> None:
    """The jobs that wait. What goes wrong there must not keep from the others what else a pass does."""
    try:
        look(run)
    except (SlurmUnreachable, StoreError):
        raise
    except Exception as error:
        run.summary.errors.append(f"{look.__name__}: {type(error).__name__}: {error}")


def _renew_gate_permit(run: ReconcilePass) -> None:
    try:
        renew_gate_permit(run)
    except SlurmUnreachable:
        raise
    except SlurmwrapError as error:
        run.summary.errors.append(str(error))


def _publish(run: ReconcilePass) -> None:
    """Replaces what everyone may see, when it changed and every five minutes."""
    publisher, store, now = run.edges.publisher, run.edges.store, run.edges.clock.now()
    changed = run.dirty or run.summary.ingested.profiles or run.summary.ingested.blocked
    if publisher is None or (not changed and 0 <= now - run.book.published_at < 300):
        return
    profiles = store.profiles()
    published = Published(
        at=now,
        health=judge_nodes(run),
        blocked=tuple(blocked_inputs.make_published_block(block) for block in store.blocked_inputs()),
        profiles=tuple(replace(p, key=published_key_of(p.key)) for p in profiles),
        incidents=open_incidents.list_published_incidents(run.incidents, run.edges.mounts),
        loads=measure_node_loads(run, {profile.key: profile for profile in profiles}),
        relaxing=is_relaxing(run.edges),
    )
    try:
        publisher.publish(published)
    except SlurmwrapError as error:
        run.summary.errors.append(str(error))
        return
    run.book.published_at, run.summary.published = now, True
