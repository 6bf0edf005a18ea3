"""Look at running jobs, and report what is wrong with them while they run: rule `early` (docs/running.md).

In each pass a few jobs of gsub have their turn, each at most every early.every_s. What they wrote since the last look
is read as their user. A job is cancelled or requeued only in mode `act`, if its user agreed to retries, and if more
than text shows that something is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from slurmwrap.diagnosis.running_output import read_signs
from slurmwrap.errors import SlurmError, SlurmUnreachable
from slurmwrap.escape import comment as escape_comment
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.evidence import Diagnosis, LogTail, RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.running_job import (
    DIVERGED,
    FINDING_KINDS,
    FINDING_TITLES,
    HOST,
    IDLE,
    PARTLY_DEAD,
    STUCK,
    EarlyFinding,
)
from slurmwrap.model.running_read import RunningNews, RunningRead
from slurmwrap.model.submission import Submission
from slurmwrap.policy import decision_context, requeue, retry_budget
from slurmwrap.policy.decision_context import DecisionContext
from slurmwrap.policy.early_findings import (
    CountedNow,
    EarlySign,
    RunningLook,
    RunningSeries,
    WatchedRun,
    add_look,
    find_signs,
    needs_cpu_time,
)
from slurmwrap.policy.requeue import COMMENT_PREFIX, RETRY_JOB_COMMENT, RequeueSpec
from slurmwrap.policy.run_from_slurm import record_of, run_key_from_job
from slurmwrap.reconcile.judge_run import list_retry_starts, list_siblings, read_first_ends, read_output_ends
from slurmwrap.reconcile.reconcile_context import ReconcilePass, RunningWatch, run_for_each_job, select_unwatched_jobs
from slurmwrap.reconcile.run_time_lookup import find_run_time, find_submission

# Jobs of one user that are read together, and new running jobs of which the submission is searched in one pass.
_TOGETHER, _SEARCHED = 16, 500
# The CPU time that was not used is kept up to this much of early.cpu_share, in seconds of wall time.
_SAVED_S = 600.0
# For so long after its start a process keeps the findings of an earlier one, of which it has not seen the evidence.
_KEPT_S = 1800.0
_EVIDENCE = 300


def check_running(this_pass: ReconcilePass) -> None:
    """Look at the jobs whose turn it is, as far as the CPU time allows, and store what is found."""
    services, state = this_pass.services, this_pass.book.early
    settings = services.config.early
    if not settings.jobs:
        return
    began = services.own_cpu_s()
    running = {
        run_key_from_job(job, this_pass.book.cluster): job
        for job in this_pass.words.first.values()
        if job.state == "RUNNING" and job.start_time is not None and job.comment != RETRY_JOB_COMMENT
    }
    _update_watches(running, this_pass)
    _save_cpu_time(this_pass)
    due = sorted(
        (watch.looked_at, key.job_id, key)
        for key, watch in state.watches.items()
        if watch.submission is not None and not 0 <= this_pass.now - watch.looked_at < settings.every_s
    )
    for together in _group_by_user([(key, running[key]) for _, _, key in due[: settings.jobs]]):
        if state.spare_s <= 0:
            break
        _look_at_jobs(together, this_pass)
        used = services.own_cpu_s()
        state.spare_s, began = state.spare_s - (used - began), used
    state.spare_s -= services.own_cpu_s() - began


def _save_cpu_time(this_pass: ReconcilePass) -> None:
    state, share = this_pass.book.early, this_pass.services.config.early.cpu_share
    if state.spare_at is not None:
        gone = max(0.0, this_pass.now - state.spare_at)
        state.spare_s = min(share * _SAVED_S, state.spare_s + share * gone)
    state.spare_at = this_pass.now


def _update_watches(running: Mapping[RunKey, JobRecord], this_pass: ReconcilePass) -> None:
    watches = this_pass.book.early.watches
    for key, job in select_unwatched_jobs(running, watches, this_pass)[:_SEARCHED]:
        found = run_for_each_job(job, this_pass, partial(find_submission, job, this_pass), None)
        watches[key] = RunningWatch(submission=found)


def _group_by_user(jobs: Sequence[tuple[RunKey, JobRecord]]) -> list[list[tuple[RunKey, JobRecord]]]:
    users: dict[int, list[tuple[RunKey, JobRecord]]] = {}
    for key, job in jobs:
        users.setdefault(job.uid, []).append((key, job))
    return [mine[at : at + _TOGETHER] for mine in users.values() for at in range(0, len(mine), _TOGETHER)]


def _look_at_jobs(jobs: Sequence[tuple[RunKey, JobRecord]], this_pass: ReconcilePass) -> None:
    """Read the news of several jobs of one user, and judge each."""
    watches, services = this_pass.book.early.watches, this_pass.services
    now = services.clock.now()
    reads = []
    for key, job in jobs:
        watch = watches[key]
        if watch.series is None:
            run_for_each_job(job, this_pass, partial(_begin_series, key, job, watch, this_pass), None)
        reads.append(_make_read(job, watch, this_pass))
        watch.looked_at = now
    news = services.read_running(jobs[0][1].uid, reads)
    for (key, job), one in zip(jobs, news, strict=True):
        if watches[key].series is not None:
            work = partial(_judge_gpus, key, job, this_pass)
            if one is not None:
                work = partial(_judge_news, key, job, one, this_pass)
            run_for_each_job(job, this_pass, work, None)


def _begin_series(key: RunKey, job: JobRecord, watch: RunningWatch, this_pass: ReconcilePass) -> None:
    submission = watch.submission
    assert submission is not None and job.start_time is not None
    others = list_siblings(record_of(job, key.cluster), this_pass) if job.restarts else ()
    before = [other for other in others if other.attempt.submit_time < key.submit_time]
    watch.begins = {**read_first_ends(submission.logs), **read_output_ends(before)}
    watch.found = {one.kind for one in this_pass.services.store.early_findings(key) if one.gone_at is None}
    watch.kept, watch.began_at = set(watch.found), this_pass.now
    watch.comment = job.comment if job.comment.startswith(COMMENT_PREFIX) else ""
    watch.series = RunningSeries(
        run=WatchedRun(
            began=float(job.start_time),
            limit_s=job.time_limit_s,
            gpus=job.gpus,
            cpus=job.cpus,
            several=job.gpus > 1 or job.num_nodes > 1,
            warned=submission.time is not None and submission.time.warn_s > 0,
            resumes=job.restarts > 0,
            history=find_run_time(job, this_pass),
        )
    )


def _make_read(job: JobRecord, watch: RunningWatch, this_pass: ReconcilePass) -> RunningRead:
    run = record_of(job, this_pass.book.cluster)
    assert watch.submission is not None
    return RunningRead(
        run=replace(run, output_begins=dict(watch.begins)),
        named=tuple(watch.submission.logs),
        step_dir=watch.submission.step_dir,
        ranks=job.gpus > 1 or job.num_nodes > 1,
        since=watch.looked_at,
    )


def _judge_news(key: RunKey, job: JobRecord, news: RunningNews, this_pass: ReconcilePass) -> None:
    services, watch = this_pass.services, this_pass.book.early.watches[key]
    settings, now = services.config.early, watch.looked_at
    assert watch.series is not None
    look = _make_look(news, watch.series, now)
    series = add_look(watch.series, look, settings)
    samples = services.store.gpu_use(key)
    if not any(one.gpu == HOST for one in samples) and needs_cpu_time(series, now, settings):
        cpu_s = services.step_cpu_s(job.address)
        series = series if cpu_s is None else add_look(series, RunningLook(at=now, cpu_s=cpu_s), settings)
    watch.series = series
    watch.begins |= {log.name: [log.size, log.mark] for log in news.logs if log.size is not None}
    _report_signs(key, job, find_signs(series, samples, now, settings), FINDING_KINDS, this_pass)


def _judge_gpus(key: RunKey, job: JobRecord, this_pass: ReconcilePass) -> None:
    """Look only at the samples of a job's GPUs: its output was not read in time, or may not be read here."""
    services, watch = this_pass.services, this_pass.book.early.watches[key]
    samples = services.store.gpu_use(key) if job.gpus else ()
    if watch.series is not None and samples:
        signs = find_signs(watch.series, samples, watch.looked_at, services.config.early)
        _report_signs(key, job, [one for one in signs if one.kind == IDLE], (IDLE,), this_pass)


def _report_signs(
    key: RunKey, job: JobRecord, found: Sequence[EarlySign], kinds: Sequence[str], this_pass: ReconcilePass
) -> None:
    """Store what changed about findings of these kinds, show it, and act. `found`: what is wrong now."""
    services, watch = this_pass.services, this_pass.book.early.watches[key]
    signs = {sign.kind: sign for sign in found}
    watch.kept = set() if watch.looked_at - watch.began_at > _KEPT_S else watch.kept - signs.keys()
    changed = [kind for kind in kinds if (kind in signs or kind in watch.kept) != (kind in watch.found)]
    known = {one.kind: one for one in services.store.early_findings(key)} if changed or signs else {}
    for kind in changed:
        known[kind] = _store_change(key, job, kind, signs.get(kind), known.get(kind), this_pass)
    watch.found = signs.keys() | watch.kept | (watch.found - set(kinds))
    if changed and (signs or not watch.found):
        _set_comment(key, job, signs, watch, this_pass)
    if services.config.mode_of("early") == "act":
        for kind, sign in signs.items():
            if not known[kind].action and _act(key, job, sign, known[kind], this_pass):
                break


def _make_look(news: RunningNews, series: RunningSeries, now: float) -> RunningLook:
    written = [log.modified for log in news.logs if log.text and log.modified is not None]
    return RunningLook(
        at=now,
        signs=read_signs(news.logs, now - series.run.began, first=series.looked_at is None),
        output_at=min(now, max(written)) if written else None,
        cut=any(map(_is_cut, news.logs)),
        counter=_read_counter(news, now),
    )


def _is_cut(log: LogTail) -> bool:
    return log.truncated


def _read_counter(news: RunningNews, now: float) -> CountedNow | None:
    """Return the counted steps. The user can write anything to the counter's files."""
    steps = news.steps
    if not steps:
        return None
    bad = steps.get("bad_losses")
    return CountedNow(
        count=int(steps["count"]),
        total=int(steps["total"]),
        processes=int(steps["processes"]),
        at=min(now, float(steps["newest_at"])),
        per_s=steps["per_s"],
        not_finite=bad if isinstance(bad, int) else 0,
    )


# --- what is found ----------------------------------------------------------------------------------------------------


def _store_change(
    key: RunKey,
    job: JobRecord,
    kind: str,
    sign: EarlySign | None,
    before: EarlyFinding | None,
    this_pass: ReconcilePass,
) -> EarlyFinding:
    """Store a new finding, or that the evidence of one is gone or there again."""
    if sign is None:
        assert before is not None
        finding = replace(before, gone_at=this_pass.now)
    elif before is not None:
        finding = replace(before, gone_at=None, n=max(before.n, sign.n))
    else:
        finding = EarlyFinding(
            attempt=key,
            kind=kind,
            at=this_pass.now,
            n=sign.n,
            evidence=_format_evidence(sign),
            uid=job.uid,
            address=job.address,
            mode=this_pass.services.config.mode_of("early"),
        )
        this_pass.services.say(f"job {job.address}: {_describe(sign)}")
    this_pass.services.store.save_early_finding(finding)
    return finding


def _format_evidence(sign: EarlySign) -> str:
    text = f"{sign.words}: {sign.evidence}" if sign.evidence else sign.words
    return " ".join(text.split())[:_EVIDENCE]


def _set_comment(
    key: RunKey, job: JobRecord, signs: Mapping[str, EarlySign], watch: RunningWatch, this_pass: ReconcilePass
) -> None:
    """Set the job's Comment to its first finding, or remove it. The user's own Comment stays.

    All users see it, so it holds no text of the job.
    """
    mode = this_pass.services.config.mode_of("early")
    if mode == "observe" or (job.comment and not job.comment.startswith(COMMENT_PREFIX)):
        return
    first = next((signs[kind] for kind in FINDING_KINDS if kind in signs), None)
    text = "" if first is None else escape_comment(f"{COMMENT_PREFIX}{_describe(first)} (slurmwrap why {job.address})")
    if text == job.comment or (not text and job.comment != watch.comment):
        return
    action = SlurmAction(
        verb=Verb.UPDATE_JOB,
        target=job.address,
        key="Comment",
        value=text,
        reason="squeue shows what was found" if text else "what was found is over",
    )
    if _apply(key, job, PlannedAction(rule="early", action=action), mode, this_pass):
        watch.comment = text


def _describe(sign: EarlySign) -> str:
    return f"{FINDING_TITLES[sign.kind]}: {sign.words}"


def _apply(key: RunKey, job: JobRecord, ruled: PlannedAction, mode: str, this_pass: ReconcilePass) -> bool:
    """Record an action, carry it out, and return whether Slurm did it."""
    services = this_pass.services
    number = services.store.intend(key, ruled, mode, this_pass.now, again=True)
    error = ""
    try:
        services.slurm.apply(ruled.action)
    except SlurmUnreachable:
        raise
    except SlurmError as refused:
        error = str(refused) or "refused"
    services.store.done(number, services.clock.now(), error)
    if error:
        this_pass.summary.errors.append(f"job {job.address}: {ruled.action.verb.value}: {error}")
    return not error


# --- what is done -----------------------------------------------------------------------------------------------------


def _act(key: RunKey, job: JobRecord, sign: EarlySign, finding: EarlyFinding, this_pass: ReconcilePass) -> bool:
    """Cancel or requeue the job, if that may be done; return whether it was done."""
    submission = this_pass.book.early.watches[key].submission
    # Text alone is never enough: the job's user or a program may print anything.
    if submission is None or not submission.retry or not sign.confirmed:
        return False
    if sign.kind == DIVERGED:
        reason = f"{_describe(sign)}; it was cancelled, because the rest of its time would be lost"
        action = SlurmAction(verb=Verb.CANCEL, target=job.address, reason=reason)
        done = _apply(key, job, PlannedAction(rule="early", action=action), "act", this_pass)
        what = "cancel"
    elif sign.kind in (PARTLY_DEAD, STUCK):
        done, what = _requeue(key, job, sign, submission, this_pass), "requeue"
    else:
        return False
    if done:
        this_pass.services.store.save_early_finding(replace(finding, action=what))
        this_pass.services.say(f"job {job.address}: {_describe(sign)}: {what}")
    return done


def _requeue(key: RunKey, job: JobRecord, sign: EarlySign, submission: Submission, this_pass: ReconcilePass) -> bool:
    """Requeue a job within its retry budget. Slurm ends its processes with SIGTERM, then after KillWait with SIGKILL.

    All steps are recorded first. Those after the requeue are carried out like those of other retries, once the run has
    ended (execute_actions.finish).
    """
    run = record_of(job, key.cluster)
    again = _plan_requeue(run, job, sign, submission, this_pass)
    if again is None:
        return False
    store = this_pass.services.store
    first, *rest = requeue.make_requeue_actions(again, job)
    with store.transaction():
        store.intend(key, first, "act", this_pass.now, again=True)
        numbers = [store.intend(key, one, "act", this_pass.now, again=True) for one in rest]
    if _apply(key, job, first, "act", this_pass):
        return True
    for number in numbers:
        store.done(number, this_pass.now, "the requeue was refused")
    return False


def _plan_requeue(
    run: JobRun, job: JobRecord, sign: EarlySign, submission: Submission, this_pass: ReconcilePass
) -> RequeueSpec | None:
    """Return the requeue; None if Slurm or the retry budget does not allow it."""
    if not job.requeue or (job.array_job_id is not None and job.array_task_id is None):
        return None
    services, settings = this_pass.services, this_pass.services.config.retry
    others = list_siblings(run, this_pass) if job.restarts else ()
    resets = services.store.resets(job.job_id) if others else ()
    before = retry_budget.runs_before(others, run)
    since = max((one.at for one in resets), default=0.0)
    ended = [one for one in before if one.attempt.submit_time > since and _was_requeued(one, this_pass)]
    ledger = retry_budget.make_ledger(others, run, resets)
    ledger = replace(
        ledger,
        failures=ledger.failures + len(ended),
        lost_gpu_hours=ledger.lost_gpu_hours + sum(one.gpu_hours for one in ended),
    )
    diagnosis = Diagnosis(category=sign.kind, domain="", decision="retry", confidence=1.0, signature="")
    context = DecisionContext(diagnosis=diagnosis, record=run, job=job, submission=submission, ledger=ledger)
    spent, limit = len(ended), settings.per_root_cause
    if decision_context.find_exhausted_budget(context, spent, limit, services.config):
        return None
    seed = f"{run.attempt.cluster}:{job.job_id}:{job.restarts}"
    earliest = this_pass.now + retry_budget.compute_backoff_s(settings.backoff_s, spent, seed)
    start_at = retry_budget.find_next_start(list_retry_starts(this_pass), earliest, settings.max_per_hour)
    if this_pass.book.starts is not None:
        this_pass.book.starts.append(start_at)
    return RequeueSpec(
        rule="early",
        reason=f"{_describe(sign)}; requeued, retry {spent + 1} of {limit}",
        delay_s=math.ceil(start_at - this_pass.now),
        std_out="" if submission.output_appends else requeue.retry_output(run.std_out, run.restarts),
        comment=f"{FINDING_TITLES[sign.kind]} (slurmwrap why {job.address})",
    )


def _was_requeued(run: JobRun, this_pass: ReconcilePass) -> bool:
    return any(one.action == "requeue" for one in this_pass.services.store.early_findings(run.attempt))
