"""Work and speed of the jobs of a trace that have a profile: what a trace's run time means. Pure.

A trace reports how long a job ran, and sometimes on what. Its work is that run time at the proportional share of the
simulated servers: run time x (speed at what it ran on / speed at the share). A job without a profile, or whose profile
says nothing of these amounts, has speed 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed, list_speed_points
from slurmwrap.sim.sim_job import SimJob

Points = Mapping[str, tuple[SpeedPoint, ...]]


def points_of(profiles: Mapping[str, ResourceProfile], server: Server) -> Points:
    """SimJob.model -> its speeds per GPU, of the profiles that have any. `server`: like all of them."""
    share_mib = server.mem_mib // server.gpus
    found = {model: list_speed_points(profile, share_mib) for model, profile in profiles.items()}
    return {model: speeds for model, speeds in found.items() if speeds}


def share_work_s(job: SimJob, speeds: Sequence[SpeedPoint], server: Server) -> float:
    """Seconds that the job would run at its proportional share of a `server`."""
    ran_at = find_speed(speeds, *compute_requested(job, server))
    at_share = find_speed(speeds, *compute_share(server))
    return job.work_s * ran_at / at_share if ran_at > 0 and at_share > 0 else job.work_s


def compute_share(server: Server) -> tuple[float, int]:
    """CPUs and MiB per GPU that fall to each GPU of a `server`."""
    return server.cpus / server.gpus, server.mem_mib // server.gpus


def compute_requested(job: SimJob, server: Server) -> tuple[float, int]:
    """CPUs and MiB per GPU that the job asks for; its share where it does not say."""
    cpus, memory = compute_share(server)
    return (
        cpus if job.cpus is None else job.cpus / job.gpus,
        memory if job.mem_mib is None else job.mem_mib // job.gpus,
    )


def compute_job_shape(job: SimJob, server: Server, most: int | None = None) -> tuple[int, int]:
    """Nodes and GPUs on each: as asked where that fits, else the fewest equal parts that do.

    `most`: so many servers there are. Three GPUs make no equal parts on two servers of two: then the job has the fewest
    parts that hold it, and a GPU more than it asks for, as its user would have to ask of Slurm.
    """
    fewest = ceil(job.gpus / server.gpus)
    least = max(job.nodes or 1, fewest)
    nodes = next((count for count in range(least, job.gpus + 1) if job.gpus % count == 0), job.gpus)
    if most is None or nodes <= most:
        return nodes, job.gpus // nodes
    return fewest, ceil(job.gpus / fewest)


def claim_of(job: SimJob, speeds: tuple[SpeedPoint, ...], server: Server, most: int | None = None) -> JobDemand:
    """What a mechanism knows of the job. One without speeds has its share, whatever it asks: no one knows better.

    `most`: servers that there are, for a mechanism that gives equal parts only.
    """
    nodes, gpus = compute_job_shape(job, server, most)
    cpus, memory = compute_requested(job, server) if speeds else compute_share(server)
    return JobDemand(
        job=str(job.number),
        gpus_per_node=gpus,
        nodes=nodes,
        cpus=max(1 / gpus, min(cpus, server.cpus / gpus)),
        mem_mib=min(memory, server.mem_mib // gpus),
        speeds=speeds,
        run_s=share_work_s(job, speeds, server),
    )
