"""The cluster of a simulation: equal servers. Pure."""

from __future__ import annotations

from slurmwrap.placement.demand import Server

MIB_PER_GB = 1024  # what the papers call GB
_MOST = 1_000_000  # of any of the four: more is a slip of the finger


def servers_of(count: int, *, gpus: int, cpus: int, mem_gb: float) -> tuple[Server, ...]:
    """`count` empty servers with so many GPUs, CPUs and GB each. ValueError where one of them is no such number."""
    for name, value in (("servers", count), ("gpus", gpus), ("cpus", cpus), ("mem_gb", mem_gb)):
        if not value >= 1:  # nan is not, either
            raise ValueError(f"{name} must be at least 1, not {value}")
        if value > _MOST:
            raise ValueError(f"{name} must be at most {_MOST:,}, not {value}")
    memory = int(mem_gb * MIB_PER_GB)
    return tuple(
        Server(
            name=f"n{number:0{len(str(count - 1))}d}",
            gpus=gpus,
            cpus=cpus,
            mem_mib=memory,
            gpus_free=gpus,
            cpus_free=cpus,
            mem_free_mib=memory,
        )
        for number in range(count)
    )
