"""One pass of the reconciler (ingest, judge each ended run, act, publish), and the loop that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from slurmwrap.errors import SlurmUnreachable, SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import NodeHealth, NodeLoad
from slurmwrap.model.decision import Verb
from slurmwrap.model.gate_permit import Fault, Gate
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun, StrikeRecord
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.policy import blocked_inputs
from slurmwrap.policy.node_history import find_changed_removals, list_lifted_drains
from slurmwrap.policy.requeue import is_held_launch
from slurmwrap.policy.run_from_slurm import key_of, record_of, run_before, speaks_for
from slurmwrap.policy.strikes import Fleet, drained_by_us, health, out_of_service
from slurmwrap.profiling.job_key import profile_key_of, published_key_of
from slurmwrap.protocols import Published
from slurmwrap.reconcile import open_incidents
from slurmwrap.reconcile.execute_actions import finish
from slurmwrap.reconcile.ingest_spool import ingest
from slurmwrap.reconcile.judge_run import judge
from slurmwrap.reconcile.pending_jobs import release_gates
from slurmwrap.reconcile.queue_delay import count_delays
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, Services, SlurmJobs
from slurmwrap.reconcile.relax_pending import relax_waiting
from slurmwrap.reconcile.slurmdbd_lookup import recall
from slurmwrap.reconcile.tune_pending import tune_waiting


# What a pass learns about nodes from Slurm, and the health that is published of them.
def judge_nodes(this_pass: ReconcilePass) -> tuple[NodeHealth, ...]:
    """Notes which nodes went out of service or came back, then judges all of them by their history."""
    _store_removals(this_pass)
    config = this_pass.edges.config
    history = this_pass.edges.store.node_history(this_pass.now - config.nodes.window_days * 86400)
    return health(history, this_pass.snapshot().nodes, config, now=this_pass.now)


def _store_removals(this_pass: ReconcilePass) -> None:
    store, nodes = this_pass.edges.store, this_pass.snapshot().nodes
    known = store.removals()
    changed = find_changed_removals(known, out_of_service(nodes), (node.name for node in nodes), now=this_pass.now)
    if not changed:
        return
    with store.transaction():
        for removal in changed:
            store.save_removal(removal)
        for repair in list_lifted_drains(
            changed, _list_resumed_nodes(this_pass) if any(one.ours for one in changed) else {}
        ):
            store.add_repair(repair)


def _list_resumed_nodes(this_pass: ReconcilePass) -> dict[str, float]:
    """When we lifted the drain of a node ourselves, or an administrator by our command; the last time of each."""
    actions = this_pass.edges.store.actions()
    return {a.target: a.done_at for a in actions if a.verb == Verb.RESUME.value and a.done_at and not a.error}


# What the Prolog gate on the nodes knows: which faults stand, and whether it may refuse anything at all.
# A reconciler that died closes the gate's eyes after so long.
PERMIT_S = 300.0
_RENEW_S = 100.0
# How long a fault is published. Where we drain, the drain soon stands for it, and who lifts that has looked at the
# node.
_STANDING_S, _UNTIL_DRAINED_S = 86400.0, 900.0


def renew_gate_permit(this_pass: ReconcilePass) -> None:
    """Renews the permit in time. Without the rule in `advise` or `act` nothing is published, and no permit is given."""
    publisher, mode = this_pass.edges.publisher, this_pass.edges.config.mode_of("gate")
    if publisher is None or this_pass.edges.scope.user is not None or mode == "observe":
        return
    left = this_pass.book.gate_until - this_pass.now
    # More is left only where the clock was put back.
    if _RENEW_S < left <= PERMIT_S and not this_pass.dirty:
        return
    fleet = Fleet(nodes=this_pass.snapshot().nodes)
    out = sum(drained_by_us(node) for node in fleet.nodes)
    allowed = mode == "act" and out < fleet.allowance(this_pass.edges.config.placement.exclude_cap)
    standing = _UNTIL_DRAINED_S if this_pass.edges.config.mode_of("drain") == "act" else _STANDING_S
    mended = {repair.node: repair.at for repair in this_pass.edges.store.repairs(since=this_pass.now - standing)}
    faults = _list_newest_faults(
        s for s in this_pass.edges.store.strikes(since=this_pass.now - standing) if s.at > mended.get(s.node, 0.0)
    )
    publisher.tell_gate(Gate(at=this_pass.now, until=this_pass.now + PERMIT_S, allowed=allowed, faults=faults))
    this_pass.book.gate_until = this_pass.now + PERMIT_S


def _list_newest_faults(strikes: Iterable[StrikeRecord]) -> tuple[Fault, ...]:
    """Of each node the newest conclusive fault, for all to read: a kernel line would name the user's program."""
    latest = {strike.node: strike for strike in strikes if strike.conclusive}
    return tuple(Fault(node=s.node, cause=s.cause, since=s.at) for _, s in sorted(latest.items()))


# What is published of the jobs that run: how busy each node is as far as profiles show, and whether we relax.
#
# No one is named: a node's figures are the sums over all its jobs with a profile.
def is_relaxing(services: Services) -> bool:
    """Whether this reconciler loosens what waits: only then may gsub ask for what would otherwise starve a job.

    All of it, or nothing is promised: gsub may ask for a number of nodes, which not every SlurmUser may change.
    """
    config = services.config
    acts = services.scope.user is None and config.mode_of("relax") == "act" and config.placement.relax_jobs > 0
    return acts and services.may_resize()


def measure_node_loads(this_pass: ReconcilePass, profiles: Mapping[str, ResourceProfile]) -> tuple[NodeLoad, ...]:
    """By node, in order. Empty in user mode: one user's jobs say little of a node."""
    if this_pass.edges.scope.user is not None:
        return ()
    loads: dict[str, NodeLoad] = {}
    for job, profile in _list_known_jobs(this_pass, profiles):
        for node in job.nodes:
            loads[node] = _add_load(loads.get(node, NodeLoad(node=node)), job, profile)
    return tuple(loads[node] for node in sorted(loads))


def _list_known_jobs(
    this_pass: ReconcilePass, profiles: Mapping[str, ResourceProfile]
) -> Iterator[tuple[JobRecord, ResourceProfile]]:
    running = {
        key_of(job, this_pass.book.cluster): job for job in this_pass.words.first.values() if job.state == "RUNNING"
    }
    names = this_pass.book.profile_keys
    for gone in names.keys() - running.keys():
        del names[gone]
    for key, job in running.items():
        if key not in names:
            names[key] = _profile_key(job, this_pass)
        if job.nodes and job.gpus and (profile := profiles.get(names[key])):
            yield job, profile


def _profile_key(job: JobRecord, this_pass: ReconcilePass) -> str:
    submitted_id = job.job_id if job.array_job_id is None else job.array_job_id
    found = this_pass.edges.store.submission(this_pass.book.cluster, submitted_id)
    if found is None or not found.profile_key or not speaks_for(found, record_of(job, this_pass.book.cluster)):
        return ""
    return profile_key_of(found.uid, found.profile_key)


def _add_load(load: NodeLoad, job: JobRecord, profile: ResourceProfile) -> NodeLoad:
    """`load` with an equal share of the job: Slurm does not say which GPU lies where without a call per job."""
    nodes = len(job.nodes)
    gpus = job.gpus / nodes
    return replace(
        load,
        cpus_busy=round(load.cpus_busy + gpus * (profile.cpus_busy or profile.cpus_per_gpu or 0.0), 3),
        mem_mib=load.mem_mib + int(gpus * (profile.mem_mib_per_gpu or 0)),
    )


# A run whose launch failed was submitted, or requeued, so long ago at most.
_LAUNCH_S = 7 * 86400
_STARTED = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


def reconcile_once(services: Services, book: ReconcilerState | None = None) -> PassSummary:
    """One pass over everything that is new. SlurmUnreachable and StoreError end it early; the next pass goes on."""
    book = book if book is not None else ReconcilerState()
    book.cluster = book.cluster or services.slurm.cluster_name()
    words = SlurmJobs(ask=lambda: services.slurm.jobs(services.scope.user))
    run = ReconcilePass(edges=services, book=book, words=words, summary=PassSummary(), now=services.clock.now())
    try:
        _run_pass(run)
    finally:
        if services.publisher is not None:
            services.publisher.end_pass()
    run.summary.took_s = max(0.0, services.clock.now() - run.now)
    return run.summary


def _run_pass(this_pass: ReconcilePass) -> None:
    this_pass.summary.ingested = ingest(this_pass.edges, this_pass.book.cluster, this_pass.words)
    open_incidents.open_pass(this_pass)
    # Before the runs that ended are judged: how long they waited is theirs.
    _look_after(count_delays, this_pass)
    _look_after(recall, this_pass)
    this_pass.to_do = _list_runs_to_do(this_pass)
    for record in this_pass.to_do:
        try:
            _process_run(record, this_pass)
        except (SlurmUnreachable, StoreError):
            raise
        except Exception as error:
            # One job that we cannot handle must not keep all others waiting.
            this_pass.summary.errors.append(f"job {record.address}: {type(error).__name__}: {error}")
    open_incidents.end(this_pass)
    release_gates(this_pass)
    for look in (relax_waiting, tune_waiting):
        _look_after(look, this_pass)
    _publish(this_pass)
    _renew_gate_permit(this_pass)


def _list_runs_to_do(this_pass: ReconcilePass) -> tuple[JobRun, ...]:
    """Runs that are not done with, oldest first, after those that Slurm shows were added."""
    store, cluster = this_pass.edges.store, this_pass.book.cluster
    with store.transaction():
        open_ones = {record.attempt: record for record in store.attempts(cluster=cluster, unreconciled=True)}
        jobs = [job for job in this_pass.words.first.values() if not job.refused]
        shown = {key_of(job, cluster): job for job in jobs if job.state in _STARTED or job.ended}
        for key, job in shown.items():
            if key in this_pass.book.settled:
                continue
            before = open_ones.get(key) or store.attempt(key)
            if before is not None and before.reconciled:
                this_pass.book.settled.add(key)
                continue
            seen = before if before is not None and before.diagnosis else record_of(job, cluster, before)
            if seen != before and not job.ended:
                store.save_attempt(seen)
            open_ones[key] = seen
        this_pass.book.settled &= shown.keys()
        for job in filter(is_held_launch, this_pass.words.first.values()):
            if not any(_is_before(known, job) for known in store.attempts(cluster=cluster, job_id=job.job_id)):
                unseen = run_before(job, cluster)
                store.save_attempt(unseen)
                open_ones[unseen.attempt] = unseen
    return tuple(sorted(open_ones.values(), key=lambda record: record.attempt.submit_time))


def _is_before(run: JobRun, job: JobRecord) -> bool:
    """Whether `run` is of the run before the one that `job` shows; an older job of the same id is not."""
    recent = run.attempt.submit_time > job.submit_time - _LAUNCH_S or not run.reconciled
    return run.uid == job.uid and run.restarts == job.restarts - 1 and recent


def _process_run(run: JobRun, this_pass: ReconcilePass) -> None:
    """Brings one run as far as it can be brought now."""
    job = this_pass.words.first.get(run.attempt.job_id)
    if job is None and run.attempt.job_id in this_pass.words.latest:
        # Slurm showed it only after the spools were read: the next pass has all of it.
        return
    if job is not None and job.submit_time < run.attempt.submit_time:
        # An older record of a controller that lost its state.
        job = None
    run = open_incidents.excuse_run(run, this_pass)
    if run.diagnosis is None:
        judged = judge(run, job, this_pass)
        if judged is None:
            return
        run = judged
    finish(run, job, this_pass)


def _look_after(look: Callable[[ReconcilePass], None], this_pass: ReconcilePass) -> None:
    """The jobs that wait. What goes wrong there must not keep from the others what else a pass does."""
    try:
        look(this_pass)
    except (SlurmUnreachable, StoreError):
        raise
    except Exception as error:
        this_pass.summary.errors.append(f"{look.__name__}: {type(error).__name__}: {error}")


def _renew_gate_permit(this_pass: ReconcilePass) -> None:
    try:
        renew_gate_permit(this_pass)
    except SlurmUnreachable:
        raise
    except SlurmwrapError as error:
        this_pass.summary.errors.append(str(error))


def _publish(this_pass: ReconcilePass) -> None:
    """Replaces what everyone may see, when it changed and every five minutes."""
    publisher, store, now = this_pass.edges.publisher, this_pass.edges.store, this_pass.edges.clock.now()
    changed = this_pass.dirty or this_pass.summary.ingested.profiles or this_pass.summary.ingested.blocked
    if publisher is None or (not changed and 0 <= now - this_pass.book.published_at < 300):
        return
    profiles = store.profiles()
    published = Published(
        at=now,
        health=judge_nodes(this_pass),
        blocked=tuple(blocked_inputs.make_published_block(block) for block in store.blocked_inputs()),
        profiles=tuple(replace(p, key=published_key_of(p.key)) for p in profiles),
        incidents=open_incidents.list_published_incidents(this_pass.incidents, this_pass.edges.mounts),
        loads=measure_node_loads(this_pass, {profile.key: profile for profile in profiles}),
        relaxing=is_relaxing(this_pass.edges),
    )
    try:
        publisher.publish(published)
    except SlurmwrapError as error:
        this_pass.summary.errors.append(str(error))
        return
    this_pass.book.published_at, this_pass.summary.published = now, True


# A job is COMPLETING, or an Epilog is still to be heard of.
_SOON_S = 2.0
_AWAY_S, _AWAY_MAX_S = 5.0, 300.0
_TICK_S = 0.25


def watch(
    services: Services,
    *,
    poll_s: float,
    woken: Callable[[], object],
    stopped: Callable[[], bool],
    report: Callable[[PassSummary], None] = lambda summary: None,
) -> None:
    """Passes until `stopped()`: every `poll_s`, sooner while jobs are ending or when `woken()` changes its value.

    When Slurm, MUNGE or the database cannot be used it says so once and tries ever more rarely, up to every five
    minutes. Nothing is judged meanwhile: half of the evidence would make wrong diagnoses.
    """
    book, away_s = ReconcilerState(), 0.0
    while not stopped():
        seen = woken()
        try:
            summary = reconcile_once(services, book)
        except SlurmwrapError as error:
            if not away_s:
                services.say(f"trying again until it works: {error}")
            away_s = min(_AWAY_MAX_S, away_s * 2 or _AWAY_S)
            _wait(services, away_s, stopped)
            continue
        if away_s:
            services.say("it works again")
            away_s = 0.0
        report(summary)
        soon = summary.waiting or summary.held_back
        _wait(services, min(_SOON_S, poll_s) if soon else poll_s, _combine_stops(stopped, woken, seen))


def _combine_stops(stopped: Callable[[], bool], woken: Callable[[], object], seen: object) -> Callable[[], bool]:
    return lambda: stopped() or woken() != seen


def _wait(services: Services, seconds: float, over: Callable[[], bool]) -> None:
    """A wake file touched by many jobs in a row is one wake: nothing is done within the first second."""
    began = services.clock.now()
    services.clock.sleep(min(1.0, seconds))
    # A clock that is put back ends the wait.
    while 0 <= services.clock.now() - began < seconds and not over():
        services.clock.sleep(_TICK_S)
