"""PlacementPlan: the chosen shape, nodes and locality of one job, with a reason for each option."""

from __future__ import annotations

from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.sbatch.job_request import OptionChange

# Keys of `scontrol update` that a plan may set or relax on a pending job, with the sbatch option for each.
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
    """One level of the job's locality requirement.

    It is relaxed to the next level `wait_s` seconds after the job became eligible. Levels are stored with the
    submission. `updates` are the calls that change the request from the level before to this one, in order and with one
    key per call; () for the first level, which is what was submitted.
    """

    name: str  # "these nodes" | "fewest nodes[, one switch]" | "one switch" | "one rack" | "any" | "… as asked"
    wait_s: int  # 0 for the last level, after which nothing is left to relax
    updates: tuple[tuple[str, str], ...] = ()  # (key, value) of `scontrol update JobId=`
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """What to request from Slurm.

    `lines` is all that rewriting the script needs; the other fields are for display and for the database.
    """

    lines: tuple[OptionChange, ...] = ()
    node_count: int | None = None
    gpus_per_node: int | None = None
    # Nodes that looked free and best; for information only.
    candidates: tuple[str, ...] = ()
    switch: str | None = None
    locality: str = "any"  # "consolidated", "spread" or "any"
    levels: tuple[Level, ...] = ()
    cpus_per_gpu: int | None = None
    mem_mib_per_gpu: int | None = None
    profile_key: str = ""
    # Time that the job would lose on one node more than the fewest that hold it, in seconds; None: unknown.
    lost_s: float | None = None
    # Reasons for choices that change nothing in the request, for --explain.
    remarks: tuple[str, ...] = ()
