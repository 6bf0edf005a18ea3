"""Store the entries of the spools in the database: observations, submissions, pre-runs. Adapters are passed in.

An entry is removed from its spool only after it is stored, and storing it twice has no effect. So a reconciler that is
killed at any instruction only repeats some work. A run that Slurm no longer shows is stored as an open run; the open
runs are the reconciler's durable to-do list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from slurmwrap.diagnosis.build_evidence import SLACK_S, select_observations_of_run
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.blocked_inputs import make_block_actions
from slurmwrap.policy.run_from_slurm import record_of, run_from_hooks, run_key_from_job, set_earlier_key
from slurmwrap.protocols import Store
from slurmwrap.reconcile.ingest_gpu_samples import store_samples
from slurmwrap.reconcile.reconcile_context import IngestReport, Services, SlurmJobs, Unpack, learn

# Number of entries that are stored in one transaction.
BATCH = 200
# Maximum number of files that are read from one spool in one pass.
LIMIT = 200_000
# Largest time (Unix seconds) and largest number of seconds, steps or GPUs that a user's record may claim.
LATEST, MOST = 1e11, 1e12
# Records that a user may write about one job; gsub and a pre-run write up to four. Otherwise one job would be enough to
# fill the disk of the database.
MOST_OF_JOB = 40
_HOOKS = frozenset({Context.PROLOG, Context.EPILOG, Context.EPILOG_SLURMCTLD})


def ingest(services: Services, cluster: str, slurm_jobs: SlurmJobs) -> IngestReport:
    """Store what is in the spools now.

    Raises StoreError if database or spool fail; what was not stored stays in the spool. Each spool is listed once, so a
    spool that fills as fast as it is read, or that cannot be emptied, does not loop forever.
    """
    report = IngestReport()
    for spool in services.spools:
        waiting = iter(spool.collect(LIMIT))
        while batch := list(islice(waiting, BATCH)):
            slurm_jobs.know(entry.item for entry in batch if isinstance(entry.item, Observation))
            with services.store.transaction():
                handled = [_ingest_entry(entry, services, cluster, slurm_jobs, report) for entry in batch]
                _open_unseen(handled, services.store, cluster, slurm_jobs)
            report.blocked += sum(_block_from_prerun(one, services) for one in handled)
            spool.discard(handled)
    return report


def _ingest_entry(
    entry: SpoolEntry, services: Services, cluster: str, slurm_jobs: SlurmJobs, report: IngestReport
) -> SpoolEntry:
    """Store one entry. A rejected one is returned as RejectedEntry, which the spool keeps separately."""
    item = entry.item
    if isinstance(item, Observation):
        reason = _find_rejection_reason(item, services, cluster, slurm_jobs)
        if not reason and item.context is Context.SAMPLES:
            reason = store_samples(item, cluster, services.store, slurm_jobs)
            if not reason:
                report.kept += 1
                return entry
        if not reason:
            new = services.store.ingest(item)
            report.kept, report.known = report.kept + new, report.known + (not new)
            _store_claim(item, services, cluster, report, new)
            return entry
        item = RejectedEntry(name=entry.name, reason=reason, uid=item.uid)
    report.refused += 1
    services.store.save_rejected_entry(item, services.clock.now())
    return replace(entry, item=item)


def _find_rejection_reason(item: Observation, services: Services, cluster: str, slurm_jobs: SlurmJobs) -> str:
    """Return why an observation is rejected; "" if it is accepted.

    Hooks' records need a trusted uid. Users' records (submissions, pre-runs) must be well-formed, have possible numbers
    and be about the user's own jobs.
    """
    if item.cluster != cluster and services.scope.user is None:
        return f"it is about another cluster, not {cluster}"
    if item.context is Context.SAMPLES and services.scope.user is not None:
        return "nodes do not write to a user's own spool"
    if item.context in (*_HOOKS, Context.SAMPLES):
        return "" if item.uid in services.scope.trusted else f"uid {item.uid} is not trusted to report for a hook"
    if item.context is Context.SLURM:
        return "records of Slurm are not accepted from a spool"
    try:
        claim = _read_claim(item, services.unpack)
    except ValueError as error:
        return f"it is not a {item.context.value} record: {str(error)[:100]}"
    if not _is_possible(claim):
        return "its numbers cannot be true"
    if services.scope.user is None and services.store.count_observations(cluster, item.job_id, item.uid) >= MOST_OF_JOB:
        return f"there are {MOST_OF_JOB} records of this job already"
    return _find_foreign_claim(item, claim, services, cluster, slurm_jobs)


def _is_possible(claim: Submission | PrerunRecord) -> bool:
    """Return True if the numbers are plausible: one near the end of a float's range would spoil all users' sums."""
    amounts: list[float] = [claim.gpus]
    if isinstance(claim, PrerunRecord):
        amounts += [claim.verdict.seconds, claim.verdict.steps]
    return 0 <= claim.at < LATEST and all(0 <= amount <= MOST for amount in amounts)


def _read_claim(item: Observation, unpack: Unpack) -> Submission | PrerunRecord:
    if item.context is Context.SUBMIT:
        return unpack(Submission, item.facts.get("submission") or {})
    return unpack(PrerunRecord, item.facts.get("prerun") or {})


def _find_foreign_claim(
    item: Observation, claim: Submission | PrerunRecord, services: Services, cluster: str, slurm_jobs: SlurmJobs
) -> str:
    """Return why a user's record is not about their own job; "" if it is.

    The uid of the seal must be the one to which Slurm assigns the job. Clusters may share a home directory: in user
    mode a record of another cluster is kept for when the user works there, because this Slurm knows nothing of that
    job.
    """
    sealed = services.scope.uid if item.uid == -1 and services.scope.user is not None else item.uid
    if sealed < 0 or claim.uid != sealed or claim.cluster != item.cluster:
        return "it is about another user or cluster"
    jobs = {claim.job_id} | ({claim.prerun_job_id} if isinstance(claim, PrerunRecord) else set())
    if item.job_id not in jobs:
        return "its job id is not that of the record in it"
    if item.cluster != cluster:
        return ""
    owners = {_find_owner(job_id, item.cluster, services.store, slurm_jobs) for job_id in jobs if job_id is not None}
    if services.scope.user is not None and owners <= {None, sealed}:
        return ""
    return "" if owners - {None} == {sealed} else "Slurm does not list the job as this user's"


def _find_owner(job_id: int, cluster: str, store: Store, slurm_jobs: SlurmJobs) -> int | None:
    """Return the uid of a job, from Slurm, else from stored runs or hooks' records; None if unknown."""
    found = slurm_jobs.owner(job_id)
    if found is not None:
        return found
    known = [record.uid for record in store.attempts(cluster=cluster, job_id=job_id)]
    known += [o.facts.get("uid", -1) for o in store.observations(cluster, job_id) if o.context in _HOOKS]
    return next((uid for uid in reversed(known) if isinstance(uid, int) and uid >= 0), None)


def _store_claim(item: Observation, services: Services, cluster: str, report: IngestReport, new: bool) -> None:
    if item.context not in (Context.SUBMIT, Context.PRERUN):
        return
    claim = _read_claim(item, services.unpack)
    if isinstance(claim, Submission):
        services.store.save_submission(claim)
        report.submitted |= {claim.job_id} if claim.cluster == cluster else set()
        return
    earlier = _find_earlier_report(claim, services.store)
    if earlier is None or claim.changes or claim.released or not (earlier.changes or earlier.released):
        services.store.save_prerun(claim)
    if new and (earlier is None or earlier.verdict.measurement is None):
        report.profiles += _update_profile_from_prerun(claim, services)


def _find_earlier_report(claim: PrerunRecord, store: Store) -> PrerunRecord | None:
    """Return the stored record of the same pre-run, or None.

    A pre-run that decides on a job reports twice: before it acts, and with the result (gsub/apply_verdict.py). The two
    may arrive in any order, and its measurement must count once.
    """
    same = store.preruns(job_id=claim.job_id, since=claim.at)
    key = (claim.cluster, claim.prerun_job_id, claim.at)
    return next((one for one in same if (one.cluster, one.prerun_job_id, one.at) == key), None)


def _update_profile_from_prerun(record: PrerunRecord, services: Services) -> bool:
    measurement = record.verdict.measurement
    if measurement is None or not record.profile_key or record.verdict.outcome is Outcome.FAIL:
        return False
    learn(
        services,
        record.profile_key,
        record.uid,
        measurement,
        at=record.at,
        source="prerun",
        complete=False,
        variant=record.profile_variant,
    )
    return True


def _block_from_prerun(entry: SpoolEntry, services: Services) -> bool:
    """Block the input that a pre-run found broken, for its user alone. Runs before the spool file is removed.

    The pre-run read the file itself, but as its user, so the report is that user's claim.
    """
    if not isinstance(entry.item, Observation) or entry.item.context is not Context.PRERUN:
        return False
    record = services.unpack(PrerunRecord, entry.item.facts["prerun"])
    verdict = record.verdict
    if not verdict.input_path or verdict.outcome is not Outcome.FAIL:
        return False
    digest = verdict.input_digest or "".join(
        read.digest for read in services.read_inputs(record.uid, (verdict.input_path,))
    )
    if not digest:
        return False
    blocked = BlockedInput(
        digest=digest,
        path=verdict.input_path,
        uid=record.uid,
        reason=verdict.input_fault or verdict.reason,
        at=record.at,
        job_id=record.job_id or record.prerun_job_id,
    )
    mode = services.config.mode_of("block_input")
    if mode != "act":
        # Record what would have been done.
        services.store.intend(None, make_block_actions((blocked,))[0], mode, record.at)
        return False
    services.store.block_input(blocked)
    return True


def _open_unseen(handled: Sequence[SpoolEntry], store: Store, cluster: str, slurm_jobs: SlurmJobs) -> None:
    """Store the runs that hooks reported and that the rest of the pass does not see.

    Slurm has forgotten such a run, shows the next run of the job, or started the run after its records were read.
    """
    heard: dict[int, list[Observation]] = {}
    for entry in handled:
        if isinstance(entry.item, Observation) and entry.item.context in _HOOKS:
            heard.setdefault(entry.item.job_id, []).append(entry.item)
    for job_id, observations in heard.items():
        job, first = slurm_jobs.latest.get(job_id), slurm_jobs.first.get(job_id)
        reused = job is not None and any(_parse_uid(o) not in (0, job.uid) for o in observations)
        if job is not None and job == first and not job.pending and job.restarts == 0 and not reused:
            # The job was never requeued, so its only run is the one that Slurm shows. A controller that was killed
            # uses ids again.
            continue
        known = {run.attempt: run for run in store.attempts(cluster=cluster, job_id=job_id)}
        if job is not None and not job.pending and not job.refused:
            shown = _make_shown_run(job, cluster, known, observations)
            if shown != known.get(shown.attempt) and (job != first or shown.restarts < job.restarts):
                store.save_attempt(shown)
            known[shown.attempt] = shown
        unseen = [o for o in observations if not _is_covered(o, known.values(), forgotten=job is None)]
        for group in _split_into_runs(unseen):
            run = run_from_hooks(cluster, job_id, group, before=job.submit_time if job is not None else None)
            run = _set_free_key(run, known.values())
            known[run.attempt] = run
            store.save_attempt(run)


def _make_shown_run(
    job: JobRecord, cluster: str, known: Mapping[RunKey, JobRun], observations: Sequence[Observation]
) -> JobRun:
    """Return the run that Slurm shows, with the restart count of its Prologs, and their time if no start is shown.

    Slurm counts a restart when the requeue begins. So it counts one too many until the run has ended, and always if
    the job is cancelled before that (job_signal in slurmctld's job_mgr.c). Prologs after SubmitTime are this run's.
    """
    before = known.get(run_key_from_job(job, cluster))
    if before is not None and before.diagnosis is not None:
        return before
    shown = record_of(job, cluster, before)
    if before is not None and shown.start_time is not None:
        return shown
    earliest = job.submit_time if shown.start_time is None else shown.start_time - SLACK_S
    own = [o for o in observations if o.context is Context.PROLOG and o.at >= max(earliest, job.submit_time)]
    if before is None and any(o.facts.get("restarts") == job.restarts - 1 for o in own):
        shown = replace(shown, restarts=job.restarts - 1)
    times = [o.at for o in own if o.facts.get("restarts") == shown.restarts]
    return replace(shown, start_time=int(min(times))) if times and shown.start_time is None else shown


def _set_free_key(run: JobRun, known: Collection[JobRun]) -> JobRun:
    """Return `run` with a key that no known run of the job has.

    A controller that was killed shows its job with the SubmitTime from before, and several runs may have been forgotten
    since then. The next free key is then that of its start.
    """
    taken = {one.attempt for one in known}
    if run.attempt in taken and run.start_time is not None:
        run = replace(run, attempt=replace(run.attempt, submit_time=run.start_time))
    return set_earlier_key(run, known) if run.attempt in taken else run


def _parse_uid(observation: Observation) -> int:
    """Return the uid of the job's owner as the hook saw it; 0 without one, as for a job that Slurm forgot."""
    uid = observation.facts.get("uid")
    return uid if isinstance(uid, int) else 0


def _split_into_runs(observations: Sequence[Observation]) -> Iterable[Sequence[Observation]]:
    """Split observations into one group for each run, by the restart counts of their Prologs."""
    prologs = [o for o in observations if o.context is Context.PROLOG]
    counts = sorted({int(o.facts.get("restarts") or 0) for o in prologs})
    if not counts:
        return [observations] if observations else []
    return [[o for o in prologs if int(o.facts.get("restarts") or 0) == count] for count in counts]


def _is_covered(observation: Observation, known: Collection[JobRun], *, forgotten: bool) -> bool:
    """Return True if one of the known runs is the observation's.

    If Slurm still knows the job, only a Prolog shows a new run: an Epilog's restart count may already be that of the
    next run (Slurm 22.05).
    """
    if observation.context is not Context.PROLOG and not forgotten:
        return True
    starts = [float(r.start_time) for r in known if r.start_time is not None]
    for record in known:
        mine = select_observations_of_run([observation], uid=record.uid, start=record.start_time, others=starts)
        if mine and (observation.context is not Context.PROLOG or observation.facts.get("restarts") == record.restarts):
            return True
    return False
