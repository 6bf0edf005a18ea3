"""What Slurm itself knows of a job that slurmwrap never saw: slurmctld while it remembers, else slurmdbd."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap.cli.record_access import JobRecords, RecordSource, about_job, of_cluster
from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.build_evidence import join
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.errors import SlurmError, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import Sacct


def unrecorded(address: str, config: Config, environ: Mapping[str, str], uid: int | None) -> tuple[JobRun, ...]:
    """Its runs, judged by Slurm's record and the log, where we may read it. () where Slurm knows nothing.
    SlurmwrapError for a submission that Slurm refused.

    `uid`: whose runs alone are returned; None: everybody's, for administrators.
    """
    commands = SlurmCommands(environ, timeout_s=config.slurm_timeout_s)
    try:
        cluster, now = commands.cluster_name(), commands.job(address)
    except SlurmError:
        return ()
    if now is not None and now.refused and uid in (None, now.uid):
        raise SlurmwrapError(
            f"there is no job {address}: Slurm refused it when it was submitted ({now.reason})",
            hint="Ask for what the cluster has (sinfo -o '%P %D %c %m %G'), then submit again.",
        )
    told = {} if now is None else {now.submit_time: now}
    for one in _remembered(address, commands, config, environ):
        told.setdefault(one.submit_time, one)
    theirs = (told[at] for at in sorted(told) if uid in (None, told[at].uid))
    return tuple(_judged(one, cluster, config) for one in theirs)


def _remembered(
    address: str, commands: SlurmCommands, config: Config, environ: Mapping[str, str]
) -> tuple[JobRecord, ...]:
    """By slurmdbd; () where there is none, it does not answer, or a whole array is asked for."""
    try:
        if not Sacct.is_there(commands.config()):
            return ()
        found = Sacct(environ, timeout_s=config.slurm_timeout_s).address(address)
    except SlurmError:
        return ()
    return tuple(one for one in found if address in (one.address, str(one.job_id)))


def _judged(job: JobRecord, cluster: str, config: Config) -> JobRun:
    record = record_of(job, cluster)
    if not job.ended:
        return record
    logs = () if job.state == "COMPLETED" and not job.derived_exit_code else UserLogs().tails(record)
    judge = make_classifier(config.diagnosis.signatures)
    return replace(record, diagnosis=judge(join(record.attempt, job, (), logs=logs)))


# Which job an id means where clusters share a home: that of the cluster whose Slurm answers here. Edges.
# Without an answer the newest job of this id is meant.
_SLURM_S = 3.0


def find_records_of_cluster(source: RecordSource, address: str, config: Config) -> JobRecords:
    """Everything about this cluster's job of that id; where it has none of the user's, about another cluster's.

    What is known of one id may hold runs of other jobs (sealed files are tried): only those of its story count.
    """
    known = about_job(source, address)
    told = _build_timeline(address, known)
    here = "" if source.site or told.empty else cluster_here(config)
    if here in ("", told.cluster):
        return known
    mine = of_cluster(known, here)
    if not _build_timeline(address, mine).empty:
        return mine
    if unrecorded(address, config, os.environ, source.uid or None):
        return JobRecords(notes=known.notes)
    return replace(known, notes=(*known.notes, f"job {address} is of cluster {told.cluster}; this is {here}"))


def _build_timeline(address: str, records: JobRecords) -> JobTimeline:
    return build_timeline(address, records.submissions, records.preruns, records.attempts, ())


def cluster_here(config: Config) -> str:
    """ClusterName; "" where Slurm does not say."""
    with suppress(SlurmError):
        return SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).cluster_name()
    return ""
