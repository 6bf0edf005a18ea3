"""Clusters, profiles and demands for the tests of the allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from slurmwrap.placement.demand import Allocation, JobDemand, Server, SpeedPoint
from slurmwrap.placement.throughput import find_speed

GB = 1024


def server(
    name: str = "n0", *, gpus: int = 8, cpus: int = 24, mem_mib: int = 512_000, free: int | None = None
) -> Server:
    """`free`: number of free GPUs, with their share of CPUs and memory; None: all GPUs are free."""
    left = gpus if free is None else free
    return Server(
        name=name,
        gpus=gpus,
        cpus=cpus,
        mem_mib=mem_mib,
        gpus_free=left,
        cpus_free=cpus * left // gpus,
        mem_free_mib=mem_mib * left // gpus,
    )


def servers(count: int) -> tuple[Server, ...]:
    return tuple(server(f"n{number}") for number in range(count))


def points(*rows: tuple[int, int, float]) -> tuple[SpeedPoint, ...]:
    return tuple(SpeedPoint(cpus=cpus, mem_mib=mem, speed=speed) for cpus, mem, speed in rows)


# three jobs of one GPU whose share is 3 CPUs and 64,000 MiB
LIGHT = points((1, 20_000, 10.0))
HUNGRY = points((1, 64_000, 4.0), (2, 64_000, 8.0), (3, 64_000, 12.0), (6, 64_000, 24.0), (12, 64_000, 30.0))
LEARNED = points((3, 64_000, 1.0), (3, 128_000, 1.5), (3, 192_000, 2.0))  # more memory makes it faster
LIKES = {"light": LIGHT, "hungry": HUNGRY, "learned": LEARNED}


def claim(job: str, likes: str = "", **changes: object) -> JobDemand:
    """A job of one GPU that asks for its share. `likes` names its profile; "" means no profile."""
    speeds = LIKES[likes] if likes else ()
    return replace(JobDemand(job=job, gpus_per_node=1, cpus=3, mem_mib=64_000, speeds=speeds), **changes)


def speed(item: JobDemand, grant: Allocation) -> float:
    return find_speed(item.speeds, grant.cpus, grant.mem_mib)


# ------------------------------------------------------------------------------------------- hypothesis strategies


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Server, ...]:
    """One to six servers of any shape, empty, busy or full."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        gpus = draw(st.sampled_from([1, 2, 4, 8, 16]))
        item = server(
            f"n{number}",
            gpus=gpus,
            cpus=gpus * draw(st.integers(1, 16)) + draw(st.integers(0, 3)),
            mem_mib=gpus * draw(st.integers(4_000, 200_000)),
        )
        busy = draw(st.integers(0, gpus))
        found.append(
            replace(
                item,
                gpus_free=gpus - busy,
                cpus_free=draw(st.integers(0, item.cpus)) if busy else item.cpus,
                mem_free_mib=draw(st.integers(0, item.mem_mib)) if busy else item.mem_mib,
            )
        )
    return tuple(found)


@st.composite
def profiles(draw: st.DrawFn) -> tuple[SpeedPoint, ...]:
    """No points, or points in any order, with noise."""
    rows = draw(
        st.lists(
            st.tuples(st.integers(1, 64), st.integers(1_000, 400_000), st.floats(1e-3, 1e3)),
            max_size=12,
            unique_by=lambda row: row[:2],
        )
    )
    return points(*rows)


@st.composite
def queues(draw: st.DrawFn, cluster: Sequence[Server]) -> tuple[JobDemand, ...]:
    names = [item.name for item in cluster]
    found = []
    for number in range(draw(st.integers(0, 12))):
        gpus = draw(st.sampled_from([1, 1, 1, 2, 4, 8]))
        found.append(
            JobDemand(
                job=str(number),
                gpus_per_node=gpus,
                nodes=draw(st.sampled_from([1, 1, 1, 2, 4])),
                cpus=draw(st.integers(1, 16 * gpus)) / gpus,
                mem_mib=draw(st.integers(500, 250_000)),
                least_cpus=draw(st.sampled_from([1.0, 2.0])) if gpus == 1 else 1.0,
                most_cpus=draw(st.none() | st.integers(4, 64).map(float)),
                least_mem_mib=draw(st.sampled_from([0, 2_000])),
                most_mem_mib=draw(st.none() | st.integers(2_000, 300_000)),
                speeds=draw(profiles()),
                servers=draw(st.none() | st.frozensets(st.sampled_from([*names, "gone"]), max_size=3)),
                run_s=draw(st.none() | st.floats(0, 1e6)),
                startable_s=draw(st.sampled_from([0.0, 60.0, 1e6])),
            )
        )
    return tuple(found)


@st.composite
def situations(draw: st.DrawFn) -> tuple[tuple[JobDemand, ...], tuple[Server, ...]]:
    cluster = draw(clusters())
    return draw(queues(cluster)), cluster
