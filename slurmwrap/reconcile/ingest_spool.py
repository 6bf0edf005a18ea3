"""Turns what lies in the spools into rows of the database: observations, submissions, pre-runs. Edges are handed in.

Nothing is removed from a spool before it is stored, and what is stored twice is stored once: a reconciler that is
killed at any instruction only does some of it again. A run that Slurm no longer shows becomes an open attempt here,
which is the reconciler's durable to-do list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from slurmwrap.diagnosis.build_evidence import select_observations_of_run
from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.decision import BlockedInput
from slurmwrap.model.job_run import JobRun, PrerunRecord
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.model.submission import Submission
from slurmwrap.model.verdict import Outcome
from slurmwrap.policy.blocked_inputs import make_block_actions
from slurmwrap.policy.run_from_slurm import record_of, run_of_hooks
from slurmwrap.protocols import Store
from slurmwrap.reconcile.reconcile_context import IngestReport, Services, SlurmJobs, Unpack, learn

BATCH = 200
# Files of one spool in one pass.
LIMIT = 200_000
# Unix seconds; seconds, steps and GPUs that a user may claim.
LATEST, MOST = 1e11, 1e12
_HOOKS = frozenset({Context.PROLOG, Context.EPILOG, Context.EPILOG_SLURMCTLD})


def ingest(services: Services, cluster: str, words: SlurmJobs) -> IngestReport:
    """Takes in what lies in the spools now. StoreError when database or spool fail; what was not stored stays there.

    Each spool is listed once: one that fills as fast as it is read, or that cannot be emptied, ends all the same.
    """
    report = IngestReport()
    for spool in services.spools:
        waiting = iter(spool.collect(LIMIT))
        while batch := list(islice(waiting, BATCH)):
            words.know(_list_job_ids(batch))
            with services.store.transaction():
                handled = [_ingest_entry(collected, services, cluster, words, report) for collected in batch]
                _open_unseen(handled, services.store, cluster, words)
            report.blocked += sum(_block_from_prerun(one, services) for one in handled)
            spool.discard(handled)
    return report


def _list_job_ids(batch: Sequence[SpoolEntry]) -> set[int]:
    return {one.item.job_id for one in batch if isinstance(one.item, Observation)}


def _ingest_entry(
    collected: SpoolEntry, services: Services, cluster: str, words: SlurmJobs, report: IngestReport
) -> SpoolEntry:
    """Stores one file; a refused one comes back as RejectedEntry, which the spool keeps apart."""
    item = collected.item
    if isinstance(item, Observation):
        reason = _find_refusal(item, services, cluster, words)
        if not reason:
            new = services.store.ingest(item)
            report.kept, report.known = report.kept + new, report.known + (not new)
            _unpack(item, services, cluster, report, new)
            return collected
        item = RejectedEntry(name=collected.name, reason=reason, uid=item.uid)
    report.refused += 1
    services.store.save_rejected_entry(item, services.clock.now())
    return replace(collected, item=item)


def _find_refusal(item: Observation, services: Services, cluster: str, words: SlurmJobs) -> str:
    """Why an observation is not believed; "" when it is."""
    if item.cluster != cluster and services.scope.user is None:
        return f"it is about another cluster, not {cluster}"
    if item.context in _HOOKS:
        return "" if item.uid in services.scope.trusted else f"uid {item.uid} cannot speak for a hook"
    if item.context is Context.SLURM:
        return "Slurm's word does not arrive here"
    try:
        claim = _read_claim(item, services.unpack)
    except ValueError as error:
        return f"it is no {item.context.value} record: {str(error)[:100]}"
    if not _is_possible(claim):
        return "its numbers cannot be true"
    return _find_foreign_claim(item, claim, services, cluster, words)


def _is_possible(claim: Submission | PrerunRecord) -> bool:
    """Sums and dates of everybody's report are made of these: one number near a float's end would be the end of it."""
    amounts: list[float] = [claim.gpus]
    if isinstance(claim, PrerunRecord):
        amounts += [claim.verdict.seconds, claim.verdict.steps]
    return 0 <= claim.at < LATEST and all(0 <= amount <= MOST for amount in amounts)


def _read_claim(item: Observation, unpack: Unpack) -> Submission | PrerunRecord:
    if item.context is Context.SUBMIT:
        return unpack(Submission, item.facts.get("submission") or {})
    return unpack(PrerunRecord, item.facts.get("prerun") or {})


def _find_foreign_claim(
    item: Observation, claim: Submission | PrerunRecord, services: Services, cluster: str, words: SlurmJobs
) -> str:
    """A user speaks of their own jobs only: the seal's uid must be the one Slurm says the job belongs to.

    Clusters may share a home. What is of another one is their own word in their own database, of which this Slurm knows
    nothing: it is kept for when they are there.
    """
    sealed = services.scope.uid if item.uid == -1 and services.scope.user is not None else item.uid
    if sealed < 0 or claim.uid != sealed or claim.cluster != item.cluster:
        return "it speaks for another user or cluster"
    jobs = {claim.job_id} | ({claim.prerun_job_id} if isinstance(claim, PrerunRecord) else set())
    if item.job_id not in jobs:
        return "it is about another job than it says"
    if item.cluster != cluster:
        return ""
    owners = {_find_owner(job_id, item.cluster, services.store, words) for job_id in jobs if job_id is not None}
    if services.scope.user is not None and owners <= {None, sealed}:
        return ""
    return "" if owners - {None} == {sealed} else "Slurm does not say that the job is his"


def _find_owner(job_id: int, cluster: str, store: Store, words: SlurmJobs) -> int | None:
    """By Slurm, else by what was remembered of Slurm or root's record."""
    found = words.owner(job_id)
    if found is not None:
        return found
    known = [record.uid for record in store.attempts(cluster=cluster, job_id=job_id)]
    known += [o.facts.get("uid", -1) for o in store.observations(cluster, job_id) if o.context in _HOOKS]
    return next((uid for uid in reversed(known) if isinstance(uid, int) and uid >= 0), None)


def _unpack(item: Observation, services: Services, cluster: str, report: IngestReport, new: bool) -> None:
    if item.context not in (Context.SUBMIT, Context.PRERUN):
        return
    claim = _read_claim(item, services.unpack)
    if isinstance(claim, Submission):
        services.store.save_submission(claim)
        report.submitted |= {claim.job_id} if claim.cluster == cluster else set()
        return
    told = _find_earlier_report(claim, services.store)
    if told is None or claim.changes or claim.released or not (told.changes or told.released):
        services.store.save_prerun(claim)
    if new and (told is None or told.verdict.measurement is None):
        report.profiles += _learn_from_prerun(claim, services)


def _find_earlier_report(claim: PrerunRecord, store: Store) -> PrerunRecord | None:
    """The record of this very pre-run that is stored already. One that decides on a job reports twice, before it acts
    and with what came of it (gsub/apply_verdict.py); the two may arrive in any order, and its measurement counts
    once."""
    same = store.preruns(job_id=claim.job_id, since=claim.at)
    key = (claim.cluster, claim.prerun_job_id, claim.at)
    return next((one for one in same if (one.cluster, one.prerun_job_id, one.at) == key), None)


def _learn_from_prerun(record: PrerunRecord, services: Services) -> bool:
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


def _block_from_prerun(one: SpoolEntry, services: Services) -> bool:
    """The pre-run read the file itself, as its user: their word, so it binds them alone. Before its spool file goes."""
    if not isinstance(one.item, Observation) or one.item.context is not Context.PRERUN:
        return False
    record = services.unpack(PrerunRecord, one.item.facts["prerun"])
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
        # What would have been done.
        services.store.intend(None, make_block_actions((blocked,))[0], mode, record.at)
        return False
    services.store.block_input(blocked)
    return True


def _open_unseen(handled: Sequence[SpoolEntry], store: Store, cluster: str, words: SlurmJobs) -> None:
    """Opens an attempt for each run that only its hooks reported: Slurm has forgotten it or shows the next one."""
    heard: dict[int, list[Observation]] = {}
    for one in handled:
        if isinstance(one.item, Observation) and one.item.context in _HOOKS:
            heard.setdefault(one.item.job_id, []).append(one.item)
    for job_id, observations in heard.items():
        job = words.latest.get(job_id)
        if job is not None and not job.pending and job.restarts == 0:
            # Its only run is the one that Slurm shows.
            continue
        known = list(store.attempts(cluster=cluster, job_id=job_id))
        if job is not None and not job.pending:
            known.append(record_of(job, cluster))
        unseen = [o for o in observations if not _is_covered(o, known, forgotten=job is None)]
        for run in _split_into_runs(unseen):
            store.save_attempt(run_of_hooks(cluster, job_id, run, before=job.submit_time if job is not None else None))


def _split_into_runs(observations: Sequence[Observation]) -> Iterable[Sequence[Observation]]:
    """Observations of several unknown runs, one by one: their Prologs count them."""
    prologs = [o for o in observations if o.context is Context.PROLOG]
    counts = sorted({int(o.facts.get("restarts") or 0) for o in prologs})
    if not counts:
        return [observations] if observations else []
    return [[o for o in prologs if int(o.facts.get("restarts") or 0) == count] for count in counts]


def _is_covered(observation: Observation, known: Sequence[JobRun], *, forgotten: bool) -> bool:
    """Whether one of the known runs is the observation's. Where Slurm still knows the job only a Prolog opens a run:
    an Epilog's restart count may already be the next run's (Slurm 22.05)."""
    if observation.context is not Context.PROLOG and not forgotten:
        return True
    starts = [float(r.start_time) for r in known if r.start_time is not None]
    for record in known:
        mine = select_observations_of_run([observation], uid=record.uid, start=record.start_time, others=starts)
        if mine and (observation.context is not Context.PROLOG or observation.facts.get("restarts") == record.restarts):
            return True
    return False
