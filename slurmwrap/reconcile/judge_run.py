"""Judge one run that ended: join its facts, classify the failure, decide what to do, and store all of it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurmwrap.diagnosis.build_evidence import (
    add_counted_steps,
    build_measurement,
    complete_job_record,
    drop_earlier_exit_code,
    join,
    select_observations_of_run,
)
from slurmwrap.diagnosis.log_progress import has_finished_training
from slurmwrap.diagnosis.log_rows import read_log
from slurmwrap.diagnosis.taxonomy import CATEGORIES, NO_SIGNATURE
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.cluster import Partition
from slurmwrap.model.decision import BlockedInput, InputRead, RetryDecision, Verb
from slurmwrap.model.evidence import Diagnosis, Evidence, LogTail
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import STOP_RULE, JobRun, QueueDelay
from slurmwrap.model.observation import Context, Observation
from slurmwrap.model.submission import Submission
from slurmwrap.policy.decision_context import DecisionContext, InputFailure
from slurmwrap.policy.moved_run import (
    MOVED,
    RunMove,
    ended_by_move,
    find_consent,
    find_run_move,
    make_requeue_spec,
)
from slurmwrap.policy.requeue import HELD_LAUNCH, is_held_launch, make_requeue_actions
from slurmwrap.policy.resize import get_longest_time_limit_s
from slurmwrap.policy.retry_budget import HOUR_S, make_ledger
from slurmwrap.policy.retry_decision import decide
from slurmwrap.policy.run_from_slurm import (
    REQUEUED,
    complete_run_from_hooks,
    ended,
    is_submission_of_run,
    remembered,
    submitted_id,
)
from slurmwrap.policy.strikes import Fleet, find_down_node, make_fleet
from slurmwrap.profiling.gpu_scaling import make_run_speed
from slurmwrap.profiling.gpu_use import add_gpu_use
from slurmwrap.profiling.run_time import make_run_time_record
from slurmwrap.reconcile.open_incidents import find_incident
from slurmwrap.reconcile.reconcile_context import ReconcilePass, learn, learn_speed
from slurmwrap.reconcile.run_time_lookup import add_run_time
from slurmwrap.reconcile.slurmdbd_lookup import add_slurmdbd_record, completed, find_slurmdbd_record, is_gone
from slurmwrap.sbatch.move_options import Preemptible

# The wait status that slurmctld gives a run that lost a node, since 24.11. Older versions leave 0.
_NODE_FAILED = 1
# Confidence that nothing failed in a run that was requeued and left no sign of a failure.
_REQUEUED_SURE = 0.8
_CHECKPOINT_ERROR = "checkpoint_error"
# Number of a job's inputs that are checked.
_MOST_INPUTS = 20
# Largest difference between a file system's clock and Slurm's.
_CLOCK_SKEW_S = 5.0
_RERUN_DECISIONS = ("retry", "retry_elsewhere", "resize", "blacklist_input")
# How far back a new process reads stored retries, to learn their planned starts.
_START_LOOK_BACK_S = 6 * 3600.0


def judge(run: JobRun, job: JobRecord | None, this_pass: ReconcilePass) -> JobRun | None:
    """Diagnose and decide, in one transaction. None if the run is not over or some of its facts are still missing.

    `job` is Slurm's present record of the job. It shows this run, or a later run of the same job ("overwritten"), or is
    None when Slurm has forgotten the job. In the last two cases slurmdbd is asked, and the record is reconstructed.
    """
    overwritten = job is not None and job.submit_time > run.attempt.submit_time
    if job is not None and not overwritten and not job.ended:
        this_pass.summary.waiting += job.state == "COMPLETING"
        return None
    past = None
    if is_gone(run, job):
        try:
            past = find_slurmdbd_record(run, this_pass)
        except SlurmError as error:
            # Its record is worth the wait, because slurmdbd will answer again.
            this_pass.summary.errors.append(f"job {run.address}: not judged before slurmdbd answers: {error}")
            return None
        run = completed(run, past) if past is not None else run
    store = this_pass.services.store
    others = list_siblings(run, this_pass) if overwritten or run.restarts else ()
    seen = _select_observations(run, others, this_pass)
    gone_at = job.end_time if job is not None and not overwritten else job.submit_time if job is not None else None
    if (
        gone_at is not None
        and this_pass.now < gone_at + this_pass.services.scope.patience_s
        and _is_epilog_missing(seen)
    ):
        this_pass.summary.waiting += 1
        return None
    slurm_record = job if job is not None and not overwritten else _reconstruct_record(run, job, seen, past, this_pass)
    before = [other for other in others if other.attempt.submit_time < run.attempt.submit_time]
    if overwritten and slurm_record.end_time is None and run.start_time is not None and job is not None:
        slurm_record = replace(slurm_record, end_time=_find_latest_end(run, job, others))
    slurm_record = drop_earlier_exit_code(slurm_record, (other.derived_exit_code for other in before))
    run = ended(complete_run_from_hooks(run, seen), slurm_record, build_measurement(slurm_record, seen))
    if run.gpus and this_pass.services.scope.user is None:
        run = replace(run, measurement=add_gpu_use(run.measurement, run, store.gpu_use(run.attempt)))
    if overwritten and not run.state:
        run = replace(run, state=REQUEUED)
    submission = find_submission(run, this_pass)
    named = submission.logs if submission is not None else {}
    run = replace(run, output_begins={**read_first_ends(named), **read_output_ends(before)})
    logs = _select_own_tails(_read_tails(run, seen, tuple(named), this_pass), run, slurm_record)
    # Only before the next run starts: afterwards it may have appended to the same files.
    if not overwritten or job is None or job.pending:
        ends = {tail.name: [tail.size, tail.mark] for tail in logs if tail.size is not None}
        run = replace(run, output_ends=ends)
    earlier = [
        observation
        for other in before
        for observation in _select_observations(other, list_siblings(other, this_pass), this_pass)
    ]
    evidence = join(run.attempt, slurm_record, seen, logs=logs, earlier=earlier, requeued=overwritten)
    diagnosis = _add_lost_node(this_pass.services.classify(evidence), run, this_pass)
    diagnosis = mark_requeued_by_hand(diagnosis, evidence) if overwritten else diagnosis
    move = _find_ending_move(run, submission, logs, overwritten, this_pass)
    diagnosis = _mark_cancelled(diagnosis, "slurmwrap.moved") if move is not None else diagnosis
    run = replace(
        _add_counted_steps(run, submission, slurm_record, this_pass), waited=_compute_wait(run, submission, this_pass)
    )
    blamed = _find_blamed_input(diagnosis, submission, run, slurm_record, this_pass)
    diagnosis = _add_blamed_input(diagnosis, blamed)
    case = build_decision_context(run, diagnosis, submission, job, others, this_pass)
    refused = _find_gate_refusals(seen)
    case = replace(case, gate=next(iter(refused.values()), ""), gate_nodes=tuple(refused))
    case = replace(case, digest=blamed.digest, fault=blamed.fault, theirs=blamed.theirs)
    case = replace(case, also_failed=_list_other_failures(blamed.digest, run, this_pass))
    decision = _explain_early_end(run, decide(case, this_pass.services.config), this_pass)
    if move is not None:
        decision = _decide_after_move(move, case, decision, overwritten, this_pass)
    run = _add_decision(case.record, case, decision)
    if diagnosis.category == "time_limit":
        run = replace(
            run, longest_s=get_longest_time_limit_s(case.limits or _list_partition_limits(run.partition, this_pass))
        )
    with store.transaction():
        store.save_judged(run, decision, this_pass.now)
        _update_profile(run, submission, this_pass)
        record = make_run_time_record(run, submission)
        stored = record is not None and store.save_run_time(record)
    if record is not None and stored:
        add_run_time(record, this_pass)
    if run.retry_at is not None and this_pass.book.starts is not None:
        this_pass.book.starts.append(run.retry_at)
    this_pass.dirty |= bool(decision.strikes or decision.blocked)
    this_pass.summary.judged.append(run)
    return run


def _add_decision(run: JobRun, context: DecisionContext, decision: RetryDecision) -> JobRun:
    """Return `run` with all that was decided, so that it is decided once, however often the reconciler is killed."""
    return replace(
        run,
        decision=decision.decision,
        decision_reason=decision.reason,
        planned=decision.actions,
        retry_at=decision.start_at,
        incident=context.incident.incident_id if context.incident is not None else "",
    )


def _explain_early_end(run: JobRun, decision: RetryDecision, this_pass: ReconcilePass) -> RetryDecision:
    """Return the decision about a run that the rule `early` ended, with that rule's reason."""
    ends = (Verb.REQUEUEHOLD.value, Verb.CANCEL.value)
    actions = this_pass.services.store.actions(run.attempt)
    done = [one for one in actions if one.rule == "early" and one.verb in ends and one.done_at and not one.error]
    if not done:
        return decision
    what = "retry" if done[0].verb == Verb.REQUEUEHOLD.value else "none"
    return replace(decision, decision=what, reason=done[0].reason, actions=(), start_at=None)


def list_siblings(run: JobRun, this_pass: ReconcilePass) -> tuple[JobRun, ...]:
    """Return the other stored runs of the same job."""
    found = this_pass.services.store.attempts(cluster=run.attempt.cluster, job_id=run.attempt.job_id)
    return tuple(other for other in found if other.attempt != run.attempt)


def _find_latest_end(run: JobRun, job: JobRecord, others: Sequence[JobRun]) -> int | None:
    """Return the next SubmitTime or start of the job, for a run whose end no Epilog reported.

    Slurm sets SubmitTime when a requeued run has ended, except for two runs with one SubmitTime (is_next_run).
    """
    later = [other for other in others if other.attempt.submit_time > run.attempt.submit_time]
    times = [job.submit_time, job.start_time, *(other.attempt.submit_time for other in later)]
    times += [other.start_time for other in later]
    return min((at for at in times if at is not None and at >= (run.start_time or 0)), default=None)


def _select_observations(run: JobRun, others: Sequence[JobRun], this_pass: ReconcilePass) -> tuple[Observation, ...]:
    """Return the hooks' observations of this run; () in user mode, where no hook is trusted.

    A hook's restart count is that of its run, or in an Epilog one more (Slurm 22.05), but never less. So an observation
    with the count of an earlier run belongs to that run, even if a busy node started its Prolog so late that its time
    falls into this run.
    """
    if this_pass.services.scope.user is not None:
        return ()
    starts = [float(other.start_time) for other in others if other.start_time is not None]
    # A list, not a set: a fact may be any JSON value, also one that cannot be hashed.
    earlier = [other.restarts for other in others if other.restarts < run.restarts]
    heard = this_pass.services.store.observations(run.attempt.cluster, run.attempt.job_id)
    observations = [observation for observation in heard if observation.facts.get("restarts") not in earlier]
    return select_observations_of_run(observations, uid=run.uid, start=run.start_time, others=starts)


def _is_epilog_missing(seen: Sequence[Observation]) -> bool:
    """Return True if a node sent its Prolog's observation but not its Epilog's. The shared spool may be slow."""
    ended_on = {o.node for o in seen if o.context is Context.EPILOG}
    return any(o.context is Context.PROLOG and o.node not in ended_on for o in seen)


def _reconstruct_record(
    run: JobRun,
    job: JobRecord | None,
    seen: Sequence[Observation],
    past: JobRecord | None,
    this_pass: ReconcilePass,
) -> JobRecord:
    """Return the best record of a run that Slurm has forgotten (`job` None) or replaced by the next one (`job`)."""
    base = remembered(complete_run_from_hooks(run, seen), job)
    if past is not None:
        return add_slurmdbd_record(past, base)
    if job is None:
        return complete_job_record(base, seen)
    if is_held_launch(job) and job.restarts == run.restarts + 1:
        return replace(base, reason=HELD_LAUNCH)
    slurm_record = complete_job_record(base, seen)
    unknown = not slurm_record.state or slurm_record.signal == _NODE_FAILED
    if unknown and not slurm_record.exit_code and _is_node_down(run, this_pass):
        # Slurm requeued the run and shows one of its nodes as down; both are Slurm's records.
        return replace(slurm_record, state="NODE_FAIL")
    return slurm_record


def _is_node_down(run: JobRun, this_pass: ReconcilePass) -> bool:
    nodes = {node.name: node for node in this_pass.snapshot().nodes}
    return any(name in nodes and nodes[name].state == "DOWN" for name in run.nodes)


def _read_tails(
    run: JobRun, seen: Sequence[Observation], named: Sequence[str], this_pass: ReconcilePass
) -> tuple[LogTail, ...]:
    """Return the logs that can be read here: of a run whose output an Epilog sent, only those that gsub recorded."""
    if any(o.facts.get("logs") for o in seen if o.context is Context.EPILOG):
        return this_pass.services.logs.tails(replace(run, std_out="", std_err=""), named) if named else ()
    return this_pass.services.logs.tails(run, named)


def _select_own_tails(logs: Sequence[LogTail], run: JobRun, job: JobRecord) -> tuple[LogTail, ...]:
    """Return the log tails that belong to this run.

    Drop files that were written after its end: of a run that Slurm calls COMPLETED all of them, else those that are not
    its own output. A later job may write to a file of the same name, and its error must not be attributed to this run.
    """
    if job.end_time is None:
        return tuple(logs)
    latest = job.end_time + _CLOCK_SKEW_S
    completed_well = job.state == "COMPLETED" and not job.derived_exit_code
    own = () if completed_well else (run.std_out, run.std_err)
    return tuple(tail for tail in logs if tail.modified is None or tail.modified <= latest or tail.name in own)


def read_first_ends(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where the named logs ended before the job, as gsub recorded it. A user can record anything."""
    return {path: end for path, end in named.items() if isinstance(end, list | tuple) and len(end) == 2}


def read_output_ends(before: Sequence[JobRun]) -> Mapping[str, Any]:
    """Return the ends of the output files as they were when the previous run was judged."""
    known = [other for other in before if other.output_ends]
    return max(known, key=lambda other: other.attempt.submit_time).output_ends if known else {}


def _find_gate_refusals(seen: Sequence[Observation]) -> dict[str, str]:
    """Return the nodes that the Prolog gate refused, with the cause.

    The cause is reduced to one word, because it is written into the node's Reason.
    """
    found: dict[str, str] = {}
    for observation in seen:
        gate = observation.facts.get("gate")
        if observation.context is Context.PROLOG and isinstance(gate, Mapping) and gate.get("refused") is True:
            cause = "".join(c for c in str(gate.get("cause", "")) if c.isalnum() or c in "_-")[:40]
            found[observation.node] = cause or "fault"
    return found


def mark_requeued_by_hand(diagnosis: Diagnosis, evidence: Evidence) -> Diagnosis:
    """Return `diagnosis`, or "cancelled" for a requeued run that shows no sign of a failure.

    Such a run was requeued by its own script (a trap), its user or an administrator, which is no failure. Preemption
    and lost nodes would leave a record of Slurm.
    """
    if diagnosis.category != NO_SIGNATURE or evidence.exit_code or evidence.signal or evidence.derived_exit_code:
        return diagnosis
    return _mark_cancelled(diagnosis, "slurm.requeued")


def _mark_cancelled(diagnosis: Diagnosis, signature: str) -> Diagnosis:
    taxonomy_entry = CATEGORIES["cancelled"]
    return replace(
        diagnosis,
        category=taxonomy_entry.id,
        domain=taxonomy_entry.domain,
        decision=taxonomy_entry.decision,
        advice=taxonomy_entry.advice,
        signature=signature,
        confidence=_REQUEUED_SURE,
        error="",
    )


def _find_ending_move(
    run: JobRun, submission: Submission | None, logs: Sequence[LogTail], requeued: bool, this_pass: ReconcilePass
) -> RunMove | None:
    """Return the move that ended the run; None if something else did, or if it was at its end anyway."""
    if submission is None:
        return None
    move = find_run_move(this_pass.services.store.actions(run.attempt))
    how = find_consent(submission)
    if move is None or not ended_by_move(move, run, how or Preemptible(), requeued=requeued):
        return None
    finished = run.state == "COMPLETED" and has_finished_training([read_log(tail) for tail in logs])
    return None if finished and not requeued else move


def _decide_after_move(
    move: RunMove, context: DecisionContext, decision: RetryDecision, requeued: bool, this_pass: ReconcilePass
) -> RetryDecision:
    """Return the decision about a run that was moved. It costs no retry, whatever its exit code and output are.

    If it ended after its signal and is not requeued yet, that follows now.
    """
    reason = f"{MOVED}{move.begun.reason}"
    job, submission = context.job, context.submission
    plain = replace(decision, decision="none", reason=reason, actions=(), strikes=(), blocked=(), start_at=None)
    if requeued or job is None or not job.requeue or submission is None:
        return plain
    spec = make_requeue_spec(move, job, this_pass.services.config.move, output_appends=submission.output_appends)
    return replace(plain, decision="retry", actions=make_requeue_actions(spec, job))


def _add_lost_node(diagnosis: Diagnosis, run: JobRun, this_pass: ReconcilePass) -> Diagnosis:
    if diagnosis.category != "node_failure" or diagnosis.node or len(run.nodes) < 2:
        return diagnosis
    return replace(diagnosis, node=find_down_node(diagnosis, run, Fleet(nodes=this_pass.snapshot().nodes)))


def _add_counted_steps(run: JobRun, submission: Submission | None, job: JobRecord, this_pass: ReconcilePass) -> JobRun:
    """Return `run` with the steps that its own counter wrote, if no Epilog reported any. They are the user's claim."""
    if submission is None or not submission.step_dir or (run.measurement and run.measurement.steps):
        return run
    counted = this_pass.services.steps(run, submission.step_dir)
    return replace(run, measurement=add_counted_steps(run.measurement, job, counted))


def _find_blamed_input(
    diagnosis: Diagnosis, submission: Submission | None, run: JobRun, job: JobRecord, this_pass: ReconcilePass
) -> InputRead:
    """Return the input that the log names, else the first of the job's listed inputs that slurmwrap finds broken.

    The files are read as the user. PyTorch calls every file that it cannot load a checkpoint; only gsub's list shows
    whether such a file is one of the job's inputs.
    """
    if diagnosis.category == _CHECKPOINT_ERROR:
        paths = submission.inputs[:_MOST_INPUTS] if submission is not None else ()
        reads = this_pass.services.read_inputs(run.uid, paths) if paths else ()
        return next((read for read in reads if read.fault and read.digest), InputRead(path=""))
    if diagnosis.decision != "blacklist_input":
        return InputRead(path="")
    named = diagnosis.input_path
    if named and not named.startswith("/"):
        named = f"{job.work_dir}/{named}" if job.work_dir else ""
    paths = (named,) if named else submission.inputs[:_MOST_INPUTS] if submission is not None else ()
    reads = this_pass.services.read_inputs(run.uid, paths) if paths else ()
    if named:
        return reads[0] if reads else InputRead(path=named)
    return next((read for read in reads if read.fault), InputRead(path=""))


def _add_blamed_input(diagnosis: Diagnosis, blamed: InputRead) -> Diagnosis:
    """Return `diagnosis` with the blamed input.

    A broken checkpoint that is one of the job's inputs becomes incorrect_inputs.
    """
    if not blamed.path:
        return diagnosis
    if diagnosis.category != _CHECKPOINT_ERROR:
        return replace(diagnosis, input_path=blamed.path)
    taxonomy_entry = CATEGORIES["incorrect_inputs"]
    return replace(
        diagnosis,
        category=taxonomy_entry.id,
        domain=taxonomy_entry.domain,
        decision=taxonomy_entry.decision,
        advice=taxonomy_entry.advice,
        input_path=blamed.path,
    )


def find_submission(run: JobRun, this_pass: ReconcilePass) -> Submission | None:
    """Return the submission of this run's job; None if none belongs to it."""
    found = this_pass.services.store.submission(run.attempt.cluster, submitted_id(run))
    return found if found is not None and is_submission_of_run(found, run) else None


def _compute_wait(run: JobRun, submission: Submission | None, this_pass: ReconcilePass) -> QueueDelay | None:
    """Return how long the run waited and for what; None if it was not submitted with gsub.

    The same pass or an earlier one has counted it.
    """
    if submission is None or submission.shape is None:
        return None
    delays = this_pass.services.store.delays(job_id=run.attempt.job_id)
    return next((delay for delay in delays if delay.attempt == run.attempt), None)


def build_decision_context(
    run: JobRun,
    diagnosis: Diagnosis,
    submission: Submission | None,
    job: JobRecord | None,
    others: Sequence[JobRun],
    this_pass: ReconcilePass,
) -> DecisionContext:
    """Collect what one decision needs. `run` need not carry `diagnosis` yet; the context's record does."""
    run = replace(run, diagnosis=diagnosis)
    again = submission is not None and diagnosis.decision in _RERUN_DECISIONS
    placed = again and diagnosis.decision != "retry"
    return DecisionContext(
        diagnosis=diagnosis,
        record=run,
        job=job,
        submission=submission,
        ledger=make_ledger(others, run, this_pass.services.store.resets(run.attempt.job_id) if others else ()),
        fleet=make_fleet(this_pass.snapshot(), run.partition) if placed else Fleet(),
        limits=_list_partition_limits(run.partition, this_pass) if placed else (),
        incident=find_incident(run, this_pass),
        starts=list_retry_starts(this_pass) if again else (),
        stopped=_find_stop_reason(run, submission, this_pass),
        site=this_pass.services.scope.user is None,
        # With a clock that is slow, a wait until a time of Slurm's would last as much longer.
        now=max(this_pass.now, run.end_time or 0.0),
    )


def _find_stop_reason(run: JobRun, submission: Submission | None, this_pass: ReconcilePass) -> str:
    """Return why slurmwrap stopped the run as its user had asked; "" if it did not."""
    if submission is None or not (submission.stop_at or submission.stop_when):
        return ""
    done = (a for a in this_pass.services.store.actions(run.attempt) if a.rule == STOP_RULE and not a.error)
    return next((action.reason for action in done if action.done_at is not None), "")


def _list_partition_limits(partition: str, this_pass: ReconcilePass) -> tuple[Partition, ...]:
    wanted = set(partition.split(","))
    return tuple(one for one in this_pass.snapshot().partitions if one.name in wanted)


def list_retry_starts(this_pass: ReconcilePass) -> tuple[float, ...]:
    """Return the start times of slurmwrap's retries, of the last hour and to come.

    They are read once per process, then updated.
    """
    if this_pass.book.starts is None:
        known = this_pass.services.store.attempts(
            cluster=this_pass.book.cluster, since=this_pass.now - _START_LOOK_BACK_S
        )
        this_pass.book.starts = [record.retry_at for record in known if record.retry_at is not None]
    this_pass.book.starts = [at for at in this_pass.book.starts if at > this_pass.now - HOUR_S]
    return tuple(this_pass.book.starts)


def _list_other_failures(digest: str, run: JobRun, this_pass: ReconcilePass) -> tuple[InputFailure, ...]:
    """Return other users' failures of the same content with the nodes of each, from the blocks that they left."""
    if not digest:
        return ()
    blocks = [b for b in this_pass.services.store.blocked_inputs() if b.digest == digest and b.uid not in (-1, run.uid)]
    return tuple(InputFailure(uid=block.uid, nodes=_list_failed_nodes(block, this_pass)) for block in blocks)


def _list_failed_nodes(blocked: BlockedInput, this_pass: ReconcilePass) -> tuple[str, ...]:
    runs = this_pass.services.store.attempts(cluster=this_pass.book.cluster, job_id=blocked.job_id)
    blamed = [r for r in runs if r.uid == blocked.uid and r.diagnosis and r.diagnosis.input_path == blocked.path]
    return tuple(dict.fromkeys(r.nodes[0] for r in blamed if len(r.nodes) == 1))


def _update_profile(run: JobRun, submission: Submission | None, this_pass: ReconcilePass) -> None:
    """Merge what the Epilogs measured into the profile of a gsub job, whether the run ended well or not."""
    if submission is None or not submission.profile_key:
        return
    complete = run.diagnosis is not None and run.diagnosis.category == "success"
    at = float(run.end_time or this_pass.now)
    if run.measurement is not None:
        learn(
            this_pass.services,
            submission.profile_key,
            run.uid,
            run.measurement,
            at=at,
            source="epilog",
            complete=complete,
            variant=submission.profile_variant,
            gpu_type=_find_gpu_type(run, this_pass),
        )
    if complete:
        learn_speed(
            this_pass.services,
            submission.profile_key,
            run.uid,
            make_run_speed(
                gpus=run.gpus,
                nodes=len(run.nodes),
                run_s=run.run_s,
                steps_per_s=run.measurement.steps_per_s if run.measurement is not None else None,
                at=at,
                variant=submission.profile_variant,
                length=submission.length,
            ),
        )
    this_pass.dirty = True


def _find_gpu_type(run: JobRun, this_pass: ReconcilePass) -> str:
    """Return the GPU type of the nodes it ran on; "" if they have several or Slurm names none."""
    kinds = {node.gpu_type for node in this_pass.snapshot().nodes if node.name in run.nodes} if run.gpus else set()
    kind = kinds.pop() if len(kinds) == 1 else ""
    return "" if "," in kind else kind
