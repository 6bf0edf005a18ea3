"""One pass of the reconciler (ingest, judge each ended run, act, publish), and the loop that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from slurmwrap.errors import SlurmUnreachable, SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import ContentionWeights, NodeHealth, NodeLoad
from slurmwrap.model.decision import Verb
from slurmwrap.model.gate_permit import Fault, Gate
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun, StrikeRecord
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.candidates import build_domain_tables
from slurmwrap.policy import blocked_inputs
from slurmwrap.policy.node_history import find_changed_removals, list_lifted_drains
from slurmwrap.policy.node_return import list_nodes_in_check
from slurmwrap.policy.requeue import RETRY_JOB_COMMENT, is_held_launch
from slurmwrap.policy.run_from_slurm import (
    is_next_run,
    is_submission_of_run,
    make_previous_run,
    record_of,
    run_key_from_job,
    set_earlier_key,
)
from slurmwrap.policy.strikes import Fleet, health, is_drained_by_slurmwrap, out_of_service
from slurmwrap.prerun.expected_saving import summarize_history
from slurmwrap.profiling.contention import fit_contention_weights, make_contention_cases
from slurmwrap.profiling.job_key import derive_published_key, derive_site_key
from slurmwrap.profiling.storage_model import summarize_mounts
from slurmwrap.protocols import Published
from slurmwrap.reconcile import open_incidents
from slurmwrap.reconcile.check_running import check_running
from slurmwrap.reconcile.execute_actions import finish
from slurmwrap.reconcile.ingest_spool import ingest
from slurmwrap.reconcile.judge_run import judge
from slurmwrap.reconcile.limit_pending import limit_waiting
from slurmwrap.reconcile.limit_running import limit_running
from slurmwrap.reconcile.move_running import move_running
from slurmwrap.reconcile.notify_findings import notify_findings
from slurmwrap.reconcile.order_pending import make_published_order, order_waiting
from slurmwrap.reconcile.pending_job_updates import release_gates
from slurmwrap.reconcile.publish_run_times import format_published_run_times, update_run_time_lines
from slurmwrap.reconcile.queue_delay import count_delays
from slurmwrap.reconcile.read_loss_curves import read_loss_curves
from slurmwrap.reconcile.reconcile_context import PassSummary, ReconcilePass, ReconcilerState, Services, SlurmJobs
from slurmwrap.reconcile.relax_pending import relax_waiting
from slurmwrap.reconcile.restore_limits import restore_limits
from slurmwrap.reconcile.resume_nodes import resume_nodes
from slurmwrap.reconcile.run_time_lookup import forget_changed_queries
from slurmwrap.reconcile.slurmdbd_lookup import recall
from slurmwrap.reconcile.stop_running import stop_running
from slurmwrap.reconcile.tune_pending import tune_waiting


# Nodes: store what a pass learns about them from Slurm, and return the health that is published.
def judge_nodes(this_pass: ReconcilePass) -> tuple[NodeHealth, ...]:
    """Store which nodes went out of service or came back, then judge all nodes by their history."""
    _store_removals(this_pass)
    config = this_pass.services.config
    history = this_pass.services.store.node_history(this_pass.now - config.nodes.window_days * 86400)
    return health(history, this_pass.snapshot().nodes, config, now=this_pass.now)


def _store_removals(this_pass: ReconcilePass) -> None:
    store, nodes = this_pass.services.store, this_pass.snapshot().nodes
    known = store.removals()
    # The drain of a node is lifted while it is checked: it did not come back yet.
    in_check = list_nodes_in_check(this_pass.snapshot().reservations)
    seen = [node for node in nodes if node.name not in in_check]
    changed = find_changed_removals(known, out_of_service(seen), in_check, now=this_pass.now)
    if not changed or not nodes:
        return
    with store.transaction():
        for removal in changed:
            store.save_removal(removal)
        for repair in list_lifted_drains(
            changed,
            _list_resumed_nodes(this_pass) if any(one.ours for one in changed) else {},
            {node.name for node in nodes},
        ):
            store.add_repair(repair)


def _list_resumed_nodes(this_pass: ReconcilePass) -> dict[str, float]:
    """Return when slurmwrap, or an administrator with its command, last lifted its own drain of each node."""
    actions = this_pass.services.store.actions()
    return {a.target: a.done_at for a in actions if a.verb == Verb.RESUME.value and a.done_at and not a.error}


# The Prolog gate on the nodes: publish the known faults, and whether the gate may refuse a job at all.
# The permit ends after PERMIT_S seconds, so that the gate refuses nothing when the reconciler has died.
PERMIT_S = 300.0
_RENEW_S = 100.0
# How long a fault is published, in seconds. If slurmwrap drains nodes, the drain soon replaces the published fault, and
# a person who lifts the drain has looked at the node.
_FAULT_S, _FAULT_UNTIL_DRAINED_S = 86400.0, 900.0


def renew_gate_permit(this_pass: ReconcilePass) -> None:
    """Renew the gate's permit in time.

    In mode `observe` of the rule `gate` nothing is published; only mode `act` permits a refusal.
    """
    publisher, mode = this_pass.services.publisher, this_pass.services.config.mode_of("gate")
    if publisher is None or this_pass.services.scope.user is not None:
        return
    if mode == "observe":
        if this_pass.off and this_pass.book.gate_until != this_pass.now:
            publisher.tell_gate(Gate(at=this_pass.now, until=this_pass.now, allowed=False, faults=()))
            this_pass.book.gate_until = this_pass.now
        return
    left = this_pass.book.gate_until - this_pass.now
    # More time can be left only if the clock was set back.
    if _RENEW_S < left <= PERMIT_S and not this_pass.dirty:
        return
    fleet = Fleet(nodes=this_pass.snapshot().nodes)
    out = sum(is_drained_by_slurmwrap(node) for node in fleet.nodes)
    allowed = mode == "act" and out < fleet.allowance(this_pass.services.config.placement.exclude_cap)
    fault_s = _FAULT_UNTIL_DRAINED_S if this_pass.services.config.mode_of("drain") == "act" else _FAULT_S
    repaired = {repair.node: repair.at for repair in this_pass.services.store.repairs(since=this_pass.now - fault_s)}
    faults = _list_newest_faults(
        s for s in this_pass.services.store.strikes(since=this_pass.now - fault_s) if s.at > repaired.get(s.node, 0.0)
    )
    publisher.tell_gate(Gate(at=this_pass.now, until=this_pass.now + PERMIT_S, allowed=allowed, faults=faults))
    this_pass.book.gate_until = this_pass.now + PERMIT_S


def _list_newest_faults(strikes: Iterable[StrikeRecord]) -> tuple[Fault, ...]:
    """Return the newest conclusive fault of each node.

    It is readable for all users, so it has no kernel line, which would name a user's program.
    """
    latest = {strike.node: strike for strike in strikes if strike.conclusive}
    return tuple(Fault(node=s.node, cause=s.cause, since=s.at) for _, s in sorted(latest.items()))


# Load of the nodes: publish how busy each node is, as far as profiles show, and whether pending jobs are relaxed. The
# figures of a node are sums over all its jobs with a profile, so that no user is identifiable.
def is_relaxing(services: Services) -> bool:
    """Return True if this reconciler relaxes pending jobs.

    Only then may gsub request what could otherwise starve a job. The reconciler must be able to make all changes: gsub
    may request a number of nodes, which not every SlurmUser may change.
    """
    config = services.config
    acts = services.scope.user is None and config.mode_of("relax") == "act" and config.placement.relax_jobs > 0
    return acts and services.may_resize()


def measure_node_loads(this_pass: ReconcilePass, profiles: Mapping[str, ResourceProfile]) -> tuple[NodeLoad, ...]:
    """Return the loads by node, in order; () in user mode, because one user's jobs show little of a node."""
    if this_pass.services.scope.user is not None:
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
        run_key_from_job(job, this_pass.book.cluster): job
        for job in this_pass.words.first.values()
        if job.state == "RUNNING"
    }
    names = this_pass.book.profile_keys
    for gone in names.keys() - running.keys():
        del names[gone]
    for key, job in running.items():
        if key not in names:
            names[key] = _find_profile_key(job, this_pass)
        if job.nodes and job.gpus and (profile := profiles.get(names[key])):
            yield job, profile


def _find_profile_key(job: JobRecord, this_pass: ReconcilePass) -> str:
    submitted_id = job.submitted_id
    found = this_pass.services.store.submission(this_pass.book.cluster, submitted_id)
    if (
        found is None
        or not found.profile_key
        or not is_submission_of_run(found, record_of(job, this_pass.book.cluster))
    ):
        return ""
    return derive_site_key(found.uid, found.profile_key)


def _add_load(load: NodeLoad, job: JobRecord, profile: ResourceProfile) -> NodeLoad:
    """Return `load` with an equal share of the job added; the GPUs of each node would need one Slurm call per job."""
    nodes = len(job.nodes)
    gpus = job.gpus / nodes
    return replace(
        load,
        cpus_busy=round(load.cpus_busy + gpus * (profile.cpus_busy or profile.cpus_per_gpu or 0.0), 3),
        mem_mib=load.mem_mib + int(gpus * (profile.mem_mib_per_gpu or 0)),
        pcie=round(load.pcie + gpus * (profile.gpu_pcie or 0.0), 3),
    )


# Contention: fitted once a day, because it rests on the runs of weeks.
_FIT_S, _FITTED_DAYS_S = 86400.0, 28 * 86400.0


def fit_contention(this_pass: ReconcilePass) -> ContentionWeights:
    """Return the weights of busy neighbours that the site's runs prove; in user mode nothing is known of neighbours."""
    book, store = this_pass.book, this_pass.services.store
    if this_pass.services.scope.user is None and not 0 <= this_pass.now - book.contention_at < _FIT_S:
        book.contention_at = this_pass.now
        runs, snapshot = store.shared_runs(this_pass.now - _FITTED_DAYS_S), this_pass.snapshot()
        levels = build_domain_tables(snapshot.topology) if runs else ()
        nodes = {node.name: node for node in snapshot.nodes}
        cases = make_contention_cases(runs, nodes, levels[0] if levels else {})
        book.contention = fit_contention_weights(cases)
    return book.contention


# A run whose launch failed was submitted or requeued at most this long ago.
_LAUNCH_S = 7 * 86400
_STARTED = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


def reconcile_once(services: Services, book: ReconcilerState | None = None) -> PassSummary:
    """Run one pass over all that is new. SlurmUnreachable and StoreError end it early; the next pass continues."""
    book = book if book is not None else ReconcilerState()
    book.cluster = book.cluster or services.slurm.cluster_name()
    slurm_jobs = SlurmJobs(ask=lambda: services.slurm.jobs(services.scope.user))
    switched_off = services.switched_off()
    run = ReconcilePass(
        services=services if switched_off is None else make_services_without_effect(services),
        book=book,
        words=slurm_jobs,
        summary=PassSummary(),
        now=services.clock.now(),
        off=switched_off is not None,
    )
    if run.off != book.off:
        services.say(f"switched off by {switched_off}: all rules observe" if run.off else "switched on again")
        book.off = run.off
    try:
        _run_pass(run)
    finally:
        if services.publisher is not None:
            services.publisher.end_pass()
    run.summary.took_s = max(0.0, services.clock.now() - run.now)
    return run.summary


# How many pending jobs get their own values back in a second when the order is withdrawn.
WITHDRAW_PER_S = 50.0


def make_services_without_effect(services: Services) -> Services:
    """Return services whose rules change nothing, and put back at a high rate what they changed for a while."""
    config = services.config.without_effect()
    placement = replace(config.placement, relax_updates_per_s=WITHDRAW_PER_S)
    return replace(services, config=replace(config, placement=placement))


def _run_pass(this_pass: ReconcilePass) -> None:
    # Before anything that could fail or take long: a job must never reach a limit that slurmwrap lowered.
    _run_step(restore_limits, this_pass)
    this_pass.summary.ingested = ingest(this_pass.services, this_pass.book.cluster, this_pass.words)
    forget_changed_queries(this_pass)
    open_incidents.open_pass(this_pass)
    # Before the ended runs are judged, because their waiting time belongs to their record.
    _run_step(count_delays, this_pass)
    _run_step(recall, this_pass)
    this_pass.to_do = _list_runs_to_do(this_pass)
    for record in this_pass.to_do:
        try:
            _process_run(record, this_pass)
        except (SlurmUnreachable, StoreError):
            raise
        except Exception as error:
            # One job that cannot be handled must not keep all others waiting.
            this_pass.summary.errors.append(f"job {record.address}: {type(error).__name__}: {error}")
    open_incidents.end(this_pass)
    release_gates(this_pass)
    changing = () if this_pass.off else (stop_running, notify_findings)
    for look in (
        *(relax_waiting, tune_waiting, order_waiting, limit_waiting, limit_running, check_running, move_running),
        *(update_run_time_lines, *changing, read_loss_curves),
    ):
        _run_step(look, this_pass)
    _publish(this_pass)
    _run_step(resume_nodes, this_pass)
    _renew_gate_permit(this_pass)


def _list_runs_to_do(this_pass: ReconcilePass) -> tuple[JobRun, ...]:
    """Return the runs that are not finished, oldest first, after adding those that Slurm shows."""
    store, cluster = this_pass.services.store, this_pass.book.cluster
    with store.transaction():
        open_ones = {record.attempt: record for record in store.attempts(cluster=cluster, unreconciled=True)}
        jobs = [job for job in this_pass.words.first.values() if not (job.refused or _is_own_retry_job(job, this_pass))]
        shown = {run_key_from_job(job, cluster): job for job in jobs if job.state in _STARTED or job.ended}
        for key, job in shown.items():
            if key in this_pass.book.settled:
                continue
            before = open_ones.get(key) or store.attempt(key)
            if before is not None and is_next_run(job, before):
                open_ones.pop(key, None)
                earlier = set_earlier_key(before, store.attempts(cluster=cluster, job_id=job.job_id))
                store.save_attempt(earlier)
                open_ones[earlier.attempt], before = earlier, None
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
                unseen = make_previous_run(job, cluster)
                store.save_attempt(unseen)
                open_ones[unseen.attempt] = unseen
    return tuple(sorted(open_ones.values(), key=lambda record: record.attempt.submit_time))


def _is_own_retry_job(job: JobRecord, this_pass: ReconcilePass) -> bool:
    """Return True for a job that gsub submitted to retry another one.

    Only in user mode: from a site's records a user must not be able to remove a job by its Comment.
    """
    return this_pass.services.scope.user is not None and job.comment == RETRY_JOB_COMMENT


def _is_before(run: JobRun, job: JobRecord) -> bool:
    """Return True if `run` is the one before the run that `job` shows. An older job with the same id is not."""
    recent = run.attempt.submit_time > job.submit_time - _LAUNCH_S or not run.reconciled
    return run.uid == job.uid and run.restarts == job.restarts - 1 and recent


def _process_run(run: JobRun, this_pass: ReconcilePass) -> None:
    """Judge one run and carry out its actions, as far as possible in this pass."""
    job = this_pass.words.first.get(run.attempt.job_id)
    if job is None and run.attempt.job_id in this_pass.words.latest:
        # Slurm showed it only after the spools were read. The next pass has all of its observations.
        return
    if job is not None and job.submit_time < run.attempt.submit_time:
        # The record is older than the run: the controller lost its state.
        job = None
    run = open_incidents.excuse_run(run, this_pass)
    if run.diagnosis is None:
        judged = judge(run, job, this_pass)
        if judged is None:
            return
        run = judged
    finish(run, job, this_pass)


def _run_step(look: Callable[[ReconcilePass], None], this_pass: ReconcilePass) -> None:
    """Run one step of the pass. An error in it must not prevent the other steps."""
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


# Newest submissions of all users from which the share of failing scripts is published.
_PUBLISHED_SCRIPTS = 1000


def _publish(this_pass: ReconcilePass) -> None:
    """Replace the published files, when something changed and every five minutes."""
    publisher, store, now = this_pass.services.publisher, this_pass.services.store, this_pass.services.clock.now()
    changed = this_pass.dirty or this_pass.summary.ingested.profiles or this_pass.summary.ingested.blocked
    if publisher is None or (not changed and 0 <= now - this_pass.book.published_at < 300):
        return
    profiles = store.profiles()
    scripts = summarize_history(store.script_outcomes(_PUBLISHED_SCRIPTS), "")
    published = Published(
        at=now,
        health=judge_nodes(this_pass),
        blocked=tuple(blocked_inputs.make_published_block(block) for block in store.blocked_inputs()),
        # The layers of a user's model are not published: no plan needs them, and they are most of a profile.
        profiles=tuple(replace(p, key=derive_published_key(p.key), layers=()) for p in profiles),
        incidents=open_incidents.list_published_incidents(this_pass.incidents, this_pass.services.mounts),
        loads=measure_node_loads(this_pass, {profile.key: profile for profile in profiles}),
        contention=fit_contention(this_pass),
        new_scripts=scripts.new,
        changed_scripts=scripts.changed,
        relaxing=is_relaxing(this_pass.services),
        run_times=format_published_run_times(this_pass),
        mounts=summarize_mounts(profiles),
        order=make_published_order(this_pass),
    )
    try:
        publisher.publish(published)
    except SlurmwrapError as error:
        this_pass.summary.errors.append(str(error))
        return
    this_pass.book.published_at, this_pass.summary.published = now, True


# Seconds until the next pass while a job is COMPLETING or an Epilog is expected.
_SOON_S = 2.0
# Delays between attempts while Slurm or the database cannot be used: the first one and the longest one.
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
    """Run passes until `stopped()`: every `poll_s`, sooner while jobs are ending or when `woken()` changes its value.

    When Slurm, MUNGE or the database cannot be used, this is reported once, and further attempts follow at growing
    intervals of up to five minutes. No run is judged meanwhile, because incomplete evidence would give wrong diagnoses.
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
    """Wait. Nothing is done in the first second, so that a wake file touched by many jobs is one wake-up."""
    began = services.clock.now()
    services.clock.sleep(min(1.0, seconds))
    # A clock that is set back ends the wait.
    while 0 <= services.clock.now() - began < seconds and not over():
        services.clock.sleep(_TICK_S)
