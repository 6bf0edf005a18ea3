"""Look up in Slurm a job that slurmwrap did not record: in slurmctld while it keeps the job, else in slurmdbd."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from slurmwrap.cli.record_access import (
    JobRecords,
    RecordSource,
    list_known_clusters,
    read_job_records,
    select_cluster_records,
)
from slurmwrap.config.load_config import Config
from slurmwrap.diagnosis.build_evidence import join
from slurmwrap.diagnosis.classifier import make_classifier
from slurmwrap.errors import SlurmError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host.read_user_file import UserLogs
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.nearest_name import find_nearest
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline
from slurmwrap.report.text_format import fit
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.sacct import Sacct


def find_unrecorded_runs(
    address: str, config: Config, environ: Mapping[str, str], uid: int | None, cluster: str = ""
) -> tuple[JobRun, ...]:
    """Return the job's runs, diagnosed from Slurm's record and the log, if it may be read; () if Slurm has no record.

    `uid`: return only the runs of this user; None: of all users, for administrators. `cluster`: another one than this
    host's, if slurmdbd knows it. Raise SlurmwrapError if Slurm refused the submission.
    """
    commands = open_cluster(cluster, config, environ)
    try:
        found, now = commands.cluster_name(), commands.job(address)
    except SlurmError:
        return ()
    if cluster not in ("", found):
        return ()
    cluster = found
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
        found = Sacct(environ, timeout_s=config.slurm_timeout_s, cluster=commands.cluster).address(address)
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


def find_records_of_cluster(source: RecordSource, address: str, config: Config, cluster: str = "") -> JobRecords:
    """Return everything about this cluster's job with that id; if it has none of the user's, about another cluster's.

    `cluster`: only of this one (see resolve_cluster); "": it was not given. The records of an id may include runs of
    other jobs, since sealed files are tried; only those that belong to the job's timeline count.
    """
    if cluster:
        return read_job_records(source, address, cluster)
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


def open_cluster(
    cluster: str, config: Config, environ: Mapping[str, str] = os.environ, timeout_s: float | None = None
) -> SlurmCommands:
    """Return Slurm's commands for a cluster; "" or this host's: as always, else through slurmdbd (squeue -M)."""
    timeout_s = config.slurm_timeout_s if timeout_s is None else min(timeout_s, config.slurm_timeout_s)
    elsewhere = cluster not in ("", find_local_cluster(config))
    return SlurmCommands(environ, timeout_s=timeout_s, cluster=cluster if elsewhere else "")


_ALL = "all"


def resolve_cluster(given: str, source: RecordSource, config: Config) -> str:
    """Return the one cluster that -M names, "" if it was not given. Raise UsageError if it is not known."""
    if given.strip().lower() == _ALL or "," in given:
        raise UsageError("-M: one job is of one cluster", hint="Name it: -M NAME.")
    return next(iter(resolve_clusters(given, source, config)), "")


def resolve_clusters(given: str, source: RecordSource, config: Config) -> tuple[str, ...]:
    """Return the clusters that -M names, separated by commas; () means all. Raise UsageError if one is not known.

    Known are those with stored records, this host's, and those of slurmdbd. Slurm writes their names in lower case.
    """
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names or _ALL in map(str.lower, names):
        return ()
    stored = set(list_known_clusters(source))
    found = []
    for name in names:
        if name not in stored and name.lower() not in stored:
            stored |= {find_local_cluster(config)} - {""}
        if name not in stored and name.lower() not in stored:
            stored.update(_list_slurmdbd_clusters(config))
        if name not in stored and name.lower() not in stored:
            near = find_nearest(name.lower(), stored, 0.4)
            known = f"known: {', '.join(sorted(stored))}" if stored else "no records of any cluster are stored"
            raise UsageError(
                f"-M: no cluster '{fit(name, 40)}' is known", hint=f"{f'did you mean {near}? ' * bool(near)}{known}"
            )
        found.append(name if name in stored else name.lower())
    return tuple(found)


def _list_slurmdbd_clusters(config: Config) -> tuple[str, ...]:
    with suppress(SlurmError):
        return SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).clusters()
    return ()


def find_local_cluster(config: Config) -> str:
    """Return ClusterName of the Slurm on this host; "" if Slurm does not answer."""
    with suppress(SlurmError):
        return SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).cluster_name()
    return ""
