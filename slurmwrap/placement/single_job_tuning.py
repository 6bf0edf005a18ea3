"""CPUs and memory of one job at its submission, by the function that divides them among all that wait. Pure.

Apart from tuning.py, since most jobs have no speeds, and what is imported here takes gsub 10 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from slurmwrap.config import Tuning
from slurmwrap.model.node import Node
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.allocate import allocate
from slurmwrap.placement.demand import Allocation, GradedSettings, JobDemand, Server
from slurmwrap.placement.job_demand import limit_to_share, make_empty_server, make_job_demand
from slurmwrap.placement.throughput import find_speed
from slurmwrap.placement.tuning_bounds import Bounds, describe_basis
from slurmwrap.sbatch.request import ResourceShape

Divide = Callable[[Sequence[JobDemand], Sequence[Server]], Sequence[Allocation]]


def tune_single_job(
    shape: ResourceShape, profile: ResourceProfile, node: Node, tuning: Tuning, beside: Bounds
) -> Bounds:
    """What allocate() grants it on an empty `node`, never above its share: what lies above it only the reconciler hands
    out, which can take it back while the job waits (reconcile/tune_pending.py).

    `next to`: what tuning_bounds.py says, which holds where the speed is unknown.
    """
    claim = make_job_demand(shape, profile, node, tuning)
    if claim is None:
        return beside
    settings = GradedSettings(assumed_run_s=tuning.assumed_run_s)
    cpus, memory = allocate_single_job(claim, node, partial(allocate, policy=tuning.policy, settings=settings))
    why, share = f"{_describe_effect(claim, cpus, memory)} ({describe_basis(profile)})", node.cpus / node.gpus
    said = f"with {cpus:.3g} CPUs per GPU instead of {claim.cpus:.3g} {why}; its share is {share:.3g}"
    cached = bool(profile.surface) and memory != claim.mem_mib  # of others tuning_bounds.py says the same
    return Bounds(
        cpus_per_gpu=None if cpus == claim.cpus else cpus,
        mem_mib_per_gpu=memory if cached else beside.mem_mib_per_gpu,
        cpu_reason=beside.cpu_reason if cpus == beside.cpus_per_gpu else said,
        mem_reason=f"with {memory} MiB per GPU instead of {claim.mem_mib} {why}" if cached else beside.mem_reason,
    )


def allocate_single_job(claim: JobDemand, node: Node, divide: Divide) -> tuple[float, int]:
    """CPUs and MiB per GPU that `divide` grants it on an empty `node`, never above its share there."""
    (grant,) = divide([limit_to_share(claim, node)], [make_empty_server(node)])
    return _drop_useless_raises(claim, grant)


def _drop_useless_raises(claim: JobDemand, grant: Allocation) -> tuple[float, int]:
    """CPUs and MiB per GPU without raises that make nothing faster as far as anybody knows."""
    cpus, memory, plain = grant.cpus, grant.mem_mib, max(claim.cpus, claim.least_cpus)
    known = find_speed(claim.speeds, cpus, memory)
    if cpus > plain and known <= find_speed(claim.speeds, plain, memory):
        cpus = plain
    if memory > claim.mem_mib and known <= find_speed(claim.speeds, cpus, claim.mem_mib):
        memory = claim.mem_mib
    return cpus, memory


def _describe_effect(claim: JobDemand, cpus: float, mem_mib: int) -> str:
    before, after = find_speed(claim.speeds, claim.cpus, claim.mem_mib), find_speed(claim.speeds, cpus, mem_mib)
    return f"it runs {after / before:.3g} times as fast" if before and after > before * 1.005 else "it is as fast"
