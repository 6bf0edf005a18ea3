"""PlacementPlan: the chosen shape, nodes and locality, with a reason per line. Record only."""

from __future__ import annotations

from dataclasses import dataclass

from slurmwrap.job.request import Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One locality level; relaxed to the next after `wait_s` seconds of eligibility."""

    name: str  # "fewest nodes, one switch" | "one switch" | "any"
    wait_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """What to ask Slurm for. Everything the render step needs is in `lines`; the rest is for people and the store."""

    lines: tuple[Wish, ...] = ()
    node_count: int | None = None
    gpus_per_node: int | None = None
    candidates: tuple[str, ...] = ()  # nodes that looked free and best, for information
    switch: str | None = None
    locality: str = "any"  # "consolidated" | "spread" | "any"
    levels: tuple[Level, ...] = ()
    cpus_per_gpu: int | None = None
    mem_mib_per_gpu: int | None = None
    profile_key: str = ""
