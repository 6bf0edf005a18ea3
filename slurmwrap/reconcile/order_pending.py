"""The queue's order by predicted run times (rule `order`), in each pass of the site's or a user's own reconciler.

Each pending gsub job is in one of a few classes (policy/queue_order.py). The class is written as SiteFactor with
priority/multifactor and as Nice with priority/basic, both of which leave the priority itself to Slurm. The site's
reconciler asks as root or SlurmUser; a user's own orders that user's jobs by Nice >= 0.

- What a job had before slurmwrap changed it is stored with each change, before Slurm is asked (ActionRecord.own). If
  the value in force is one that slurmwrap set, that is still the job's own; any other value was set by its user or an
  administrator since, or by `scontrol release`, which resets Nice, and becomes the job's own. So the order is applied
  again after each reset, and a reconciler killed at any instruction can put everything back.
- When the rule does not act any more, all jobs get back what they had. withdraw_order() does that for a reconciler
  that has stopped (`slurmwrap hooks watchdog`).
- Under priority/basic, setting Nice of a held job releases it (measured). So the job is read again just before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import ActionRecord
from slurmwrap.model.queue_priority import MAX_PRIORITY, NICE, PriorityScheme, PublishedOrder
from slurmwrap.model.run_time import FROM_RUNS
from slurmwrap.placement.relaxation import is_waiting, may_be_touched
from slurmwrap.policy.queue_order import (
    OrderSettings,
    PendingOrder,
    choose_band,
    choose_thresholds,
    classify_jobs,
    compute_additions,
    compute_index,
    has_waited_enough,
)
from slurmwrap.policy.run_from_slurm import run_key_from_job
from slurmwrap.profiling.run_time import RunTimeLevel, estimate_run_time, find_length_factor
from slurmwrap.reconcile.pending_job_updates import (
    NO_LONGER_PENDING,
    list_known_actions,
    list_pending_gsub_jobs,
    mark_done,
    store_intention,
    take_tokens,
)
from slurmwrap.reconcile.reconcile_context import (
    PassSummary,
    ReconcilePass,
    ReconcilerState,
    Services,
    SlurmJobs,
    run_for_each_job,
)
from slurmwrap.reconcile.run_time_lookup import find_run_time, find_run_time_query, get_run_time_history
from slurmwrap.report.order_text import format_order_class

RULE = "order"
# Seconds between reads of Slurm's weights, and between reads of the runs from which the limits of the classes follow.
_SCHEME_S, _THRESHOLDS_S, _NO_THRESHOLDS_S = 600.0, 3600.0, 60.0
# The runs from which the limits of the classes follow: those of so many seconds, and how many are needed.
_RUNS_S, _FEWEST_RUNS = 30 * 86400.0, 20
# A job keeps its class until its index has passed the limit by this factor. Where 8 further runs of its key end while
# it waits (log run times differ by 0.5), that makes a third of the updates; 5 % of the jobs are one class off.
_STAYS_WITHIN = 1.1
# Earlier runs that are needed before a run can have taken longer than expected.
_FEWEST_TO_OVERRUN = 3
# How much longer it must be. Slurm's times are whole seconds.
_OVERRUN_FACTOR, _ROUNDING_S = 1.2, 2.0
# Number of keys of which it is remembered whether they overran.
_MOST_KEYS = 10_000
_BACK = "the rule order does not act: back to what it had"
_OVERTAKEN = "not made: another value is right by now"
# Reasons of squeue(1), "JOB REASON CODES", with which a job waits only for its turn.
_READY_REASONS = frozenset({"Resources", "Priority", "None", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedJob:
    """One pending job with what is added to its priority; the text says why."""

    record: JobRecord
    order_class: int
    added: int
    text: str


def get_order_mode(services: Services) -> str:
    """Return the mode of the rule.

    "": a user's own reconciler does nothing. It only acts, and only where the site's reconciler does not order the
    queue.
    """
    mode = services.config.mode_of(RULE)
    if services.scope.user is None:
        return mode
    return mode if mode == "act" and services.lasting and not services.config.site.published else ""


def order_waiting(this_pass: ReconcilePass) -> None:
    """Order the pending gsub jobs as far as the rule's mode and the rate limit allow; undo it if it does not act."""
    state, mode = this_pass.book.order, get_order_mode(this_pass.services)
    jobs = list_pending_gsub_jobs(this_pass)
    _count_passed_jobs(this_pass)
    keys = {run_key_from_job(job, this_pass.book.cluster) for job in jobs}
    for kept in (state.known, state.classes):
        for gone in kept.keys() - keys:
            del kept[gone]
    if not jobs or not (mode or any(_list_changed_keys(job, this_pass) for job in jobs)):
        return
    scheme = find_priority_scheme(this_pass)
    ordered = _order_jobs(jobs, scheme, this_pass) if mode and scheme.key else ()
    if (published := make_published_order(this_pass)) != state.published:
        # Users see it at once, not when something else changes.
        state.published, this_pass.dirty = published, True
    if mode == "act":
        _apply_order(jobs, ordered, scheme, this_pass)
    else:
        _apply_order(jobs, (), scheme, this_pass)
        _record_advice(ordered, mode, scheme, this_pass)


def withdraw_order(services: Services, patience_s: float = 60.0) -> tuple[int, bool]:
    """Give the jobs of a reconciler that has stopped back what they had, at the usual rate.

    Return the number of updates, and whether all are done; False if `patience_s` seconds were not enough.
    """
    book = ReconcilerState(cluster=services.slurm.cluster_name())
    until = services.clock.now() + patience_s
    updates = 0
    while True:
        this_pass = ReconcilePass(
            services=services,
            book=book,
            words=SlurmJobs(ask=lambda: services.slurm.jobs(services.scope.user)),
            summary=PassSummary(),
            now=services.clock.now(),
        )
        jobs = list_pending_gsub_jobs(this_pass)
        _apply_order(jobs, (), find_priority_scheme(this_pass), this_pass)
        updates += sum(not action.error for action in this_pass.summary.applied)
        if not this_pass.summary.held_back or services.clock.now() >= until:
            return updates, not this_pass.summary.held_back
        services.clock.sleep(1.0)


def find_priority_scheme(this_pass: ReconcilePass) -> PriorityScheme:
    """Return how Slurm orders its queue, read at most every ten minutes."""
    state = this_pass.book.order
    if state.scheme is None or not 0 <= this_pass.now - state.scheme_at < _SCHEME_S:
        state.scheme, state.scheme_at = this_pass.services.slurm.priority_scheme(), this_pass.now
    return state.scheme


def get_term(scheme: PriorityScheme, services: Services) -> str:
    """Return the key that is updated: SITE_FACTOR or NICE (all that a user may set); "" if the plugin is unknown."""
    return NICE if scheme.key and services.scope.user is not None else scheme.key


def find_order_settings(this_pass: ReconcilePass) -> OrderSettings:
    """Return the settings, with the limits between the classes from the runs of the last month.

    They are read every hour; as long as there are too few runs, every minute.
    """
    state, config = this_pass.book.order, this_pass.services.config.order
    if not 0 <= this_pass.now - state.thresholds_at < (_THRESHOLDS_S if state.thresholds else _NO_THRESHOLDS_S):
        services = this_pass.services.store.gpu_seconds(this_pass.book.cluster, this_pass.now - _RUNS_S)
        enough = len(services) >= _FEWEST_RUNS
        state.thresholds = choose_thresholds(services, config.classes) if enough else ()
        state.thresholds_at = this_pass.now
    return OrderSettings(index=config.index, thresholds=state.thresholds, most_wait_s=config.most_wait_s)


def make_published_order(this_pass: ReconcilePass) -> PublishedOrder | None:
    """Return what users may know of the order; None if there is none."""
    mode, scheme = get_order_mode(this_pass.services), this_pass.book.order.scheme
    settings = find_order_settings(this_pass) if mode in ("act", "advise") else None
    if settings is None or settings.classes < 2 or scheme is None or not scheme.key:
        return None
    return PublishedOrder(
        acts=mode == "act" and not this_pass.book.order.refused,
        index=settings.index,
        thresholds=tuple(round(limit, 1) for limit in settings.thresholds),
        most_wait_s=settings.most_wait_s,
    )


def _order_jobs(jobs: Sequence[JobRecord], scheme: PriorityScheme, this_pass: ReconcilePass) -> tuple[OrderedJob, ...]:
    """Return the eligible jobs with what is added to their priority, first class first; () if there is no order yet."""
    settings, config = find_order_settings(this_pass), this_pass.services.config.order
    band = choose_band(config.band, scheme)
    if settings.classes < 2 or not band:
        return ()
    # A job with priority 0 fits nowhere.
    records = {job.waiting_address: job for job in jobs if job.priority and may_be_touched(job, this_pass.now)}
    found = (
        run_for_each_job(job, this_pass, partial(make_pending_order, job, this_pass), None) for job in records.values()
    )
    pending = {one.job: one for one in found if one is not None}
    classes = _keep_classes(classify_jobs(pending.values(), settings), pending, records, settings, this_pass)
    groups = {job: _get_group(records[job], this_pass) for job in pending}
    own_only = this_pass.services.scope.user is not None or config.within != "partition"
    added = compute_additions(classes, settings.classes, band, groups if own_only else None)
    ordered = [
        OrderedJob(
            record=records[job],
            order_class=classes[job],
            added=added[job],
            text=format_order_class(pending[job], classes[job], settings),
        )
        for job in pending
    ]
    return tuple(sorted(ordered, key=lambda one: (one.order_class, -one.record.priority, one.record.job_id)))


def _keep_classes(
    found: Mapping[str, int],
    pending: Mapping[str, PendingOrder],
    records: Mapping[str, JobRecord],
    settings: OrderSettings,
    this_pass: ReconcilePass,
) -> Mapping[str, int]:
    """Return the classes, without changes that follow from small ones of the estimates, and remember them."""
    known, cluster, kept = this_pass.book.order.classes, this_pass.book.cluster, dict[str, int]()
    for job, order_class in found.items():
        key = run_key_from_job(records[job], cluster)
        kept[job] = known[key] = choose_class(known.get(key), order_class, pending[job], settings)
    return kept


def choose_class(before: int | None, found: int, job: PendingOrder, settings: OrderSettings) -> int:
    """Return the class of a job that was in class `before` and would now be in `found`; None: it is new.

    It stays in a neighbouring class if its index is near the limit between both: then each run that ends may move its
    estimate across the limit and back, and each time the job would be updated.
    """
    index = compute_index(job, settings.index)
    if before is None or abs(found - before) != 1 or has_waited_enough(job, settings) or not index:
        return found
    limit = settings.thresholds[min(before, found)]
    return before if max(index / limit, limit / index) < _STAYS_WITHIN else found


def _get_group(job: JobRecord, this_pass: ReconcilePass) -> str:
    return job.account if this_pass.services.config.order.within == "account" else str(job.uid)


def make_pending_order(job: JobRecord, this_pass: ReconcilePass) -> PendingOrder:
    """Return what the order takes into account of one pending job."""
    store, cluster = this_pass.services.store, this_pass.book.cluster
    runs = store.attempts(cluster=cluster, job_id=job.job_id) if job.restarts else ()
    before = [run for run in runs if run.uid == job.uid and run.restarts < job.restarts]
    return PendingOrder(
        job=job.waiting_address,
        gpus=job.gpus,
        waited_s=max(0.0, this_pass.now - float(job.eligible_time or this_pass.now)),
        estimate=find_run_time(job, this_pass),
        overran=_has_overrun(job, this_pass),
        attained_s=sum(run.run_s for run in before),
        resumes=any(run.diagnosis is not None and run.diagnosis.resumed for run in before),
    )


def _has_overrun(job: JobRecord, this_pass: ReconcilePass) -> bool:
    """Return whether the newest comparable run of the job's key took longer than nine in ten were expected to take.

    So a key whose jobs have become longer, or that its user used for short jobs first, gains nothing by that.
    """
    query = find_run_time_query(job, this_pass)
    if not query.key:
        return False
    runs = get_run_time_history(this_pass).runs(("key", query.user, query.key))
    known, newest = this_pass.book.order.overran, runs[-1] if runs else None
    if query not in known or known[query][0] is not newest:
        same = [run for other, run in runs if find_length_factor(query, other) == 1]
        before = estimate_run_time([RunTimeLevel(source=FROM_RUNS, samples=same[:-1])])
        if len(known) >= _MOST_KEYS:
            known.clear()
        known[query] = (
            newest,
            (
                before is not None
                and before.n >= _FEWEST_TO_OVERRUN
                and same[-1].run_s > _OVERRUN_FACTOR * before.p90_s + _ROUNDING_S
            ),
        )
    return known[query][1]


def _apply_order(
    jobs: Sequence[JobRecord], ordered: Sequence[OrderedJob], scheme: PriorityScheme, this_pass: ReconcilePass
) -> None:
    """Update what differs: the terms of `ordered`, and of all other jobs those that slurmwrap set."""
    state = this_pass.book.order
    if state.refused:
        return
    term = get_term(scheme, this_pass.services)
    keyed = {one.record.job_id: one for one in ordered}
    others = [job for job in jobs if job.job_id not in keyed]
    terms: dict[str, Mapping[int, int]] = {}
    todo: list[tuple[JobRecord, str, OrderedJob | None]] = [(one.record, term, one) for one in ordered]
    # A term that slurmwrap set before Slurm's plugin was changed is put back for every job.
    todo += [(job, key, None) for job in others for key in _list_changed_keys(job, this_pass)]
    todo += [(one.record, key, None) for one in ordered for key in _list_changed_keys(one.record, this_pass) - {term}]
    for job, key, wanted in todo:
        if key not in terms:
            terms[key] = this_pass.services.slurm.priority_terms(key, this_pass.services.scope.user)
        update = partial(_update_term, job, key, terms[key].get(job.job_id), wanted, scheme, this_pass)
        if not run_for_each_job(job, this_pass, update, True):
            return


def _list_changed_keys(job: JobRecord, this_pass: ReconcilePass) -> set[str]:
    return {action.key for action in _list_changes(job, this_pass)}


def _update_term(
    job: JobRecord,
    key: str,
    present: int | None,
    wanted: OrderedJob | None,
    scheme: PriorityScheme,
    this_pass: ReconcilePass,
) -> bool:
    """Give one job the term that its class asks for, or its own. Return False if the rest must wait.

    `present`: None if Slurm does not show it. Then only what slurmwrap set is put back: its own last value is assumed.
    """
    changes = _list_changes(job, this_pass, key)
    if present is None:
        if wanted is not None or not changes:
            return True
        present = int(changes[-1].value)
    own = find_own_value(present, changes)
    value = own if wanted is None else own + (-wanted.added if key == NICE else wanted.added)
    _settle_begun_changes(job, present, value, changes, this_pass)
    if value == present or any(_is_refusal(action) and action.value == str(value) for action in changes):
        return True
    action = SlurmAction(
        verb=Verb.UPDATE_JOB,
        target=job.waiting_address or job.address,
        key=key,
        value=str(value),
        reason=wanted.text if wanted is not None else _BACK,
        own=str(own),
    )
    if not take_tokens(1, this_pass):
        return False
    if scheme.plugin == "basic" and not _is_safe_under_basic(job, present - value, this_pass):
        return True
    return _make_change(action, job, this_pass)


def find_own_value(present: int, changes: Iterable[ActionRecord]) -> int:
    """Return what the job had before slurmwrap changed it: `present`, unless slurmwrap set that.

    `changes`: those of slurmwrap, oldest first.
    """
    for action in reversed(tuple(changes)):
        if not _is_refusal(action) and action.value == str(present):
            return int(action.own)
    return present


def _is_refusal(action: ActionRecord) -> bool:
    return bool(action.error) and action.error != _OVERTAKEN and not NO_LONGER_PENDING.search(action.error)


def _is_safe_under_basic(job: JobRecord, gained: int, this_pass: ReconcilePass) -> bool:
    """Return whether Nice may be set now: the job is not held at this moment, and its priority does not wrap around."""
    shown = this_pass.services.slurm.job(job.address)
    return shown is not None and is_waiting(shown, this_pass.now) and 1 < shown.priority + gained <= MAX_PRIORITY


def _make_change(action: SlurmAction, job: JobRecord, this_pass: ReconcilePass) -> bool:
    number = store_intention(action, RULE, "act", job, this_pass)
    this_pass.book.order.known.pop(run_key_from_job(job, this_pass.book.cluster), None)
    try:
        this_pass.services.slurm.apply(action)
        error = ""
    except SlurmUnreachable:
        # The action stays open. The next pass compares it with what Slurm shows.
        raise
    except SlurmError as refused:
        error = str(refused) or "refused"
    mark_done(number, action, RULE, error, job, this_pass)
    if "denied" in error and not NO_LONGER_PENDING.search(error):
        this_pass.book.order.refused = True
        this_pass.summary.errors.append(f"the queue's order is not applied: job {action.target}: {error}")
        return False
    return True


def _settle_begun_changes(
    job: JobRecord, present: int, value: int, changes: Sequence[ActionRecord], this_pass: ReconcilePass
) -> None:
    """Complete the records of changes that were begun and not marked, because the reconciler was killed in between."""
    attempt = run_key_from_job(job, this_pass.book.cluster)
    for begun in changes:
        if begun.done_at is not None or begun.attempt != attempt:
            continue
        made = begun.value == str(present)
        if made or begun.value != str(value):
            action = SlurmAction(
                verb=Verb.UPDATE_JOB, target=begun.target, key=begun.key, value=begun.value, reason=begun.reason
            )
            mark_done(begun.action_id, action, RULE, "" if made else _OVERTAKEN, job, this_pass)
            this_pass.book.order.known.pop(attempt, None)


def _list_changes(job: JobRecord, this_pass: ReconcilePass, key: str = "") -> tuple[ActionRecord, ...]:
    """Return slurmwrap's changes of the job's priority in the order in which they were made."""
    return tuple(a for a in _list_actions(job, this_pass) if a.mode == "act" and key in ("", a.key))


def _list_actions(job: JobRecord, this_pass: ReconcilePass) -> tuple[ActionRecord, ...]:
    known, attempt = this_pass.book.order.known, run_key_from_job(job, this_pass.book.cluster)
    if attempt not in known:
        found = list_known_actions(attempt, job, this_pass.book.submitted[attempt], this_pass)
        # A value that is set once more keeps its first number.
        known[attempt] = tuple(sorted((a for a in found if a.rule == RULE), key=lambda a: (a.intended_at, a.action_id)))
    return known[attempt]


def _record_advice(ordered: Iterable[OrderedJob], mode: str, scheme: PriorityScheme, this_pass: ReconcilePass) -> None:
    """Record once for each job and class what the rule would have set. Own values are not read: Nice counts from 0."""
    term = get_term(scheme, this_pass.services)
    # One transaction: a busy queue has thousands of jobs, and advice may be lost.
    with this_pass.services.store.transaction():
        for one in ordered:
            value = str(-one.added if term == NICE else one.added)
            if (term, value) in {(action.key, action.value) for action in _list_actions(one.record, this_pass)}:
                continue
            target = one.record.waiting_address
            action = SlurmAction(verb=Verb.UPDATE_JOB, target=target, key=term, value=value, reason=one.text)
            store_intention(action, RULE, mode, one.record, this_pass)
            this_pass.book.order.known.pop(run_key_from_job(one.record, this_pass.book.cluster), None)


def _count_passed_jobs(this_pass: ReconcilePass) -> None:
    """Store for each gsub job that has started which jobs of others it passed by the rule alone.

    A job of others was passed if it is ready, waits in the same partition, and had the higher priority without what the
    rule added. They are counted when the job is first seen running, so one that started meanwhile is missed.
    """
    counted, cluster = this_pass.book.order.counted, this_pass.book.cluster
    started = {run_key_from_job(job, cluster): job for job in this_pass.words.first.values() if job.state == "RUNNING"}
    counted &= started.keys()
    ours = {job.job_id for job in list_pending_gsub_jobs(this_pass)}
    ours |= {one.prerun_job_id for one in this_pass.book.submitted.values() if one.prerun_job_id is not None}
    others = [job for job in this_pass.words.first.values() if job.reason in _READY_REASONS]
    others = [job for job in others if job.job_id not in ours and is_waiting(job, this_pass.now)]
    store = this_pass.services.store
    for key, job in started.items():
        if key in counted:
            continue
        counted.add(key)
        run, added = store.attempt(key), _find_added(store.actions(key))
        if run is None or added <= 0 or run.passed is not None:
            continue
        names = set(job.partition.split(","))
        passed = sum(
            job.priority - added < other.priority < job.priority and not names.isdisjoint(other.partition.split(","))
            for other in others
        )
        store.save_attempt(replace(run, passed=passed))


def _find_added(actions: Iterable[ActionRecord]) -> int:
    """Return what the rule had added to the priority of a job when it started."""
    done = [a for a in actions if a.rule == RULE and a.mode == "act" and a.done_at is not None and not a.error]
    if not done:
        return 0
    last = max(done, key=lambda action: action.intended_at)
    added = int(last.value) - int(last.own)
    return -added if last.key == NICE else added
