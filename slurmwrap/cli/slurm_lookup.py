"""Look up in Slurm a job that slurmwrap did not record: in slurmctld while it keeps the job, else in slurmdbd."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap.cli.record_access import JobRecords, RecordSource, read_job_records, select_cluster_records
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


def find_unrecorded_runs(
    address: str, config: Config, environ: Mapping[str, str], uid: int | None
) -> tuple[JobRun, ...]:
    """Return the job's runs, diagnosed from Slurm's record and the log, if it may be read; () if Slurm has no record.

    `uid`: return only the runs of this user; None: of all users, for administrators. Raise SlurmwrapError if Slurm
    refused the submission.
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
    records = {} if now is None else {now.submit_time: now}
    for one in _find_accounting_records(address, commands, config, environ):
        records.setdefault(one.submit_time, one)
    selected = (records[at] for at in sorted(records) if uid in (None, records[at].uid))
    return tuple(_make_diagnosed_run(one, cluster, config) for one in selected)


def _find_accounting_records(
    address: str, commands: SlurmCommands, config: Config, environ: Mapping[str, str]
) -> tuple[JobRecord, ...]:
    """Return slurmdbd's records; () if there is no slurmdbd, it does not answer, or `address` is a whole array."""
    try:
        if not Sacct.is_there(commands.config()):
            return ()
        found = Sacct(environ, timeout_s=config.slurm_timeout_s).address(address)
    except SlurmError:
        return ()
    return tuple(one for one in found if address in (one.address, str(one.job_id)))


def _make_diagnosed_run(job: JobRecord, cluster: str, config: Config) -> JobRun:
    record = record_of(job, cluster)
    if not job.ended:
        return record
    logs = () if job.state == "COMPLETED" and not job.derived_exit_code else UserLogs().tails(record)
    judge = make_classifier(config.diagnosis.signatures)
    return replace(record, diagnosis=judge(join(record.attempt, job, (), logs=logs)))


# Where clusters share a home, a job id means the job of the cluster whose Slurm answers on this host. If Slurm does not
# answer within this many seconds, the newest job with this id is meant.
_SLURM_S = 3.0


def find_records_of_cluster(source: RecordSource, address: str, config: Config) -> JobRecords:
    """Return everything about this cluster's job with that id; if it has none of the user's, about another cluster's.

    The records found for an id may include runs of other jobs, since sealed files are tried; only those that belong to
    the job's timeline count.
    """
    known = read_job_records(source, address)
    timeline = _build_timeline(address, known)
    here = "" if source.site or timeline.empty else find_local_cluster(config)
    if here in ("", timeline.cluster):
        return known
    mine = select_cluster_records(known, here)
    if not _build_timeline(address, mine).empty:
        return mine
    if find_unrecorded_runs(address, config, os.environ, source.uid or None):
        return JobRecords(notes=known.notes)
    return replace(known, notes=(*known.notes, f"job {address} is of cluster {timeline.cluster}; this is {here}"))


def _build_timeline(address: str, records: JobRecords) -> JobTimeline:
    return build_timeline(address, records.submissions, records.preruns, records.attempts, ())


def find_local_cluster(config: Config) -> str:
    """Return ClusterName of the Slurm on this host; "" if Slurm does not answer."""
    with suppress(SlurmError):
        return SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).cluster_name()
    return ""
