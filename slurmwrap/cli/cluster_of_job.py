"""Which job an id means where clusters share a home: that of the cluster whose Slurm answers here. Edges."""

from __future__ import annotations

import os
from contextlib import suppress

from slurmwrap.cli.record_access import JobRecords, RecordSource, about_job, of_cluster
from slurmwrap.cli.slurm_lookup import unrecorded
from slurmwrap.config import Config
from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline
from slurmwrap.slurm.commands import SlurmCommands

_SLURM_S = 3.0  # without an answer the newest job of this id is meant


def find_records_of_cluster(place: RecordSource, address: str, config: Config) -> JobRecords:
    """Everything about this cluster's job of that id; where it has none of the user's, about another cluster's.

    What is known of one id may hold runs of other jobs (sealed files are tried): only those of its story count.
    """
    known = about_job(place, address)
    told = _build_timeline(address, known)
    here = "" if place.site or told.empty else cluster_here(config)
    if here in ("", told.cluster):
        return known
    mine = of_cluster(known, here)
    if not _build_timeline(address, mine).empty:
        return mine
    if unrecorded(address, config, os.environ, place.uid or None):
        return JobRecords(notes=known.notes)
    return replace(known, notes=(*known.notes, f"job {address} is of cluster {told.cluster}; this is {here}"))


def _build_timeline(address: str, known: JobRecords) -> JobTimeline:
    return build_timeline(address, known.submissions, known.preruns, known.attempts, ())


def cluster_here(config: Config) -> str:
    """ClusterName; "" where Slurm does not say."""
    with suppress(SlurmError):
        return SlurmCommands(os.environ, timeout_s=min(_SLURM_S, config.slurm_timeout_s)).cluster_name()
    return ""
