"""Work and speed of the jobs of a trace: what the trace's run time means for a job with a profile. Pure.

A trace records how long a job ran, and sometimes with which resources. The job's work is that run time at the
proportional share of the simulated servers: run time x (speed with its resources / speed at the share). A job without a
profile, or whose profile does not cover these amounts, has speed 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.placement.demand import JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed, list_speed_points
from slurmwrap.sim.sim_job import SimJob

Points = Mapping[str, tuple[SpeedPoint, ...]]


def list_model_speeds(profiles: Mapping[str, ResourceProfile], server: Server) -> Points:
    """Return SimJob.model -> speeds per GPU, for the profiles that contain any. `server`: like all servers."""
    share_mib = server.mem_mib // server.gpus
    found = {model: list_speed_points(profile, share_mib) for model, profile in profiles.items()}
    return {model: speeds for model, speeds in found.items() if speeds}


def compute_share_work_s(job: SimJob, speeds: Sequence[SpeedPoint], server: Server) -> float:
    """Return for how many seconds the job would run at its proportional share of `server`."""
    ran_at = find_speed(speeds, *compute_requested(job, server))
    at_share = find_speed(speeds, *compute_share(server))
    return job.work_s * ran_at / at_share if ran_at > 0 and at_share > 0 else job.work_s


def compute_share(server: Server) -> tuple[float, int]:
    """Return the CPUs and MiB per GPU of `server`."""
    return server.cpus / server.gpus, server.mem_mib // server.gpus


def compute_requested(job: SimJob, server: Server) -> tuple[float, int]:
    """Return the CPUs and MiB per GPU that the job asks for; its share if the trace does not contain them."""
    cpus, memory = compute_share(server)
    return (
        cpus if job.cpus is None else job.cpus / job.gpus,
        memory if job.mem_mib is None else job.mem_mib // job.gpus,
    )


def compute_job_shape(job: SimJob, server: Server, most: int | None = None) -> tuple[int, int]:
    """Return nodes and GPUs on each: as asked if that fits, else the fewest equal parts that do.

    `most`: number of servers. Three GPUs cannot be split into equal parts on two servers with two each. Such a job gets
    the fewest parts that hold it, and one GPU more than it asks for, as its user would have to request from Slurm.
    """
    fewest = ceil(job.gpus / server.gpus)
    least = max(job.nodes or 1, fewest)
    nodes = next((count for count in range(least, job.gpus + 1) if job.gpus % count == 0), job.gpus)
    if most is None or nodes <= most:
        return nodes, job.gpus // nodes
    return fewest, ceil(job.gpus / fewest)


def make_sim_demand(job: SimJob, speeds: tuple[SpeedPoint, ...], server: Server, most: int | None = None) -> JobDemand:
    """Return what a mechanism knows of the job.

    A job without speeds gets its share, whatever it asks for, because nothing better is known. `most`: number of
    servers, for a mechanism that gives equal parts only.
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
        run_s=compute_share_work_s(job, speeds, server),
    )
