"""PlacementPlan: the chosen shape, nodes and locality, with a reason per line. Record only."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.job_request import OptionChange

# What a plan may set and what is loosened of it: scontrol's key for a waiting job -> sbatch's option.
OPTION_OF = {
    "ExcNodeList": "exclude",
    "ReqNodeList": "nodelist",
    "Switches": "switches",
    "NumNodes": "nodes",
    "Features": "constraint",
    "MinMemoryNode": "mem",
    "CPUsPerTask": "cpus-per-task",
    "MinCPUsNode": "cpus-per-task",
}
PLACING = frozenset(OPTION_OF.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of what the job insists on; relaxed to the next `wait_s` seconds after it became eligible.

    Stored with the submission. `updates`: what scontrol must be asked to come here from the level before, in order, one
    key per call; () for the first level, which is what was submitted.
    """

    name: str  # "these nodes" | "fewest nodes[, one switch]" | "one switch" | "one rack" | "any" | "… as asked"
    wait_s: int  # 0 for the last: nothing left to loosen
    updates: tuple[tuple[str, str], ...] = ()  # (key, value) of `scontrol update JobId=`
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """What to ask Slurm for. Everything the render step needs is in `lines`; the rest is for people and the store."""

    lines: tuple[OptionChange, ...] = ()
    node_count: int | None = None
    gpus_per_node: int | None = None
    # Nodes that looked free and best, for information.
    candidates: tuple[str, ...] = ()
    switch: str | None = None
    # "consolidated" | "spread" | "any"
    locality: str = "any"
    levels: tuple[Level, ...] = ()
    cpus_per_gpu: int | None = None
    mem_mib_per_gpu: int | None = None
    profile_key: str = ""
    # Reasons of choices that change nothing in the request, for --explain.
    remarks: tuple[str, ...] = ()
