"""What is published of the jobs that run: how busy each node is as far as profiles tell, and whether we relax.

No one is named: a node's figures are the sums over all its jobs with a profile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slurmwrap.fast_dataclasses import replace
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.node import NodeLoad
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.policy.run_from_slurm import key_of, record_of, speaks_for
from slurmwrap.profiling.profile_key import profile_key_of
from slurmwrap.reconcile.reconcile_context import ReconcilePass, Services


def is_relaxing(edges: Services) -> bool:
    """Whether this reconciler loosens what waits: only then may gsub ask for what would otherwise starve a job.

    All of it, or nothing is promised: gsub may ask for a number of nodes, which not every SlurmUser may change.
    """
    config = edges.config
    acts = edges.scope.user is None and config.mode_of("relax") == "act" and config.placement.relax_jobs > 0
    return acts and edges.may_resize()


def measure_node_loads(run: ReconcilePass, profiles: Mapping[str, ResourceProfile]) -> tuple[NodeLoad, ...]:
    """By node, in order. Empty in user mode: one user's jobs say little of a node."""
    if run.edges.scope.user is not None:
        return ()
    loads: dict[str, NodeLoad] = {}
    for job, profile in _list_known_jobs(run, profiles):
        for node in job.nodes:
            loads[node] = _add_load(loads.get(node, NodeLoad(node=node)), job, profile)
    return tuple(loads[node] for node in sorted(loads))


def _list_known_jobs(
    run: ReconcilePass, profiles: Mapping[str, ResourceProfile]
) -> Iterator[tuple[JobRecord, ResourceProfile]]:
    running = {key_of(job, run.book.cluster): job for job in run.words.first.values() if job.state == "RUNNING"}
    names = run.book.profile_keys
    for gone in names.keys() - running.keys():
        del names[gone]
    for key, job in running.items():
        if key not in names:
            names[key] = _profile_key(job, run)
        if job.nodes and job.gpus and (profile := profiles.get(names[key])):
            yield job, profile


def _profile_key(job: JobRecord, run: ReconcilePass) -> str:
    submitted_id = job.job_id if job.array_job_id is None else job.array_job_id
    found = run.edges.store.submission(run.book.cluster, submitted_id)
    if found is None or not found.profile_key or not speaks_for(found, record_of(job, run.book.cluster)):
        return ""
    return profile_key_of(found.uid, found.profile_key)


def _add_load(load: NodeLoad, job: JobRecord, profile: ResourceProfile) -> NodeLoad:
    """`load` with an equal share of the job: Slurm does not say which GPU lies where without a call per job."""
    nodes = len(job.nodes)
    gpus = job.gpus / nodes
    return replace(
        load,
        cpus_busy=round(load.cpus_busy + gpus * (profile.cpus_busy or profile.cpus_per_gpu or 0.0), 3),
        mem_mib=load.mem_mib + int(gpus * (profile.mem_mib_per_gpu or 0)),
    )
